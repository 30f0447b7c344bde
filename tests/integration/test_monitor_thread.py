"""The monitor's own thread, with sources over real files."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.monitor import Monitor, Source
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.samples import GpuFacts, GpuSample, HostSample, Sample
from gpuwatch.timeline.charts import Series
from tests.integration.command_line import PATIENCE_SECONDS


class PipeSource:
    """Makes a GPU sample of every byte that is written to it."""

    name = "pipe"

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._introduced = False
        self.closed = threading.Event()

    def write(self) -> None:
        os.write(self._write, b"x")

    def fileno(self) -> int | None:
        return self._read

    def due_ns(self) -> int | None:
        return None

    def collect(self, now_ns: int) -> Iterable[Sample]:
        try:
            os.read(self._read, 1)
        except BlockingIOError:
            return
        if not self._introduced:
            self._introduced = True
            yield GpuFacts(now_ns, "GPU-0", 0, "H100")
        yield GpuSample(now_ns, "GPU-0", utilization_percent=50.0)

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            os.close(self._read)
            os.close(self._write)


class StuckSource(PipeSource):
    """Never comes back from `collect` until it is released."""

    name = "stuck"

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def collect(self, now_ns: int) -> Iterable[Sample]:
        self.entered.set()
        self.released.wait()
        return [HostSample(now_ns)]


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def live(*sources: Source) -> tuple[Monitor, queue.SimpleQueue[Snapshot]]:
    monitor = Monitor(sources, origin=Origin("live", "LIVE"), clock=SystemClock())
    snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
    monitor.subscribe(snapshots.put)
    return monitor, snapshots


@pytest.fixture
def source() -> Iterator[PipeSource]:
    made = PipeSource()
    yield made
    for thread in threads_named("gpuwatch-monitor"):
        thread.join(PATIENCE_SECONDS)
    made.close()


def test_input_is_shown_to_subscribers_from_the_monitors_thread(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    threads: list[str] = []
    monitor.subscribe(lambda snapshot: threads.append(threading.current_thread().name))
    monitor.start()
    source.write()
    shown = snapshots.get(timeout=PATIENCE_SECONDS)
    while not shown.gpus:
        shown = snapshots.get(timeout=PATIENCE_SECONDS)
    monitor.stop()
    assert shown.gpus[0].latest is not None
    assert set(threads) == {"gpuwatch-monitor"}
    assert threading.current_thread().name not in threads


def test_stop_ends_the_thread_and_gives_every_file_back() -> None:
    gc.collect()  # what earlier tests left is given back now, and not in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = PipeSource()
    monitor, snapshots = live(source)
    monitor.start()
    snapshots.get(timeout=PATIENCE_SECONDS)
    watching = threads_named("gpuwatch-monitor")
    monitor.stop()
    for thread in watching:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    monitor.stop()  # the first one left behind a thread that a busy machine had held for over a second
    assert source.closed.is_set()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monitor.stop()


def test_stop_does_not_wait_for_a_source_that_hangs() -> None:
    stuck = StuckSource()
    monitor, _ = live(stuck)
    monitor.start()
    stuck.write()
    assert stuck.entered.wait(PATIENCE_SECONDS)
    monitor.stop()
    assert not stuck.released.is_set()
    assert monitor.snapshot().time_ns > 0
    stuck.released.set()
    for thread in threads_named("gpuwatch-monitor"):
        thread.join(PATIENCE_SECONDS)
    monitor.stop()


def test_view_reads_charts_while_the_monitor_writes(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    monitor.start()
    series = Series("gpu.utilization_percent", "GPU-0")
    mean: Sequence[float | None] = ()
    while 50.0 not in mean:
        source.write()
        now_ns = snapshots.get(timeout=PATIENCE_SECONDS).time_ns
        mean = monitor.timeline.chart(series, now_ns - 10_000_000_000, now_ns + 1_000_000_000, 11).mean
    monitor.stop()
    assert set(mean) <= {None, 50.0}


def test_caller_may_watch_without_a_thread_and_be_stopped_from_another(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    stopper = threading.Thread(target=lambda: (snapshots.get(timeout=PATIENCE_SECONDS), monitor.stop()))
    stopper.start()
    source.write()
    monitor.run_until(None)
    stopper.join(PATIENCE_SECONDS)
    assert not stopper.is_alive()
    monitor.stop()
    assert source.closed.is_set()
