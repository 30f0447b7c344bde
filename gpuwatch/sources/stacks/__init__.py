"""Stacks as a source: the training thread and its workers, sampled from outside many times a second."""
