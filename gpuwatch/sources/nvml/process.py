"""One NVML child from outside: started, its lines decoded without waiting, asked for its current call, killed."""

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
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

import gpuwatch
from gpuwatch.procfs import parse_stat, read_once
from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuLost,
    GpuSample,
    GpuStatus,
    NvmlState,
    Sample,
    XidEvent,
)
from gpuwatch.sources.nvml import wire

_CLASSES: Mapping[str, Any] = {
    cls.__name__: cls for cls in (GpuFacts, GpuSample, GpuStatus, GpuHealth, GpuLost, XidEvent, NvmlState)
}
MOST_GPUS = 1024
"""With MIG instances; a node has up to 16 GPUs of 7."""
_MOST_ENTRIES = 256
_LONGEST_TEXT = 4096
_LARGEST_FLOAT = 1e30
_Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
_Device = tuple[int, str] | None
_Uuids = Annotated[tuple[str, ...], Meta(max_length=MOST_GPUS)] | None


@dataclass(frozen=True, slots=True)
class Message:
    """One line of the child's.

    `next_seconds` is within how long it promises the next line. `found` is the index and UUID of a GPU whose
    facts come next, `enumerated` the UUIDs of all devices. `restart_in` means that it ends now and wants
    a successor after this many seconds.
    """

    next_seconds: float
    samples: tuple[Sample, ...] = ()
    found: tuple[int, str] | None = None
    enumerated: tuple[str, ...] | None = None
    lost_index: tuple[int, str] | None = None
    restart_in: float | None = None


def decode(line: bytes) -> Message | None:
    """The message in one line, or None for a line that is broken off, not ours or holds what no field can hold.

    The driver's library runs in the child and can write anything in its place.
    """
    try:
        content = _bounded(json.loads(line))  # msgspec's own reader refuses commands that are no UTF-8
        return Message(
            next_seconds=msgspec.convert(content["next"], _Seconds),
            samples=tuple(msgspec.convert(found, _CLASSES[kind]) for kind, found in content["samples"]),
            found=msgspec.convert(content.get("found"), _Device),
            enumerated=msgspec.convert(content.get("enumerated"), _Uuids),
            lost_index=msgspec.convert(content.get("lost_index"), _Device),
            restart_in=msgspec.convert(content.get("restart_in"), _Seconds | None),
        )
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _bounded(content: Any) -> Any:
    """JSON with its texts and objects cut to what a GPU's values need.

    Raises:
        ValueError: a number has a size that no GPU's value has.
    """
    if isinstance(content, str):
        return content[:_LONGEST_TEXT]
    if isinstance(content, dict):
        return {name[:_LONGEST_TEXT]: _bounded(each) for name, each in islice(content.items(), _MOST_ENTRIES)}
    if isinstance(content, list):
        return [_bounded(each) for each in content]
    largest = 1 << 64 if isinstance(content, int) else _LARGEST_FLOAT
    if isinstance(content, (int, float)) and not abs(content) < largest:  # as NaN is not
        raise ValueError(content)
    return content


_PROGRAM = "from gpuwatch.sources.nvml.child import main; main()"
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
    """A real child. `options` are those of gpuwatch.sources.nvml.wire."""

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
        if wire.EVENT_WAIT.encode() in crashed.partition(b"\n\n")[0]:
            return wire.LIBRARY, wire.EVENT_WAIT
        return wire.read_marker(self._marker)

    def call_began(self) -> float:
        """From the shared memory."""
        return wire.marker_began(self._marker)

    def activity(self) -> Activity | None:
        """From /proc; /proc/PID/task/PID is the main thread alone."""
        stat = parse_stat(read_once(f"/proc/{self.pid}/task/{self.pid}/stat"))
        return None if stat is None else Activity(stat.state, stat.own_ticks / os.sysconf("SC_CLK_TCK"))

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
    """This interpreter. `-m` would load runpy and importlib.util, 0.9 MB; a file is compiled each time, 0.2 MB."""
    return [sys.executable, "-c", _PROGRAM]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the same import path as ours, whatever folder it runs in."""
    env = dict(base)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if env.get(name):
            env[name] = os.pathsep.join(str(Path(entry).absolute()) for entry in env[name].split(os.pathsep) if entry)
    root = Path(gpuwatch.__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # those would come before the standard library
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(root)]))
    env["PYTHONSAFEPATH"] = "1"
    if Path(_WSL_LIBRARIES).is_dir():
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [env.get("LD_LIBRARY_PATH"), _WSL_LIBRARIES]))
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
    os.ftruncate(fd, wire.MARKER_SIZE)
    return fd


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """One NVML function on one GPU: its cost, or why it gives nothing."""

    uuid: str
    index: int
    function: str
    provides: str
    microseconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NvmlSurvey:
    """All functions of the poll plan on all GPUs. `reason` says why it is empty or incomplete."""

    answers: tuple[NvmlAnswer, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    complete: bool = False
    reason: str | None = None


def survey(timeout_seconds: float, env: Mapping[str, str] | None = None) -> NvmlSurvey:
    """Asks once, in a process of its own; a call that hangs or crashes ends the survey and is named."""
    try:
        child = ChildProcess([*default_command(), "--survey"], {}, environment(os.environ if env is None else env))
    except OSError as error:
        return NvmlSurvey(reason=f"The process that asks NVML cannot be started: {error}.")
    ended, output = run_to_end(child, timeout_seconds)
    last_call, last_words = child.last_call(), child.error()
    child.kill()
    child.release(0.4)
    code = child.exit_code()
    found = _read(output)
    if found.complete or found.reason:
        return found
    where = f" in {last_call[1]}" if last_call else ""
    if not ended:
        reason = f"The NVIDIA driver has not answered within {timeout_seconds:g} s{where}."
    else:
        reason = f"The process that asks NVML ended early (code {code}){where}. {last_words}".strip()
    return NvmlSurvey(found.answers, reason=reason)


def _read(output: bytes) -> NvmlSurvey:
    answers: list[NvmlAnswer] = []
    versions: dict[str, Any] | None = None
    reason = None
    for line in output.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if "answer" in content:
            answers.append(NvmlAnswer(**content["answer"]))
        elif "done" in content:
            versions = content["done"]
        else:
            message = decode(line)
            states = [sample for sample in message.samples if isinstance(sample, NvmlState)] if message else []
            reason = next((state.reason for state in states), reason)
    return NvmlSurvey(tuple(answers), **(versions or {}), complete=versions is not None, reason=reason)
