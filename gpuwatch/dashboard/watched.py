"""What the dashboard needs of a monitor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuwatch.dashboard.history import Timeline
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot


class MonitorLike(Protocol):
    """A monitor, as the dashboard sees it."""

    @property
    def timeline(self) -> Timeline:
        """The history behind the charts."""

    def snapshot(self) -> Snapshot:
        """The newest state of everything."""

    def subscribe(self, callback: Callable[[Snapshot], object]) -> object:
        """Calls back from its own thread with every new snapshot."""

    def record(self, path: Path) -> object:
        """Records into a file from now on.

        Raises:
            CannotRecordError, ValueError: with one sentence why not.
        """

    def stop_recording(self) -> RecordingNow | None:
        """Ends the recording and says what has become of it."""

    def attach(self, pid: int | None) -> object:
        """Narrows the watch to a process and those below it; None: watches everything again."""
