"""A disk that does not answer, as a network's that hangs: the watch goes on, and the file says what it lacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.recorder import MOST_HELD, Recorder, WriterThread
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuSample, LinkLoss, RunFacts, Sample
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import gpu_facts, poll, run_facts

PATIENCE_SECONDS = 60


class HangingWriter(RecordingWriter):
    """Its disk answers while `answers` is set."""

    def __init__(self, path: Path, meta: RecordingMeta, max_bytes: int | None = None) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.told_loss = threading.Event()
        super().__init__(path, meta, max_bytes=max_bytes)

    def add(self, samples: Iterable[Sample], now_ns: int, wall_time: float) -> None:
        self.asked.set()
        assert self.answers.wait(PATIENCE_SECONDS)
        samples = list(samples)
        super().add(samples, now_ns, wall_time)
        if any(isinstance(sample, LinkLoss) for sample in samples):
            self.told_loss.set()


class Begun:
    """A recording on such a disk."""

    def __init__(self, path: Path, close_seconds: float = PATIENCE_SECONDS) -> None:
        self.writers: list[HangingWriter] = []
        self.timeline = Timeline()
        self.recorder = Recorder(self.timeline, SystemClock(), open_writer=self._open, close_seconds=close_seconds)
        monitor = simulated_monitor("starved", virtual=True)
        self.recorder.begin(path, monitor.snapshot())
        monitor.stop()

    def _open(self, path: Path, meta: RecordingMeta, max_bytes: int | None) -> RecordingWriter:
        self.writers.append(HangingWriter(path, meta, max_bytes))
        return self.writers[0]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Begun]]:
    made: list[Begun] = []

    def begin(**options: float) -> Begun:
        made.append(Begun(tmp_path / "run.gpuwatch", **options))
        return made[0]

    yield begin
    for each in made:
        each.writers[0].answers.set()
        each.recorder.end()


def samples_in(path: Path) -> list[Sample]:
    with Recording(path) as recording:
        return list(recording.samples(recording.start_ns, recording.end_ns))


def test_what_comes_while_the_disk_hangs_is_recorded_once_it_answers(
    begin: Callable[..., Begun], tmp_path: Path
) -> None:
    begun = begin()
    assert begun.writers[0].asked.wait(PATIENCE_SECONDS)
    for second in range(5):
        begun.recorder.feed([poll(second, utilization_percent=float(second))])
    assert begun.timeline.gpus["GPU-0"].polls.times
    begun.writers[0].answers.set()
    ended = begun.recorder.end()
    assert ended is not None and (ended.problem, ended.is_over) == (None, False)
    polls = [sample for sample in samples_in(tmp_path / "run.gpuwatch") if isinstance(sample, GpuSample)]
    assert [sample.utilization_percent for sample in polls] == [0, 1, 2, 3, 4]


def test_what_no_longer_fits_is_lost_and_the_file_says_how_much(begin: Callable[..., Begun], tmp_path: Path) -> None:
    begun = begin()
    begun.recorder.feed([poll(0)] * (MOST_HELD + 1))
    begun.recorder.feed([gpu_facts(), run_facts(), poll(1)])
    begun.writers[0].answers.set()
    while not begun.writers[0].told_loss.wait(0.01):
        begun.recorder.feed([poll(2)])
    ended = begun.recorder.end()
    assert ended is not None and "samples are missing: the disk did not answer" in (ended.problem or "")
    found = samples_in(tmp_path / "run.gpuwatch")
    (loss,) = [sample for sample in found if isinstance(sample, LinkLoss)]
    assert loss.dropped >= 3
    assert any(isinstance(sample, RunFacts) for sample in found)  # told in the gap, and told again behind it


def test_a_disk_that_never_answers_holds_up_no_end(begin: Callable[..., Begun]) -> None:
    begun = begin(close_seconds=0.05)
    assert begun.writers[0].asked.wait(PATIENCE_SECONDS)
    ended = begun.recorder.end()
    assert ended is not None and "does not answer" in (ended.problem or "")
    assert begun.recorder.end() is None


def test_a_silent_disk_is_reported_while_it_is_silent(tmp_path: Path) -> None:
    writer = HangingWriter(tmp_path / "run.gpuwatch", RecordingMeta("node", "0"))
    now = [0.0]
    thread = WriterThread(writer, own_thread=True, clock=lambda: now[0])
    thread.put(0, 1, lambda writer: writer.add([poll(0)], 1, 0.0))
    assert writer.asked.wait(PATIENCE_SECONDS)
    assert not thread.is_stuck
    now[0] = 10.0
    assert thread.is_stuck
    writer.answers.set()
    assert thread.close(PATIENCE_SECONDS)
    assert not thread.is_stuck
