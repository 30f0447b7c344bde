"""Text for people: numbers with their thousands apart, and foreign text made safe to show, for it may be hostile."""
