"""One NVML child as the monitor sees it: started, read without waiting, asked where it stood, killed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gpuwatch
from gpuwatch.sources.nvml_child import marker
from gpuwatch.sources.nvml_decode import Message, decode

PROGRAM = Path(marker.__file__).with_name("__main__.py")
_READ_BYTES = 1 << 18
_MOST_READS = 16
"""At a time: a child that writes faster than it is read must not hold the monitor."""
_LONGEST_LINE = 1 << 22
_MOST_LINES = 2000
"""At a time, the others are lost: 16 GPUs of 7 instances write 500 when they start."""
_STDERR_BYTES = 10_000
_WSL_LIBRARIES = "/usr/lib/wsl/lib"


@dataclass(frozen=True, slots=True)
class Activity:
    """What the kernel says of a child's main thread: its state's letter, and the CPU time that it has had."""

    state: str
    cpu_seconds: float


class Child(Protocol):
    """What the supervisor needs of a child; a test may put one in its place that cannot be killed."""

    def filenos(self) -> Sequence[int]:
        """Files to wait for input on."""

    def messages(self) -> list[Message]:
        """Complete lines that are there now."""

    def exit_code(self) -> int | None:
        """As of Popen.poll: negative for a signal, None while it lives."""

    def last_call(self) -> tuple[str, str] | None:
        """(device, function) that it is or was in; after a crash, that of the thread that crashed."""

    def call_began(self) -> float:
        """When `last_call` began, in seconds of CLOCK_MONOTONIC."""

    def activity(self) -> Activity | None:
        """What it is doing; None where that cannot be read."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def error(self) -> str:
        """The last line it wrote to standard error."""

    def kill(self) -> None:
        """SIGKILL; a process in state D dies only when the driver lets it go."""

    def release(self, timeout_seconds: float) -> None:
        """Closes all files and reaps it, if it ends in time."""


class ChildProcess:
    """A real child. `options` are those of gpuwatch.sources.nvml_child.options."""

    def __init__(self, command: Sequence[str], options: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._marker = _shared_memory()
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps({**options, "marker_fd": self._marker})],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[self._marker],
                env=env,
                cwd="/",  # the user's folder may hold a json.py
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        except OSError:
            os.close(self._marker)
            raise
        assert self._process.stdout is not None and self._process.stderr is not None
        self._stdout, self._stderr = self._process.stdout, self._process.stderr
        os.set_blocking(self._stdout.fileno(), False)
        os.set_blocking(self._stderr.fileno(), False)
        self._pending = b""
        self._errors = b""
        self._open = True

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def filenos(self) -> Sequence[int]:
        """Its standard output; the end of that is the end of the child."""
        return [self._stdout.fileno()]

    def messages(self) -> list[Message]:
        """Complete lines that are there now; half of one waits for the rest."""
        self._pending += _available(self._stdout.fileno())
        *lines, self._pending = self._pending.split(b"\n")
        if len(self._pending) > _LONGEST_LINE:
            self._pending = b""
        self._drain_errors()
        return [message for message in map(decode, lines[:_MOST_LINES]) if message is not None]

    def exit_code(self) -> int | None:
        """As of Popen.poll."""
        return self._process.poll()

    def last_call(self) -> tuple[str, str] | None:
        """From the shared memory; a crash in the events' thread is known from faulthandler's words."""
        self._drain_errors()
        _, _, crashed = self._errors.partition(b"Current thread")
        if marker.EVENT_WAIT.encode() in crashed.partition(b"\n\n")[0]:
            return marker.LIBRARY, marker.EVENT_WAIT
        return marker.read(self._marker)

    def call_began(self) -> float:
        """From the shared memory."""
        return marker.began(self._marker)

    def activity(self) -> Activity | None:
        """From /proc; /proc/PID/task/PID is the main thread alone."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/stat", "rb") as file:  # noqa: PTH123 - as in the other readers
                words = file.read().rpartition(b")")[2].split()
            return Activity(words[0].decode(), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError, IndexError):
            return None

    def error(self) -> str:
        """The last line it wrote to standard error, such as an ImportError."""
        self._drain_errors()
        lines = self._errors.decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def kill(self) -> None:
        """SIGKILL, at once: there is nothing to save in it."""
        self._process.kill()

    def release(self, timeout_seconds: float) -> None:
        """Closes all files and reaps it, if it ends in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout_seconds)
        if self._open:
            self._open = False
            self._stdout.close()
            self._stderr.close()
            os.close(self._marker)

    def _drain_errors(self) -> None:
        self._errors = (self._errors + _available(self._stderr.fileno()))[-_STDERR_BYTES:]


def _available(fd: int) -> bytes:
    """What is there to read now, up to 4 MB."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        for _ in range(_MOST_READS):
            chunk = os.read(fd, _READ_BYTES)
            if not chunk:
                break
            found += chunk
    return found


def default_command() -> list[str]:
    """This interpreter, running the child's file: `-m` would load runpy and importlib.util, 0.9 MB."""
    return [sys.executable, str(PROGRAM)]


def environment(base: Mapping[str, str], library_path: Path | None = None) -> dict[str, str]:
    """The child's environment: the same import path as ours, whatever folder it runs in."""
    env = dict(base)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if env.get(name):
            env[name] = os.pathsep.join(str(Path(entry).absolute()) for entry in env[name].split(os.pathsep) if entry)
    root = Path(gpuwatch.__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # those would come before the standard library
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(root)]))
    env["PYTHONSAFEPATH"] = "1"
    libraries = [str(library_path) if library_path else None, env.get("LD_LIBRARY_PATH")]
    if Path(_WSL_LIBRARIES).is_dir():
        libraries.append(_WSL_LIBRARIES)
    if any(libraries):
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return env


def run_to_end(child: ChildProcess, timeout_seconds: float) -> tuple[bool, bytes]:
    """Everything a child prints until it ends; (False, what came so far) if that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.filenos()[0], selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            chunk = os.read(child.filenos()[0], _READ_BYTES)
            if not chunk:
                return True, output
            output += chunk
    return False, output


def _shared_memory() -> int:
    """A file of the marker's size without a name; it ends with the two processes."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("gpuwatch-nvml")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, marker.SIZE)
    return fd
