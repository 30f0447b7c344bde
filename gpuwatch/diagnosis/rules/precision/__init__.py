"""Precision, compilation and how much arithmetic a busy GPU really does."""
