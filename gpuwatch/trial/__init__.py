"""A/B proof of a change: the same training with and without it, run by turns, and what the difference is worth."""
