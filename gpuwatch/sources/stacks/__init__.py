"""Stacks as a source: the training thread and its workers, looked at from outside many times a second."""
