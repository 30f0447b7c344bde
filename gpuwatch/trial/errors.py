"""What ends a trial before it has a result."""

from __future__ import annotations


class TrialError(Exception):
    """One sentence with the cause and the cure."""
