"""How far a report has got, on stderr while that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from gpuwatch.dashboard.formatting import byte_size
from gpuwatch.monitor.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """A bar with the time left and what is seen; silent where stderr is a file or a pipe."""

    def __init__(
        self,
        started_ns: int,
        duration_seconds: float | None,
        *,
        doing: str = "watching",
        hint: str = "Ctrl-C: report so far",
    ) -> None:
        self._doing = doing
        self._hint = hint
        self._started_ns = started_ns
        self._duration_seconds = duration_seconds
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty():
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Moves the bar."""
        if self._bar is None or self._task is None:
            return
        seen = f"{_count(len(snapshot.gpus), 'GPU')}, {_count(len(snapshot.runs), 'run')}"
        findings = _count(len(snapshot.findings), "finding")
        seen = f"{seen}, {findings}"
        if snapshot.recording is not None:
            seen = snapshot.recording.problem or f"{seen}, {byte_size(snapshot.recording.bytes)}"
        self._bar.update(self._task, completed=(snapshot.time_ns - self._started_ns) / 1e9, seen=seen)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        timing = TimeElapsedColumn() if self._duration_seconds is None else TimeRemainingColumn()
        self._bar = RichProgress(
            TextColumn(self._doing),
            BarColumn(bar_width=30),
            timing,
            TextColumn("{task.fields[seen]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._doing, total=self._duration_seconds, seen=self._hint)
        self._bar.start()


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
