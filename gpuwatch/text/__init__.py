"""Text that may be shown: what it says comes from other processes and may be hostile."""
