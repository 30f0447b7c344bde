"""What utilization itself shows, and dips whose cause is not yet known."""
