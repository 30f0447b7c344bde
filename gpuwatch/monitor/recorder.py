"""Records what the monitor sees into a file, beginning and ending while it runs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import Clock
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot
from gpuwatch.monitor.standing import standing_samples
from gpuwatch.samples import Sample
from gpuwatch.timeline.timeline import Timeline

if TYPE_CHECKING:
    from gpuwatch.recording.types import RecordingMeta
    from gpuwatch.recording.writer import RecordingWriter

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0


def default_name(wall_time: float) -> str:
    """What a recording is called that nobody gave a name: when it was begun, in local time."""
    return time.strftime("gpuwatch-%Y%m%d-%H%M%S.gpuwatch", time.localtime(wall_time))


class Recorder:
    """What lies between the monitor and a recording: nothing, until one is begun.

    A file begins with what was known by then (which GPUs and runs there are, how they are set), and goes on with every
    sample in the order in which it came. Whatever goes wrong in here is told and ends the recording, never the watch.

    Args:
        timeline: takes each sample first, whether it is recorded or not.
        clock: the monitor's.
    """

    def __init__(self, timeline: Timeline, clock: Clock) -> None:
        self._timeline = timeline
        self._clock = clock
        self._lock = threading.Lock()
        self._writer: RecordingWriter | None = None
        self._failed: RecordingNow | None = None
        self._started_ns = 0

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
        from gpuwatch.recording.writer import RecordingWriter

        if self._writer is not None:
            raise ValueError(f"{self._writer.path} is being recorded already: end that first.")
        meta = _meta(snapshot, self._timeline.interval_seconds, tuple(command), self._clock.wall_time())
        writer = RecordingWriter(path, meta, max_bytes=max_bytes)
        with self._lock:
            self._started_ns = self._clock.now_ns()
            writer.add(standing_samples(self._timeline, self._started_ns), self._started_ns, self._clock.wall_time())
            self._writer, self._failed = writer, None

    def feed(self, samples: Sequence[Sample]) -> None:
        """Takes samples up into the timeline, and into the file."""
        with self._lock:
            self._timeline.extend(samples)
            if self._writer is not None and samples:
                self._guarded(lambda writer: writer.add(samples, self._clock.now_ns(), self._clock.wall_time()))

    def judged(self, now_ns: int, findings: Sequence[Finding]) -> None:
        """Notes the findings as they stand after an evaluation."""
        if self._writer is None:
            return
        from gpuwatch.monitor.finding_records import to_record

        with self._lock:
            self._guarded(lambda writer: writer.add_findings(now_ns, [to_record(finding) for finding in findings]))

    def now(self, now_ns: int) -> RecordingNow | None:
        """How the recording stands; one that failed is told of until it is ended or the next is begun."""
        writer = self._writer
        if writer is None:
            return self._failed
        return RecordingNow(
            path=writer.path,
            seconds=max(0.0, (now_ns - self._started_ns) / 1e9),
            bytes=writer.bytes_written,
            problem=writer.problem,
            note=writer.note,
            is_over=writer.is_lost,
        )

    def end(self) -> RecordingNow | None:
        """Ends the file properly, and says what it has become. Idempotent; from any thread.

        A writer that the disk holds is waited for some seconds: what it wrote is safe without a proper end.
        """
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            return self.now(self._clock.now_ns())
        try:
            last, self._failed = self.now(self._clock.now_ns()), None
            writer = self._writer
            if writer is None or last is None:
                return last
            try:
                writer.close()
            except Exception as error:  # noqa: BLE001 - the boundary named above
                _log.warning("closing the recording failed", exc_info=True)
                last = replace(last, problem=_failed(error))
            else:
                last = replace(last, path=writer.path, bytes=writer.bytes_written, problem=writer.problem)
            self._writer = None  # not before: a second Ctrl-C may break in, and whoever stops the monitor closes again
            return last
        finally:
            self._lock.release()

    def _guarded(self, write: Callable[[RecordingWriter], object]) -> None:
        """Writes; a failure that the writer does not tell of itself is a bug, and ends the recording."""
        writer = self._writer
        if writer is None:
            return
        try:
            write(writer)
        except Exception as error:  # noqa: BLE001 - the boundary named above
            _log.warning("recording failed", exc_info=True)
            last = self.now(self._clock.now_ns())
            failed = None if last is None else replace(last, problem=_failed(error), is_over=True)
            self._writer, self._failed = None, failed


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


def _failed(error: Exception) -> str:
    return f"The recording has ended: {type(error).__name__}: {error}. What was written can be read."
