"""Reads the user's source around a line to change."""

from __future__ import annotations

import stat
from pathlib import Path

from gpuwatch.dashboard.panels.finding_page import EditDiff, Source
from gpuwatch.diagnosis.finding import Fix

LINES_AROUND = 3
LARGEST_BYTES = 512 * 1024


def read_source(fix: Fix, folder: str | None, edit_diff: EditDiff | None) -> Source:
    """A diff where one can be made, else the lines around the place, else the reason. To be called off the UI thread.

    The path comes from another process: only a small regular file is opened, never a pipe or a device.

    Args:
        fix: With a file and a line.
        folder: The process's working directory, for a relative path.
        edit_diff: Makes a diff of the fix's edit.
    """
    reason = None
    if fix.edit is not None and edit_diff is not None:
        diff = edit_diff(fix.edit)
        if diff.text is not None:
            return Source(diff=diff.text)
        reason = diff.reason
    assert fix.file is not None and fix.line is not None, "asked only with a place"
    path = Path(folder or "/", fix.file)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES:
            return Source(reason=reason or f"{path} is not a source file that can be shown")
        lines = path.read_text(encoding="utf-8", errors="backslashreplace").split("\n")
    except OSError as error:
        return Source(reason=reason or f"{path} cannot be read here ({error.strerror})")
    first = max(1, fix.line - LINES_AROUND)
    shown = tuple(lines[first - 1 : fix.line + LINES_AROUND])
    if len(shown) <= fix.line - first:
        return Source(reason=f"{path} has no line {fix.line} any more: it changed since the run started")
    return Source(first_line=first, lines=shown, reason=f"no diff: {reason}" if reason else "")
