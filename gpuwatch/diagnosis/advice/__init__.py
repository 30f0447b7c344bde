"""What to change and what it brings: worker counts, gains, and the code that says so."""
