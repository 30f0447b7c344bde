"""A/B proof of a change: the same training with and without it, run alternately, and what the difference is worth."""
