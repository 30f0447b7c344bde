"""The hand that writes a recording: in a thread of its own, so that a disk that hangs holds up nothing but the file."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatch.recording.writer import RecordingWriter

_log = logging.getLogger(__name__)

MOST_HELD = 20_000
"""Samples that wait for a disk which does not answer: some 20 MB, a minute of eight GPUs and ranks."""
_STUCK_SECONDS = 3.0

Write = Callable[["RecordingWriter"], object]


class Written(NamedTuple):
    """How the file stands, as far as is known without asking the disk."""

    path: Path
    bytes: int
    problem: str | None
    note: str | None
    is_over: bool


class Scribe:
    """Passes on what is to be written, in its order. All but `close` return at once, whatever the disk does.

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
    def written(self) -> Written:
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
        """Has everything written and the file ended; False where the disk does not let it within so many seconds.

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

    def _look(self) -> Written:
        writer = self._writer
        has_failed = self._failed is not None
        return Written(
            writer.path, writer.bytes_written, self._failed or writer.problem, writer.note, writer.is_lost or has_failed
        )
