"""The GPUs, through a child process that the driver may hang or crash.

The child makes all NVML calls (see `child`). Its lines are decoded without waiting; when they stop, this source says so
after a second, asks which call the child is in, kills it and starts another. What the monitor's thread does here never
waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

import gpuwatch
from gpuwatch.numbers import signal_name
from gpuwatch.procfs import parse_stat, read_once
from gpuwatch.samples import GpuFacts, GpuHealth, GpuLost, GpuSample, GpuStatus, NvmlState, Sample, XidEvent
from gpuwatch.sources.nvml import wire
from gpuwatch.sources.nvml.wire import LIBRARY

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
    gpus: tuple[GpuFacts, ...] = ()
    statuses: tuple[GpuStatus, ...] = ()


def survey(timeout_seconds: float, env: Mapping[str, str] | None = None) -> NvmlSurvey:
    """Asks once, in a process of its own; a call that hangs or crashes ends the survey and is named."""
    try:
        child = ChildProcess([*default_command(), "--survey"], {}, environment(os.environ if env is None else env))
    except OSError as error:
        return NvmlSurvey(reason=f"The process that calls NVML cannot be started: {error}.")
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
        reason = f"The process that calls NVML ended early (code {code}){where}. {last_words}".strip()
    return replace(found, reason=reason)


def _read(output: bytes) -> NvmlSurvey:
    answers: list[NvmlAnswer] = []
    versions: dict[str, Any] | None = None
    samples: list[object] = []
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
            samples += message.samples if message else ()
    reason = next((sample.reason for sample in reversed(samples) if isinstance(sample, NvmlState)), None)
    return NvmlSurvey(
        tuple(answers),
        **(versions or {}),
        complete=versions is not None,
        reason=reason,
        gpus=tuple(sample for sample in samples if isinstance(sample, GpuFacts)),
        statuses=tuple(sample for sample in samples if isinstance(sample, GpuStatus)),
    )


_FIRST_NS = 60 * 10**9
_LONGEST_NS = 3600 * 10**9
_FUNCTIONS_TO_GIVE_UP = 3
_NEEDED = frozenset({"nvmlInit", "nvmlDeviceGetCount"})


class Blame:
    """Which calls a new child leaves out, because earlier ones hung or died in them: by device and function.

    The driver can hang in one call on one GPU while all else works; without this, each new child would make the same
    call and nothing would ever be shown.
    """

    def __init__(self) -> None:
        self._strikes: dict[tuple[str, str], int] = {}
        self._until: dict[str, dict[str, int]] = {}

    def add(self, device: str, function: str, now_ns: int) -> bool:
        """Leaves the call out: for a minute, twice as long each further time. Returns whether it can be."""
        if device == LIBRARY and function in _NEEDED:
            return False
        strikes = self._strikes[(device, function)] = self._strikes.get((device, function), 0) + 1
        until = now_ns + min(_FIRST_NS << min(strikes - 1, 10), _LONGEST_NS)
        functions = self._until.setdefault(device, {})
        functions[function] = until
        if device != LIBRARY and sum(end > now_ns for end in functions.values()) >= _FUNCTIONS_TO_GIVE_UP:
            functions["*"] = until
        return True

    def avoid(self, now_ns: int) -> dict[str, dict[str, int]]:
        """What the next child is to leave out: device -> function -> until when."""
        current = {
            device: {function: until for function, until in functions.items() if until > now_ns}
            for device, functions in self._until.items()
        }
        return {device: functions for device, functions in current.items() if functions}


class Roster:
    """Turns a child's messages into samples: adds what is known from earlier children."""

    def __init__(self) -> None:
        self._facts: dict[str, GpuFacts] = {}
        self._indices: dict[str, int] = {}
        self._lost: set[str] = set()
        self._unopened: list[tuple[int, str]] = []
        self._known: set[str] = set()  # in any sample; a child that makes up names is not followed forever
        self._earlier = NvmlState(0, "")
        self._current = NvmlState(0, "")
        self.restarts = 0
        self.missed_polls = 0

    def take(self, message: Message, now_ns: int) -> Iterable[Sample]:
        """The samples of one message."""
        for sample in message.samples:
            if isinstance(sample, NvmlState):
                self._current = sample
                yield self.with_totals(sample)
                continue
            uuid = getattr(sample, "uuid", None)
            if uuid is not None and uuid not in self._known:
                if len(self._known) >= MOST_GPUS:
                    continue
                self._known.add(uuid)
            if isinstance(sample, GpuFacts):
                sample = self._remembering(sample)
                self._facts[sample.uuid] = sample
            if isinstance(sample, GpuFacts | GpuSample):
                self._lost.discard(sample.uuid)
            elif isinstance(sample, GpuLost):
                self._lost.add(sample.uuid)
            yield sample
        if message.found and len(self._indices) < MOST_GPUS:
            self._indices[message.found[1]] = message.found[0]
        if message.lost_index:
            self._unopened.append(message.lost_index)
        if message.enumerated is not None:
            # Not before: an index may be that of another GPU than before.
            for index, reason in self._unopened:
                yield from self._lost_at(index, reason, message.enumerated, now_ns)
            self._unopened.clear()
            gone = self._facts.keys() - set(message.enumerated) - self._lost
            for uuid in sorted(gone):
                self._lost.add(uuid)
                yield GpuLost(now_ns, uuid, "the driver no longer lists it")

    def name(self, device: str) -> str:
        """A device of the marker in words: `GPU 2`."""
        if device.startswith("index:"):
            return f"GPU {device.removeprefix('index:')}"
        facts = self._facts.get(device)
        if facts is None:
            return f"GPU {self._indices[device]}" if device in self._indices else device
        return f"{facts.name} of GPU {facts.index}" if facts.mig_parent else f"GPU {facts.index}"

    def child_ended(self) -> None:
        """The next child counts its calls from zero; the session's totals go on."""
        self._earlier = self.with_totals(NvmlState(0, ""))
        self._current = NvmlState(0, "")
        self.missed_polls = 0
        self._unopened.clear()

    def with_totals(self, state: NvmlState) -> NvmlState:
        """A state with the costs of all children so far."""
        return replace(
            state,
            calls=self._earlier.calls + self._current.calls,
            call_seconds=self._earlier.call_seconds + self._current.call_seconds,
            missed_polls=self._earlier.missed_polls + self._current.missed_polls + self.missed_polls,
            dropped_values=self._earlier.dropped_values + self._current.dropped_values,
            restarts=self.restarts,
        )

    def _remembering(self, facts: GpuFacts) -> GpuFacts:
        """Facts do not change, so what a new child could not read is as an earlier one read it."""
        known = self._facts.get(facts.uuid)
        if known is None or not facts.unavailable:
            return facts
        missing = {name: getattr(known, name) for name in facts.unavailable if name not in known.unavailable}
        kept = {name: reason for name, reason in facts.unavailable.items() if name not in missing}
        return replace(facts, **missing, unavailable=kept)

    def _lost_at(self, index: int, reason: str, enumerated: Sequence[str], now_ns: int) -> Iterable[Sample]:
        """A GPU that is lost from the start gets a row of its own, or that of the GPU that was known there."""
        known = [facts for facts in self._facts.values() if facts.index == index and not facts.mig_parent]
        known.sort(key=lambda facts: facts.uuid in enumerated)
        uuid = known[-1].uuid if known else f"GPU-index-{index}"
        if not known:
            facts = GpuFacts(now_ns, uuid, index, f"GPU {index}", unavailable={"name": reason})
            self._facts[uuid] = facts
            yield facts
        if uuid not in self._lost:
            self._lost.add(uuid)
            yield GpuLost(now_ns, uuid, f"it cannot be opened: {reason}")


