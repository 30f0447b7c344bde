"""What the driver reports about the hardware's health."""
