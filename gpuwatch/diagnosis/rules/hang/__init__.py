"""Training that stopped, loudly or silently."""
