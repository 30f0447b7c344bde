"""The GPUs, through a child process that the driver may hang or crash.

The child makes all NVML calls (see `child`). This source reads its lines; when they stop it says so after a second,
kills the child and starts another. What the monitor's thread does here never waits.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, NvmlState, Sample
from gpuwatch.sources.nvml.process import (
    MOST_GPUS,
    Activity,
    Child,
    ChildProcess,
    Message,
    default_command,
    environment,
)
from gpuwatch.sources.nvml.wire import LIBRARY

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
            yield self._state("failing", f"The process that asks NVML cannot be started: {error}.", now_ns)
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
            cause = f"was ended by {_signal_name(-code)}{where}"
        else:
            cause = f"ended with code {code}{where}: {error or 'no message'}"
        reason = f"The process that asks NVML {cause}; the next one starts in {delay:.1f} s."
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
        yield self._state("stale", f"{cause}; another process asks in {delay:.1f} s.", now_ns)

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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
