"""Records what the monitor sees into a file, in whole or in part; begins and ends while the monitor runs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import Clock, SystemClock
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot
from gpuwatch.samples import Candidates, GpuSample, LinkLoss, Sample, TrainerEnded
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.gpu import GpuHistory
from gpuwatch.timeline.runs import gpus_of, holds
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.trainer import TrainerHistory

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatch.recording.schema import RecordingMeta
    from gpuwatch.recording.writer import RecordingWriter


def state_samples(timeline: Timeline, now_ns: int) -> list[Sample]:
    """What is reported once, with which a recording begins: facts, states and open phases.

    No readings, for those come again within a poll.
    """
    with timeline.lock:
        found: list[Sample | None] = [timeline.machine, timeline.nvml]
        for gpu in timeline.gpus.values():
            found += _of_gpu(gpu)
        for trainer in timeline.trainers.values():
            found += _of_trainer(trainer)
        found += [process.latest for process in timeline.processes.values()]
        if timeline.candidates:
            found.append(Candidates(now_ns, timeline.candidates))
    return [sample for sample in found if sample is not None]


def state_of(timeline: Timeline, subject: str) -> list[Sample]:
    """The same of one GPU, by its UUID, or of one trainer."""
    with timeline.lock:
        gpu, trainer = timeline.gpus.get(subject), timeline.trainers.get(subject)
        found = [*(_of_gpu(gpu) if gpu else ()), *(_of_trainer(trainer) if trainer else ())]
    return [sample for sample in found if sample is not None]


def _of_gpu(gpu: GpuHistory) -> Iterator[Sample | None]:
    yield gpu.facts
    yield gpu.latest_status
    yield gpu.latest_health
    yield gpu.lost
    yield from gpu.xids


def _of_trainer(trainer: TrainerHistory) -> Iterator[Sample | None]:
    yield trainer.facts
    yield trainer.stacks.current_line
    yield from (span for span in trainer.phases.spans(trainer.seen_ns) if span.end_ns is None)
    yield trainer.ended


_LOOK_NS = SECOND_NS
_RUNS_NS = 60 * SECOND_NS


class RecordedPart:
    """Leaves out other trainings, and the GPUs that the tree does not use once it is known which it does.

    What was left out and is wanted later (a rank that was in no tree yet, a watch that was widened) begins with all
    that is known of it, for facts are reported once.

    Args:
        timeline: has taken up the samples that are asked about.
        pids: of the tree; None: everything is recorded.
    """

    def __init__(self, timeline: Timeline, pids: Callable[[], frozenset[int] | None]) -> None:
        self._timeline = timeline
        self._pids = pids
        self._left_out: set[str] = set()
        self._gpus: frozenset[str] = frozenset()
        self._looked_ns: int | None = None

    def of(self, samples: Sequence[Sample], now_ns: int) -> Sequence[Sample]:
        """Those that are recorded."""
        pids = self._pids()
        if pids is None and not self._left_out:
            return samples
        if pids is not None and any(type(sample) is GpuSample for sample in samples):
            self._look_for_gpus(pids, now_ns)
        return list(self._chosen(samples, pids))

    def _chosen(self, samples: Iterable[Sample], pids: frozenset[int] | None) -> Iterator[Sample]:
        for sample in samples:
            trainer, gpu = getattr(sample, "trainer", None), getattr(sample, "uuid", None)
            subject = trainer or gpu
            if subject is None:
                yield sample if pids is None or type(sample) is not Candidates else _of_tree(sample, pids)
            elif pids is not None and not (self._has(trainer, pids) if trainer else self._uses(subject)):
                if isinstance(sample, TrainerEnded) and sample.how != "lost":
                    self._left_out.discard(subject)
                else:
                    self._left_out.add(subject)
            else:
                if subject in self._left_out:
                    self._left_out.remove(subject)
                    yield from state_of(self._timeline, subject)
                yield sample

    def _has(self, trainer: str, pids: frozenset[int]) -> bool:
        history = self._timeline.trainers.get(trainer)
        if history is None or history.facts is None:
            return True
        return holds(pids, history.facts.pid, history.facts.start_ticks)

    def _uses(self, gpu: str) -> bool:
        return not self._gpus or gpu in self._gpus

    def _look_for_gpus(self, pids: frozenset[int], now_ns: int) -> None:
        """Adds those that it uses by now; one that it has let go of stays in the recording."""
        if self._looked_ns is not None and now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        timeline = self._timeline
        with timeline.lock:
            runs = timeline.runs(now_ns, _RUNS_NS, pids)
            self._gpus |= {uuid for run in runs for uuid in gpus_of(run, timeline.gpus, timeline.processes)}


def _of_tree(candidates: Candidates, pids: frozenset[int]) -> Candidates:
    return replace(
        candidates, processes=tuple(each for each in candidates.processes if holds(pids, each.pid, each.start_ticks))
    )


_log = logging.getLogger(__name__)

MOST_HELD = 20_000
"""Samples that wait for a disk which does not answer: some 20 MB, a minute of eight GPUs and ranks."""
_STUCK_SECONDS = 3.0

Write = Callable[["RecordingWriter"], object]


class WriterThread:
    """Writes a recording in a thread of its own, in order. All but `close` return at once, whatever the disk does.

    A failure that the writer does not report itself is a bug, and ends the recording.

    Args:
        writer: of the file.
        own_thread: whether it writes in one; else at once, as under a clock that jumps and would run away from it.
        most_held: samples that may wait.
        clock: in seconds, of how long the disk takes.
    """

    def __init__(
        self,
        writer: RecordingWriter,
        *,
        own_thread: bool,
        most_held: int = MOST_HELD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from gpuwatch.recording.writer import FLUSH_NS

        self._pause_ns = FLUSH_NS
        self._writer = writer
        self._most_held = most_held
        self._clock = clock
        self._put_samples = 0  # two counts, for each has one thread that writes it
        self._taken_samples = 0
        self._is_full = False
        self._entries: deque[tuple[int, Write]] = deque()
        self._handed_ns: int | None = None
        self._busy_since: float | None = None
        self._failed: str | None = None
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._handed = threading.Event()
        self._written = self._look()
        self._thread: threading.Thread | None = None
        if own_thread:
            self._thread = threading.Thread(target=self._run, name="gpuwatch-recorder", daemon=True)
            self._thread.start()

    @property
    def written(self) -> RecordingNow:
        """The state of the file, of about a second ago where a thread writes."""
        if self._thread is None and not self._ended.is_set():
            self._written = self._look()
        return self._written

    @property
    def has_failed(self) -> bool:
        """Whether a bug has ended it."""
        return self._failed is not None

    @property
    def is_stuck(self) -> bool:
        """Whether the disk has been silent for longer than a busy one is."""
        since = self._busy_since
        return since is not None and self._clock() - since > _STUCK_SECONDS

    def has_room(self) -> bool:
        """Whether more may be put. Once it was not so, half of the room has to be free."""
        held = self._put_samples - self._taken_samples
        self._is_full = held > (self._most_held // 2 if self._is_full else self._most_held)
        return not self._is_full and self._failed is None

    def put(self, now_ns: int, size: int, write: Write) -> None:
        """Has something written: `size` samples that came at `now_ns`."""
        if self._closing.is_set():
            return
        if self._thread is None:
            self._guarded(write)
            return
        self._put_samples += size
        self._entries.append((size, write))
        # As often as the writer flushes: each wake of the thread ends with a flush, and nothing waits for the next one.
        if self._handed_ns is None or now_ns - self._handed_ns >= self._pause_ns:
            self._handed_ns = now_ns
            self._handed.set()

    def close(self, seconds: float) -> bool:
        """Waits until everything is written and the file is closed; False where the disk takes longer than `seconds`.

        What is written by then can be read: the thread is left behind, and dies with the process.
        """
        self._closing.set()
        self._handed.set()
        if self._thread is None and not self._ended.is_set():
            self._end()
        return self._ended.wait(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._handed.wait()
            self._handed.clear()
            self._write_all()
        self._write_all()
        self._end()

    def _write_all(self) -> None:
        self._busy_since = self._clock()
        while self._entries:
            size, write = self._entries.popleft()
            self._guarded(write)
            self._taken_samples += size
        self._written = self._look()
        self._busy_since = None

    def _guarded(self, write: Write) -> None:
        if self._failed is not None:
            return
        try:
            write(self._writer)
        except Exception as error:  # noqa: BLE001 - the boundary named above
            _log.warning("recording failed", exc_info=True)
            self._failed = f"The recording has ended: {type(error).__name__}: {error}. What was written can be read."
            self._written = self._look()

    def _end(self) -> None:
        self._guarded(lambda writer: writer.close())
        self._written = self._look()
        self._ended.set()

    def _look(self) -> RecordingNow:
        writer = self._writer
        has_failed = self._failed is not None
        problem, is_over = self._failed or writer.problem, writer.is_lost or has_failed
        return RecordingNow(writer.path, 0.0, writer.bytes_written, problem, writer.note, is_over)


_CLOSE_SECONDS = 5.0

OpenWriter = Callable[[Path, "RecordingMeta", "int | None"], "RecordingWriter"]


def default_name(wall_time: float) -> str:
    """The default name of a recording: when it was begun, in local time."""
    return time.strftime("gpuwatch-%Y%m%d-%H%M%S.gpuwatch", time.localtime(wall_time))


def _open_writer(path: Path, meta: RecordingMeta, max_bytes: int | None) -> RecordingWriter:
    from gpuwatch.recording.writer import RecordingWriter

    return RecordingWriter(path, meta, max_bytes=max_bytes)


class Recorder:
    """What lies between the monitor and a recording: nothing, until one is begun.

    A file begins with what was known by then (which GPUs and runs there are, how they are set), and goes on with every
    sample in the order in which it came. Whatever goes wrong here is reported and ends the recording, never the watch;
    and a disk that hangs holds up the recording only.

    Args:
        timeline: takes each sample first, whether it is recorded or not.
        clock: the monitor's. With this machine's clock a thread of its own writes.
        pids: what the watch is narrowed to, and so the recording; None for everything.
        open_writer: begins a file.
        close_seconds: that a disk gets to take the end of a file.
    """

    def __init__(
        self,
        timeline: Timeline,
        clock: Clock,
        *,
        pids: Callable[[], frozenset[int] | None] = lambda: None,
        open_writer: OpenWriter = _open_writer,
        close_seconds: float = _CLOSE_SECONDS,
    ) -> None:
        self._timeline = timeline
        self._clock = clock
        self._pids = pids
        self._open_writer = open_writer
        self._close_seconds = close_seconds
        self._lock = threading.Lock()
        self._thread: WriterThread | None = None
        self._part = RecordedPart(timeline, pids)
        self._started_ns = 0
        self._lost = 0
        self._lost_lately = 0

    def begin(self, path: Path, snapshot: Snapshot, command: Sequence[str] = (), max_bytes: int | None = None) -> None:
        """Begins a file. From any thread.

        Args:
            path: of the file, which must not hold anything yet.
            snapshot: says of what machine it is a recording.
            command: that was started to be recorded.
            max_bytes: the file's most.

        Raises:
            CannotRecordError: it cannot be written; one sentence with the cure.
            ValueError: another one is being written.
        """
        before = self._thread
        if before is not None and not before.has_failed:
            raise ValueError(f"{before.written.path} is already being recorded: stop that recording first.")
        meta = _meta(snapshot, self._timeline.interval_seconds, tuple(command), self._clock.wall_time())
        writer = self._open_writer(path, meta, max_bytes)
        thread = WriterThread(writer, own_thread=isinstance(self._clock, SystemClock))
        with self._lock:
            self._part = RecordedPart(self._timeline, self._pids)
            self._started_ns, self._lost, self._lost_lately = self._clock.now_ns(), 0, 0
            self._put(thread, state_samples(self._timeline, self._started_ns))
            self._thread = thread

    def feed(self, samples: Sequence[Sample]) -> None:
        """Takes samples up into the timeline, and into the file."""
        with self._lock:
            self._timeline.extend(samples)
            if self._thread is not None and samples:
                self._put(self._thread, samples)

    def judged(self, now_ns: int, findings: Sequence[Finding]) -> None:
        """Notes the findings after an evaluation."""
        thread = self._thread
        if thread is None or not thread.has_room():
            return
        from gpuwatch.monitor.recorded_findings import to_record

        with self._lock:
            thread.put(now_ns, 0, lambda writer: writer.add_findings(now_ns, [to_record(each) for each in findings]))

    def now(self, now_ns: int) -> RecordingNow | None:
        """The state of the recording; one that failed is reported until it is ended or the next is begun."""
        thread = self._thread
        if thread is None:
            return None
        written = thread.written
        problem = written.problem
        if thread.is_stuck and problem is None:
            lost = f", and {self._lost} samples are lost so far" if self._lost else ""
            problem = f"the disk of {written.path.absolute().parent} does not answer: new samples wait in memory{lost}"
        return replace(written, seconds=max(0.0, (now_ns - self._started_ns) / 1e9), problem=problem)

    def end(self) -> RecordingNow | None:
        """Ends the file properly, and says what it has become. Idempotent; from any thread.

        A writer that the disk holds is waited for some seconds: what it wrote is safe without a proper end.
        """
        thread, now_ns = self._thread, self._clock.now_ns()
        if thread is None:
            return None
        has_ended = thread.close(self._close_seconds)
        last = self.now(now_ns)
        self._thread = None  # not before: a second Ctrl-C may break in, and whoever stops the monitor ends it again
        if last is None:  # two threads have ended it
            return None
        if not has_ended:
            folder = last.path.absolute().parent
            return replace(last, problem=f"the disk of {folder} does not answer: what was written before can be read")
        if self._lost and last.problem is None:
            return replace(last, problem=f"{self._lost} samples are missing: the disk did not answer for a while")
        return last

    def _put(self, thread: WriterThread, samples: Sequence[Sample]) -> None:
        """Hands samples on; where a disk has not answered for long they are lost, which the file then says."""
        now_ns, wall_time = self._clock.now_ns(), self._clock.wall_time()
        wanted = self._part.of(samples, now_ns)
        if not thread.has_room():
            self._lost += len(wanted)
            self._lost_lately += len(wanted)
            return
        if self._lost_lately:
            loss = LinkLoss(None, now_ns, dropped=self._lost_lately, detail="the disk of the recording did not answer")
            states = self._part.of(state_samples(self._timeline, now_ns), now_ns)
            wanted, self._lost_lately = [loss, *states, *wanted], 0
        thread.put(now_ns, len(wanted), lambda writer: writer.add(wanted, now_ns, wall_time))


def _meta(snapshot: Snapshot, interval_seconds: float, command: tuple[str, ...], wall_time: float) -> RecordingMeta:
    from gpuwatch import __version__
    from gpuwatch.recording.schema import RecordingMeta

    return RecordingMeta(
        hostname=snapshot.machine.hostname if snapshot.machine is not None else socket.gethostname(),
        version=__version__,
        label=snapshot.origin.label,
        command=command,
        attached_pid=snapshot.attached_pid,
        interval_seconds=interval_seconds,
        started_wall=wall_time,
    )
