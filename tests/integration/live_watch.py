"""A live monitor whose snapshots a test waits for."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable

import pytest

from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.monitor.wiring import live_monitor
from gpuwatch.reader.refusals import Reason
from gpuwatch.sources.discovery import try_to_read
from tests.integration.attached import NOT_YET
from tests.integration.command_line import PATIENCE_SECONDS


class Watch:
    """A monitor that runs; the test stops it."""

    def __init__(self, attach_pid: int | None = None) -> None:
        self.monitor: Monitor = live_monitor(attach_pid=attach_pid)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self.monitor.subscribe(self._snapshots.put)
        self.monitor.start()

    def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """The next snapshot that fulfils the condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                snapshot = self._snapshots.get(timeout=left)
                if condition(snapshot):
                    return snapshot
        raise AssertionError(f"it never came; the last snapshot is {self.monitor.snapshot()}")

    def run_until(self, condition: Callable[[RunNow], bool]) -> RunNow:
        """The only run, once it fulfils the condition."""
        return self.until(lambda snapshot: len(snapshot.runs) == 1 and condition(snapshot.runs[0])).runs[0]


def needs_reading(pid: int) -> None:
    """Waits until the process, a Python that may just have been started, can be read; skips where none may be."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (error := try_to_read(pid)) is not None:
        if error.reason in (Reason.PERMISSION, Reason.PLATFORM):
            pytest.skip(f"other processes cannot be read here: {error.sentence}")
        assert error.reason in NOT_YET and time.monotonic() < deadline, error.sentence
        time.sleep(0.01)
