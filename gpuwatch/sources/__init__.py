"""Sources: each turns something into samples. Import the one you need; none imports another."""
