"""The summary page of a GitHub Actions job, which a step appends to by writing to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuwatch.cli.output import say

VARIABLE = "GITHUB_STEP_SUMMARY"
MOST_BYTES = 1024 * 1024
"""Of one step. GitHub shows nothing at all of a summary that is longer."""


def is_asked_for() -> bool:
    """Whether this runs in a job that has a summary page."""
    return bool(os.environ.get(VARIABLE))


def append_step_summary(texts: Sequence[str]) -> None:
    """Appends the first of the texts that fits, where a job asks for a summary; says on stderr what became of it.

    It never fails the command: the report itself is written elsewhere.
    """
    if not is_asked_for():
        return
    path = Path(os.environ[VARIABLE])
    try:
        room = MOST_BYTES - (path.stat().st_size if path.exists() else 0)
        fitting = next((data for text in texts if len(data := text.encode()) <= room), None)
        if fitting is None:
            say(f"gpuwatch: the job's summary (${VARIABLE}) is full: this report is not in it")
            return
        with path.open("ab") as file:
            file.write(fitting)
    except OSError as error:
        say(f"gpuwatch: the job's summary (${VARIABLE}) cannot be written ({error.strerror}): this report is not in it")
        return
    say(f"gpuwatch: the report was also added to the job's summary (${VARIABLE})")
