"""Failures that the user gets as a sentence, not as a traceback."""

from __future__ import annotations


class GpuwatchError(Exception):
    """One sentence with the cause and the cure, printed on stderr; the command ends with exit code 2."""
