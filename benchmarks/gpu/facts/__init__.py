"""Questions to the hardware itself: short programs that print one JSON object."""
