"""Records what the monitor sees into a file, beginning and ending while it runs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import Clock, SystemClock
from gpuwatch.monitor.recorded_part import RecordedPart
from gpuwatch.monitor.scribe import Scribe
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot
from gpuwatch.monitor.standing import standing_samples
from gpuwatch.samples import LinkLoss, Sample
from gpuwatch.timeline.timeline import Timeline

if TYPE_CHECKING:
    from gpuwatch.recording.types import RecordingMeta
    from gpuwatch.recording.writer import RecordingWriter

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
        clock: the monitor's. Beside that of this machine a thread of its own writes.
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
        self._scribe: Scribe | None = None
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
        before = self._scribe
        if before is not None and not before.has_failed:
            raise ValueError(f"{before.written.path} is being recorded already: end that first.")
        meta = _meta(snapshot, self._timeline.interval_seconds, tuple(command), self._clock.wall_time())
        writer = self._open_writer(path, meta, max_bytes)
        scribe = Scribe(writer, own_thread=isinstance(self._clock, SystemClock))
        with self._lock:
            self._part = RecordedPart(self._timeline, self._pids)
            self._started_ns, self._lost, self._lost_lately = self._clock.now_ns(), 0, 0
            self._put(scribe, standing_samples(self._timeline, self._started_ns))
            self._scribe = scribe

    def feed(self, samples: Sequence[Sample]) -> None:
        """Takes samples up into the timeline, and into the file."""
        with self._lock:
            self._timeline.extend(samples)
            if self._scribe is not None and samples:
                self._put(self._scribe, samples)

    def judged(self, now_ns: int, findings: Sequence[Finding]) -> None:
        """Notes the findings as they stand after an evaluation."""
        scribe = self._scribe
        if scribe is None or not scribe.has_room():
            return
        from gpuwatch.monitor.finding_records import to_record

        with self._lock:
            scribe.put(now_ns, 0, lambda writer: writer.add_findings(now_ns, [to_record(each) for each in findings]))

    def now(self, now_ns: int) -> RecordingNow | None:
        """How the recording stands; one that failed is reported until it is ended or the next is begun."""
        scribe = self._scribe
        if scribe is None:
            return None
        path, size, problem, note, is_over = scribe.written
        if scribe.is_stuck and problem is None:
            lost = f", and {self._lost} samples are lost by now" if self._lost else ""
            problem = f"the disk of {path.absolute().parent} does not answer: what comes waits in memory{lost}"
        return RecordingNow(path, max(0.0, (now_ns - self._started_ns) / 1e9), size, problem, note, is_over)

    def end(self) -> RecordingNow | None:
        """Ends the file properly, and says what it has become. Idempotent; from any thread.

        A writer that the disk holds is waited for some seconds: what it wrote is safe without a proper end.
        """
        scribe, now_ns = self._scribe, self._clock.now_ns()
        if scribe is None:
            return None
        has_ended = scribe.close(self._close_seconds)
        last = self.now(now_ns)
        self._scribe = None  # not before: a second Ctrl-C may break in, and whoever stops the monitor ends it again
        if last is None:  # two threads have ended it
            return None
        if not has_ended:
            folder = last.path.absolute().parent
            return replace(last, problem=f"the disk of {folder} does not answer: what it had taken by then can be read")
        if self._lost and last.problem is None:
            return replace(last, problem=f"{self._lost} samples are not in it: the disk did not answer for a while")
        return last

    def _put(self, scribe: Scribe, samples: Sequence[Sample]) -> None:
        """Hands samples on; where a disk has not answered for long they are lost, which the file then says."""
        now_ns, wall_time = self._clock.now_ns(), self._clock.wall_time()
        wanted = self._part.of(samples, now_ns)
        if not scribe.has_room():
            self._lost += len(wanted)
            self._lost_lately += len(wanted)
            return
        if self._lost_lately:
            loss = LinkLoss(None, now_ns, dropped=self._lost_lately, detail="the disk of the recording did not answer")
            standing = self._part.of(standing_samples(self._timeline, now_ns), now_ns)
            wanted, self._lost_lately = [loss, *standing, *wanted], 0
        scribe.put(now_ns, len(wanted), lambda writer: writer.add(wanted, now_ns, wall_time))


def _meta(snapshot: Snapshot, interval_seconds: float, command: tuple[str, ...], wall_time: float) -> RecordingMeta:
    from gpuwatch._version import __version__
    from gpuwatch.recording.types import RecordingMeta

    return RecordingMeta(
        hostname=snapshot.machine.hostname if snapshot.machine is not None else socket.gethostname(),
        version=__version__,
        label=snapshot.origin.label,
        command=command,
        attached_pid=snapshot.attached_pid,
        interval_seconds=interval_seconds,
        started_wall=wall_time,
    )
