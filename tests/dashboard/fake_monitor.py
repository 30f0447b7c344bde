"""A monitor of hand-made snapshots, for tests of the dashboard: nothing runs, time stands still unless told."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwatch.monitor.snapshot import Origin, RecordingNow, Snapshot
from gpuwatch.timeline.charts import Chart, Series

SECOND_NS = 1_000_000_000
Wave = Callable[[float], "float | None"]


def square(low: float, high: float, period: float, duty: float = 0.5) -> Wave:
    """A starved GPU: busy, then idle."""
    return lambda seconds: high if seconds % period < period * duty else low


def steady(value: float) -> Wave:
    return lambda seconds: value + 0.01 * value * math.sin(seconds)


def gap_after(wave: Wave, end_seconds: float) -> Wave:
    """Nothing is measured any more from a moment on."""
    return lambda seconds: wave(seconds) if seconds < end_seconds else None


class FakeTimeline:
    """Charts from functions of time; counts what is asked of it."""

    def __init__(self, waves: dict[str, Wave] | None = None, by_key: dict[Series, Wave] | None = None) -> None:
        self.lock = threading.RLock()
        self.waves = waves or {}
        self.by_key = by_key or {}
        self.asked: list[tuple[Series, int]] = []

    def chart(self, series: Series, start_ns: int, end_ns: int, buckets: int) -> Chart:
        self.asked.append((series, buckets))
        wave = self.by_key.get(series) or self.waves.get(series.name)
        width = (end_ns - start_ns) / buckets
        if wave is None:
            nothing: list[float | None] = [None] * buckets
            return Chart(series, start_ns, end_ns, nothing, nothing, nothing)
        means, lows, highs = [], [], []
        for bucket in range(buckets):
            moments = [(start_ns + (bucket + part) * width) / SECOND_NS for part in (0.1, 0.3, 0.5, 0.7, 0.9)]
            values = [value for value in map(wave, moments) if value is not None]
            means.append(sum(values) / len(values) if values else None)
            lows.append(min(values, default=None))
            highs.append(max(values, default=None))
        return Chart(series, start_ns, end_ns, means, lows, highs)


class FakeMonitor:
    """Hands out the snapshots it is given.

    `push` calls the subscribers from another thread, as the real monitor does, and returns when they have returned.
    """

    def __init__(self, snapshot: Snapshot | None = None, timeline: FakeTimeline | None = None) -> None:
        self.timeline = timeline or FakeTimeline()
        self.current = snapshot
        self.sent: Snapshot | None = None
        self.subscribers: list[Callable[[Snapshot], Any]] = []
        self.attached: list[int | None] = []
        self.recorded: list[Path] = []
        self.recordings_ended = 0
        self.refusal: Exception | None = None
        self.started = threading.Event()
        self.stopped = threading.Event()

    def start(self) -> None:
        self.started.set()

    def stop(self) -> None:
        self.stopped.set()

    def attach(self, pid: int | None) -> None:
        """Notes it; what a snapshot says of it is for the test to push."""
        self.attached.append(pid)

    def record(self, path: Path) -> None:
        """Notes it, or refuses as it is told to."""
        if self.refusal is not None:
            raise self.refusal
        self.recorded.append(path)

    def stop_recording(self) -> RecordingNow | None:
        """What the newest snapshot says of it."""
        self.recordings_ended += 1
        return self.snapshot().recording

    def snapshot(self) -> Snapshot:
        """What subscribers got last; before that, that of a monitor that has just begun."""
        return self.sent or Snapshot(0, 0.0, 0, Origin("live", "LIVE"), None, None, None, (), (), (), None)

    def subscribe(self, callback: Callable[[Snapshot], Any]) -> None:
        self.subscribers.append(callback)

    def push(self, snapshot: Snapshot | None = None) -> None:
        snapshot = snapshot or self.current
        assert snapshot is not None
        self.current = self.sent = snapshot
        calls = [threading.Thread(target=callback, args=(snapshot,)) for callback in self.subscribers]
        for call in calls:
            call.start()
        for call in calls:
            call.join()


def later(snapshot: Snapshot, seconds: float, **changes: Any) -> Snapshot:
    """The same state, some seconds on; readings keep their times, so that they age."""
    return replace(
        snapshot,
        time_ns=snapshot.time_ns + round(seconds * SECOND_NS),
        wall_time=snapshot.wall_time + seconds,
        **changes,
    )


def without(items: Sequence[Any], *indices: int) -> tuple[Any, ...]:
    return tuple(item for index, item in enumerate(items) if index not in indices)
