"""Standard streams whose other end is gone: what the interpreter flushes at exit would make 120 of the exit code."""

from __future__ import annotations

import os
import sys


def flush_stderr() -> None:
    """Writes what is buffered, of the dashboard for one; to a terminal that is gone it goes nowhere."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        if not lead_nowhere(2):
            sys.stderr = None


def lead_nowhere(descriptor: int) -> bool:
    """Has the descriptor lead nowhere; False where no other one is left for it."""
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is needed, not a path
            os.dup2(nowhere.fileno(), descriptor)
    except OSError:
        return False
    return True
