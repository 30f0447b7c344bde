"""Stretches of a run that are not training: evaluation, checkpoints, garbage collection."""
