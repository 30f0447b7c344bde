"""The user's source around a line to change: as a diff where one can be made, else as it is."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.dashboard.panels.finding_page import Source
from gpuwatch.diagnosis.finding import Fix
from gpuwatch.samples import RunFacts

LINES_AROUND = 3


def source_of(fix: Fix, trainer: RunFacts | None) -> Source:
    """A diff, else the lines around the place, else the reason. To be called off the UI thread: disks can be slow.

    Args:
        fix: With an edit, or with a file and a line.
        trainer: Whose code it is: its folder, and when it started (a file that changed since is not what runs).
    """
    # Here, not above: few sessions open a finding with an edit.
    from gpuwatch.edits.editor import edit_diff
    from gpuwatch.edits.source import UnreadableSourceError, process_started, read_source

    folder = Path(trainer.cwd) if trainer is not None and trainer.cwd is not None else None
    started = process_started(trainer.start_ticks) if trainer is not None else None

    def read(asked: Path) -> bytes:
        return read_source((folder or Path("/")) / asked, started, trainer)

    reason = ""
    if fix.edit is not None:
        diff = edit_diff((fix.edit, *fix.also), read, folder, trainer.command if trainer is not None else ())
        if diff.text is not None:
            return Source(diff=diff.text, reason=f"By hand: {diff.reason}." if diff.reason else "")
        reason = diff.reason or ""
    if fix.file is None or fix.line is None:
        return Source(reason=f"No diff: {reason}." if reason else "")
    try:
        lines = read(Path(fix.file)).decode("utf-8", "backslashreplace").split("\n")
    except UnreadableSourceError as error:
        return Source(reason=f"{error}.")
    first = max(1, fix.line - LINES_AROUND)
    shown = tuple(lines[first - 1 : fix.line + LINES_AROUND])
    if len(shown) <= fix.line - first:
        return Source(reason=f"{fix.file} has no line {fix.line}.")
    return Source(first_line=first, lines=shown, reason=f"No diff: {reason}." if reason else "")
