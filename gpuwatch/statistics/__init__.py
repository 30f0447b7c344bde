"""What may be said of a difference between runs, and how sure it is."""
