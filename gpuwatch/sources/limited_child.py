"""A child process for work on text that others write: it may crash, never end or fill memory, and costs one answer.

Parent and child exchange frames: four bytes of length, then the content.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import gpuwatch

IDLE_SECONDS: Final = 10.0
"""A child that is asked nothing for this long ends."""
CLOSE_SECONDS: Final = 0.2
_LENGTH: Final = struct.Struct("<I")
_ROOT: Final = str(Path(gpuwatch.__file__).parent.parent)
_START: Final = (
    "import sys, json, importlib; sys.path[:0] = json.loads(sys.argv[1]); importlib.import_module(sys.argv[2]).main()"
)


class LimitedChild:
    """The parent's side. Every method but `end` raises OSError where the child has ended or does not answer in time."""

    def __init__(self, module: str, paths: Sequence[str] = ()) -> None:
        """Starts it.

        Args:
            module: Has the child's main().
            paths: Where it finds more than gpuwatch and the standard library.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, json.dumps([_ROOT, *paths]), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def send(self, content: bytes, end: float) -> None:
        """Sends a frame until a time of the monotonic clock."""
        view = memoryview(_LENGTH.pack(len(content)) + content)
        while view:
            _wait_for(self._to.fileno(), select.POLLOUT, end)
            with suppress(BlockingIOError):
                view = view[os.write(self._to.fileno(), view) :]

    def receive(self, longest: int, end: float) -> bytes:
        """The next frame."""
        (size,) = _LENGTH.unpack(self._receive(_LENGTH.size, end))
        if size > longest:
            raise OSError(f"an answer of {size} bytes")
        return self._receive(size, end)

    def _receive(self, size: int, end: float) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            _wait_for(self._from.fileno(), select.POLLIN, end)
            with suppress(BlockingIOError):
                part = os.read(self._from.fileno(), min(size, 1 << 16))
                if not part:
                    raise BrokenPipeError("the child has ended")
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def end(self, patience_seconds: float = 0.0) -> None:
        """Ends it, by force where it takes longer than that. Idempotent."""
        for file in (self._to, self._from):
            with suppress(OSError):
                file.close()
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Parent:
    """The child's side: the standard input and output of this process."""

    def __init__(self, memory_bytes: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        self._memory_bytes = memory_bytes
        self._from, self._to = sys.stdin.buffer, sys.stdout.buffer

    def receive(self, idle_seconds: float | None = IDLE_SECONDS) -> bytes | None:
        """The next frame; None where the parent ends or is silent for that long."""
        if not select.select([self._from], [], [], idle_seconds)[0]:
            return None
        head = self._from.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack(head)
        content = self._from.read(size)
        return content if len(content) == size else None

    def send(self, content: bytes) -> None:
        """Sends a frame."""
        self._to.write(_LENGTH.pack(len(content)) + content)
        self._to.flush()

    def is_used_up(self) -> bool:
        """Whether this process has used so much memory that the next text could fail for this one's sake."""
        # Not ru_maxrss: across fork and exec that begins with the parent's size.
        status = Path("/proc/self/status").read_bytes()
        peak_kib = int(status.partition(b"\nVmHWM:")[2].split(None, 1)[0] or 0)
        return peak_kib * 1024 > self._memory_bytes // 4


def limit_cpu(seconds: float) -> None:
    """Ends this process after so much more CPU time, 0 for no limit: no parser can be asked to stop."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _wait_for(file: int, event: int, end: float) -> None:
    ready = select.poll()
    ready.register(file, event)
    if not ready.poll(max(0.0, 1e3 * (end - time.monotonic()))):
        raise TimeoutError
