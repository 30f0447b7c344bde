"""A recorded stream as a source: the same samples at the same moments, in time that jumps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from benchmarks.gpu.seen import FindingLog
from benchmarks.gpu.stream import Stream
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.samples import Sample


class ReplaySource:
    """Gives out each arrival once its moment has come."""

    name = "recording"

    def __init__(self, stream: Stream) -> None:
        self._left = deque(stream.arrivals)

    def fileno(self) -> int | None:
        """No file: only the clock moves it."""
        return None

    def due_ns(self) -> int | None:
        """When the next samples came."""
        return self._left[0][0] if self._left else None

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All that had come by then."""
        found: list[Sample] = []
        while self._left and self._left[0][0] <= now_ns:
            found += self._left.popleft()[1]
        return found

    def close(self) -> None:
        """Ends it."""
        self._left.clear()


def replayed_monitor(stream: Stream) -> Monitor:
    """A monitor over the stream, at its beginning."""
    return Monitor(
        [ReplaySource(stream)],
        origin=Origin("recording", str(stream.about.get("case", "recording"))),
        clock=VirtualClock(stream.started_ns),
        engine=Engine(),
        only_pids=frozenset(stream.pids) or None,
    )


def replayed_findings(stream: Stream) -> FindingLog:
    """What the rules of today say about the whole stream."""
    log = FindingLog()
    monitor = replayed_monitor(stream)
    try:
        monitor.run_until(stream.ended_ns, on_tick=log.take)
    finally:
        monitor.stop()
    return log