MOST_OUTSTANDING = 2
"""Children at a time. One in state D cannot be killed, only abandoned; more would pile up (nvitop#139)."""

_LEAST_INTERVAL_SECONDS = 0.1  # 25 ms polls hold the driver's lock 10 s of every 15 (MangoHud PR 2104)
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
_LATE_SECONDS = 0.25
"""A check of the deadline that comes so much later was delayed on our side: the child may have been delayed as well."""
_OWN_CPU_SHARE = 0.5
"""Of the patience, in CPU time: a silent child that is ready to run and has had less of a CPU has waited for one."""
_JITTER = 1.1
_SECOND = 10**9
_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0
_TRUSTED_AFTER_SECONDS = 60.0
_CLOSE_SECONDS = 0.4

_STARTING = (
    "The NVIDIA driver has been starting for over 2 s; without persistence mode it loads each GPU again "
    "(`sudo nvidia-smi -pm 1` keeps it loaded)."
)
_STUCK = (
    "Two processes are stuck inside the NVIDIA driver and cannot be killed (state D), so no third is started: "
    "look at `dmesg | grep NVRM`; usually only a reboot helps."
)


_STARVED = (
    "The process that calls NVML (pid {}) waits for a CPU, and has reported nothing for {:.1f} s: every core that it "
    "may use is busy, so these figures are old."
)


@dataclass(frozen=True, slots=True)
class PollPlan:
    """The child's times in seconds: lanes, retries, patience. Tests have others."""

    slow_seconds: float = 5.0
    rare_seconds: float = 30.0
    retry_seconds: float = 5.0
    init_seconds: float = 30.0
    silence_seconds: float = 1.0
    starting_seconds: float = 2.0


class NvmlSource:
    """All GPUs of the machine.

    `launch` replaces the process altogether: a test seam, as are `command`, `env`, `clock`, `proc_root`, `kernel_log`.
    """

    name = "nvml"

    def __init__(
        self,
        interval_seconds: float = 1.0,
        *,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        command: Sequence[str] | None = None,
        plan: PollPlan | None = None,
        proc_root: Path = Path("/proc"),
        kernel_log: Path | None = Path("/dev/kmsg"),
        launch: Callable[[Mapping[str, Any]], Child] | None = None,
    ) -> None:
        self._interval = max(interval_seconds, _LEAST_INTERVAL_SECONDS)
        self._plan = plan or PollPlan()
        self._clock = clock
        self._proc_root = proc_root
        self._kernel_log = kernel_log
        env = environment(os.environ if env is None else env)
        words = list(command) if command else default_command()
        self._launch = launch or (lambda options: ChildProcess(words, options, env))
        self._selector = selectors.DefaultSelector()
        self._roster = Roster()
        self._blame = Blame()
        self._child: Child | None = None
        self._abandoned: list[Child] = []
        self._failures = 0
        self._start_at = 0
        self._started_at = 0
        self._deadline = 0
        self._restart_in: float | None = None
        self._spoke = False
        self._said_stuck = False
        self._silent_activity: Activity | None = None
        self._was_late = False
        self._heard_ns = 0
        self._closed = False

    def fileno(self) -> int | None:
        """An epoll over whichever child there is now; it stays the same over restarts."""
        return self._selector.fileno()

    def due_ns(self) -> int | None:
        """When a child has to be started, or must have spoken."""
        if self._closed:
            return None
        if self._child is None:
            return self._start_at
        note = self._started_at + int(self._plan.starting_seconds * _SECOND)
        return self._deadline if self._spoke else min(self._deadline, note)

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """What the child has said, and what became of it."""
        if self._closed:
            return []
        self._reap()
        samples: list[Sample] = []
        if self._child is not None:
            samples += self._listen(self._child, now_ns)
        if self._child is None and now_ns >= self._start_at:
            samples += self._start(now_ns)
        return samples

    def close(self) -> None:
        """Kills the child; one that cannot be killed is left behind."""
        if self._closed:
            return
        self._closed = True
        left = [*self._abandoned, *([self._child] if self._child else [])]
        for child in left:
            child.kill()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for child in left:
            child.release(max(0.0, deadline - time.monotonic()))
        self._child, self._abandoned = None, []
        self._selector.close()

    def _start(self, now_ns: int) -> Iterable[Sample]:
        if len(self._abandoned) >= MOST_OUTSTANDING:
            self._start_at = now_ns + _SECOND
            if not self._said_stuck:
                self._said_stuck = True
                yield self._state("stale", _STUCK, now_ns)
            return
        self._said_stuck = False
        options = {
            "interval_seconds": self._interval,
            "slow_seconds": self._plan.slow_seconds,
            "rare_seconds": self._plan.rare_seconds,
            "retry_seconds": self._plan.retry_seconds,
            "init_seconds": self._plan.init_seconds,
            "proc_root": str(self._proc_root),
            "kernel_log": str(self._kernel_log) if self._kernel_log else None,
            "avoid": self._blame.avoid(now_ns),
        }
        try:
            self._child = self._launch(options)
        except OSError as error:
            self._start_at = now_ns + int(self._plan.retry_seconds * _SECOND)
            yield self._state("failing", f"The process that calls NVML cannot be started: {error}.", now_ns)
            return
        for fd in self._child.filenos():
            self._selector.register(fd, selectors.EVENT_READ)
        self._started_at, self._spoke, self._restart_in = now_ns, False, None
        self._silent_activity, self._was_late, self._heard_ns = None, False, now_ns
        self._deadline = now_ns + int((self._plan.init_seconds + self._plan.silence_seconds) * _SECOND)

    def _listen(self, child: Child, now_ns: int) -> Iterable[Sample]:
        for message in child.messages():
            self._deadline = now_ns + self._patience_ns(message)
            self._silent_activity, self._was_late, self._heard_ns = None, False, now_ns
            self._spoke = self._spoke or bool(message.samples)
            self._restart_in = message.restart_in
            yield from self._roster.take(message, now_ns)
        code = child.exit_code()
        if code is not None:
            for message in child.messages():  # written between the first read and the end
                self._restart_in = message.restart_in
                yield from self._roster.take(message, now_ns)
            yield from self._ended(child, code, now_ns)
        elif not self._was_late and now_ns > self._deadline + int(_LATE_SECONDS * _SECOND):
            self._was_late = True
            self._deadline = now_ns + int(self._plan.silence_seconds * _SECOND)
        elif now_ns > self._deadline:
            yield from self._silent(child, now_ns)
        elif not self._spoke and now_ns >= self._started_at + int(self._plan.starting_seconds * _SECOND):
            self._spoke = True
            yield self._state("stale", _STARTING, now_ns)

    def _patience_ns(self, message: Message) -> int:
        return int((message.next_seconds * _JITTER + self._plan.silence_seconds) * _SECOND)

    def _ended(self, child: Child, code: int, now_ns: int) -> Iterable[Sample]:
        last_call, error = child.last_call(), child.error()
        self._part_from(child)
        child.release(0.0)
        if self._restart_in is not None:
            self._start_at = now_ns + int(self._restart_in * _SECOND)
            self._failures = 0
            return
        delay = self._back_off(now_ns)
        where = self._accuse(last_call, now_ns) if code >= 0 or -code in _CRASHES else ""
        if code < 0:
            cause = f"was ended by {signal_name(-code)}{where}"
        else:
            cause = f"ended with code {code}{where}: {error or 'no message'}"
        reason = f"The process that calls NVML {cause}; the next one starts in {delay:.1f} s."
        yield self._state("restarting", reason, now_ns)

    def _silent(self, child: Child, now_ns: int) -> Iterable[Sample]:
        """Tells a driver that hangs from a child that could not run, and replaces the child unless it lacks a CPU."""
        activity, last_call = child.activity(), child.last_call()
        if activity is not None and activity.state == "R":
            before, self._silent_activity = self._silent_activity, self._silent_activity or activity
            had_seconds = activity.cpu_seconds - self._silent_activity.cpu_seconds
            if before is None or had_seconds < _OWN_CPU_SHARE * self._plan.silence_seconds:
                self._deadline = now_ns + int(self._plan.silence_seconds * _SECOND)
                if before is not None:
                    yield self._state("stale", _STARVED.format(child.pid, self._age(now_ns)), now_ns)
                return
        age = self._age(now_ns)
        self._roster.missed_polls += max(1, int(age / self._interval))
        if activity is not None and activity.state in "Tt":
            cause = f"The process that calls NVML (pid {child.pid}) is stopped, by a signal or a debugger"
        elif last_call is None:
            doing = f" (state {activity.state})" if activity is not None else ""
            cause = f"The process that calls NVML (pid {child.pid}) has been silent for {age:.1f} s{doing}, in no call"
        else:
            seconds = max(0.0, now_ns / _SECOND - child.call_began())
            where = self._accuse(last_call, now_ns, f" for {seconds:.1f} s")
            cause = f"The NVIDIA driver has not answered{where}"
        child.kill()
        self._part_from(child)
        self._abandoned.append(child)
        delay = self._back_off(now_ns)
        yield self._state("stale", f"{cause}; another process tries in {delay:.1f} s.", now_ns)

    def _age(self, now_ns: int) -> float:
        """The seconds since the child's last line."""
        return (now_ns - self._heard_ns) / _SECOND

    def _accuse(self, last_call: tuple[str, str] | None, now_ns: int, duration: str = "") -> str:
        """Has the next child leave out the call that this one was in; returns it in words."""
        if last_call is None:
            return ""
        device, function = last_call
        left_out = self._blame.add(device, function, now_ns)
        where = f" in {function}" + ("" if device == LIBRARY else f" on {self._roster.name(device)}")
        return where + duration + (", which is left out for now" if left_out else "")

    def _back_off(self, now_ns: int) -> float:
        if now_ns - self._started_at > _TRUSTED_AFTER_SECONDS * _SECOND:
            self._failures = 0
        delay = min(_FIRST_BACKOFF_SECONDS * 2.0**self._failures, _LONGEST_BACKOFF_SECONDS)
        self._failures += 1
        self._roster.restarts += 1
        self._start_at = now_ns + int(delay * _SECOND)
        return delay

    def _part_from(self, child: Child) -> None:
        for fd in child.filenos():
            self._selector.unregister(fd)
        self._child = None
        self._roster.child_ended()

    def _reap(self) -> None:
        for child in [child for child in self._abandoned if child.exit_code() is not None]:
            child.release(0.0)
            self._abandoned.remove(child)

    def _state(self, status: str, reason: str, now_ns: int) -> NvmlState:
        return self._roster.with_totals(NvmlState(now_ns, status, reason))
