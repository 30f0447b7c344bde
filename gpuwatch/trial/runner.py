"""Runs an arm in a fresh process: starts it, watches it with its own monitor until it has trained enough, ends it.

How fast it trains once it has settled comes from its own steps.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from types import TracebackType

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.monitor import Monitor, Source
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.numbers import byte_size, signal_name
from gpuwatch.procfs import keyed_int, read_all, read_once, read_status
from gpuwatch.samples import RunFacts
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.figures import StepSums, run_rate
from gpuwatch.timeline.runs import sums_of_rows
from gpuwatch.timeline.steps import head_batches
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial import process_guard
from gpuwatch.trial.changes import Arm, Place, TrialError, command_of, environment_of, for_scratch, overrides_of
from gpuwatch.trial.results import Failure, Prediction, RunResult, Steady, Thermal, Usage, predict
from gpuwatch.tune import is_out_of_memory_text

OnProgress = Callable[[Steady | None], None]
_WINDOW_SECONDS = 60.0

LEAST_STEPS = 10
"""However long they take, this many steps make a figure."""
SETTLED_AT_LATEST = 100
"""The step from which on a run counts, settled or not."""


@dataclass(slots=True)
class Runner:
    """Runs arms one at a time.

    Args:
        command: the program as it is.
        environment: its usual one.
        hooked: puts the hook into an environment.
        enough: how long each run is watched.
        scratch: whether each runs in an empty folder.
        stopping: the user's wish to end it.
    """

    command: list[str]
    environment: Mapping[str, str]
    hooked: Callable[[dict[str, str]], dict[str, str]]
    enough: Enough
    scratch: bool
    stopping: Stopping
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="gpuwatch-trial-")
    )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def probe(self, arms: tuple[Arm, ...], on_progress: OnProgress) -> tuple[RunResult, dict[Arm, Prediction]]:
        """A first run as it is, and what the rules promise for each arm."""
        run, scene, findings = self._first(self.enough, on_progress)
        found = {arm: predict(arm, scene, findings) for arm in arms}
        return run, {arm: each for arm, each in found.items() if each is not None}

    def look(self, on_progress: OnProgress) -> tuple[RunResult, tuple[Finding, ...]]:
        """A first run as it is, long enough for the rules to judge it, and what they find in it."""
        seconds, steps = max(self.enough.seconds or 0.0, LOOK_SECONDS), max(self.enough.steps or 0, LOOK_STEPS)
        enough = replace(self.enough, seconds=seconds, steps=steps, most_seconds=max(seconds, LOOK_MOST_SECONDS))
        run, _, findings = self._first(enough, on_progress)
        return run, findings

    def _first(self, enough: Enough, on_progress: OnProgress) -> tuple[RunResult, Scene | None, tuple[Finding, ...]]:
        """It does not count: with all readings it costs a little, and the files it reads are in memory after it."""
        from gpuwatch.monitor.wiring import live_monitor

        scene: Scene | None = None
        findings: tuple[Finding, ...] = ()

        def at_end(monitor: Monitor) -> None:
            nonlocal scene, findings
            scene = monitor.final_scene(_WINDOW_SECONDS)
            findings = monitor.snapshot().findings

        monitor = live_monitor(hook_folder=self._meeting_place())
        run = self._watched(Arm(), None, monitor, -1, enough, on_progress, at_end)
        return run, scene, findings

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: OnProgress) -> RunResult:
        """One run that counts: only its steps and the GPUs are watched, for every arm alike."""
        from gpuwatch.sources.hook_link.source import HookLinkSource
        from gpuwatch.sources.nvml.source import NvmlSource

        sources: list[Source] = [NvmlSource(1.0), HookLinkSource(self._meeting_place())]
        monitor = Monitor(sources, origin=Origin("live", "TRIAL"), clock=SystemClock())
        return self._watched(arm, at, monitor, place, self.enough, on_progress, lambda monitor: None)

    def _watched(
        self,
        arm: Arm,
        at: Place | None,
        monitor: Monitor,
        place: int,
        enough: Enough,
        on_progress: OnProgress,
        at_end: Callable[[Monitor], None],
    ) -> RunResult:
        try:
            if self.stopping.asked:
                return RunResult(place, None, None, interrupted=True)
            command = command_of(arm, self.command)
            environment = environment_of(arm, self.environment, self._meeting_place())
            if self.scratch:
                command, environment = for_scratch(command, environment)
            environment = self.hooked(environment)
            overrides = overrides_of(arm, at)
            if overrides is not None:
                environment["GPUWATCH_OVERRIDES"] = overrides
            with Training(command, environment, scratch=self.scratch, meeting_place=self._meeting_place()) as training:
                return watch_run(
                    training, monitor, enough, self.stopping, place=place, on_progress=on_progress, at_end=at_end
                )
        finally:
            monitor.stop()

    def _meeting_place(self) -> Path:
        return Path(self._folder.name)


PATIENCE_SECONDS = 600.0
"""Without a step for so long, a run counts as failed: models and data sets of terabytes take minutes to load."""


ENOUGH_STEPS = 30
"""A run that ends before its time counts if it has made this many settled steps."""


LOOK_SECONDS = 10.0
"""Of settled training, at least, before the rules are asked: some judge 8 s and more."""
LOOK_STEPS = 40
"""The rules judge 30, and report what two evaluations find."""
LOOK_MOST_SECONDS = 60.0
"""They judge a minute, however few steps it has."""


_LAST_WORDS_NS = SECOND_NS


_DESCRIBED_NS = 2 * SECOND_NS
"""So long, after it has settled, a run waits for what its hook says of the DataLoader: that comes a second late."""


_HARMFUL = frozenset({"thermal", "power brake", "HW slowdown"})
"""What slows a GPU down because of how it was before; a power limit slows all arms alike."""


@dataclass(slots=True)
class Stopping:
    """The user's wish to stop, as signal handlers set it."""

    asked: bool = False
    monitor: Monitor | None = None

    def __call__(self) -> None:
        """Lets the run that is going on end."""
        self.asked = True
        if self.monitor is not None:
            self.monitor.stop()


@dataclass(frozen=True, slots=True)
class Enough:
    """When a run has been watched long enough: training seconds, or steps; and how long to wait for a step.

    With `most_seconds` of training it has been in any case.

    `host_bytes`: the memory of the host at which a run is ended; infinite where it is only measured, None where it is
    not even that, for to read it holds up a process that allocates.
    """

    seconds: float | None
    steps: int | None = None
    patience_seconds: float = PATIENCE_SECONDS
    host_bytes: float | None = None
    most_seconds: float | None = None


@dataclass(slots=True)
class _Polls:
    """The polls of the run's GPUs while steps were counted."""

    celsius: list[float] = field(default_factory=list)
    utilization: list[float] = field(default_factory=list)
    used_bytes: int | None = None
    total_bytes: int | None = None
    polls: int = 0
    slowed: Counter[str] = field(default_factory=Counter)

    def see(self, snapshot: Snapshot) -> None:
        """Looks at the hottest GPU of the runs, of the machine where they name none."""
        used = {index for run in snapshot.runs for index in run.gpu_indices}
        gpus = [gpu for gpu in snapshot.gpus if gpu.latest is not None and (not used or gpu.facts.index in used)]
        if not gpus:
            return
        self.polls += 1
        known = [gpu.latest.temperature_celsius for gpu in gpus if gpu.latest is not None]
        warm = [each for each in known if each is not None]
        if warm:
            self.celsius.append(max(warm))
        reasons = {word for gpu in gpus for word in gpu.throttled_by if word in _HARMFUL}
        self.slowed.update(reasons)
        busy = [gpu.latest.utilization_percent for gpu in gpus if gpu.latest is not None]
        if None not in busy:
            self.utilization.append(fmean(each for each in busy if each is not None))
        for gpu in gpus:
            taken = gpu.latest.memory_used_bytes if gpu.latest is not None else None
            if taken is not None and taken >= (self.used_bytes or 0):
                self.used_bytes, self.total_bytes = taken, gpu.facts.memory_total_bytes

    def thermal(self) -> Thermal | None:
        """None where there is no GPU."""
        if not self.polls:
            return None
        slowed_polls = max(self.slowed.values(), default=0)
        return Thermal(
            fmean(self.celsius) if self.celsius else None, self.polls, slowed_polls, tuple(sorted(self.slowed))
        )


def watch_run(
    training: Training,
    monitor: Monitor,
    enough: Enough,
    stopping: Stopping,
    *,
    place: int,
    on_progress: Callable[[Steady | None], None],
    at_end: Callable[[Monitor], None] = lambda monitor: None,
) -> RunResult:
    """Watches a run that has just been started, and ends it.

    Args:
        training: the run.
        monitor: that its trainers meet, not yet running; it is stopped with the run.
        enough: when it may end.
        stopping: the user's wish to end it before.
        place: of the run in the trial.
        on_progress: called about once a second with what has been counted.
        at_end: called before the run is ended, with all that was seen of it.
    """
    meter = Meter(monitor.timeline, enough.seconds, enough.steps, enough.most_seconds)
    polls, host = _Polls(), _HostPeak(training, enough.host_bytes)
    started_ns, oom_kills = time.monotonic_ns(), _oom_kills()

    def on_tick(snapshot: Snapshot) -> None:
        if meter.began_ns is not None:
            polls.see(snapshot)
        host.read()
        on_progress(meter.steady())

    def is_over() -> bool:
        meter.update()
        quiet_ns = time.monotonic_ns() - (meter.last_step_ns or started_ns)
        described_ns = (meter.began_ns or started_ns) + _DESCRIBED_NS
        is_full = meter.is_full and (meter.is_described or time.monotonic_ns() >= described_ns)
        is_stuck = quiet_ns > enough.patience_seconds * SECOND_NS
        return host.excess is not None or is_full or is_stuck or training.exit_code is not None

    stopping.monitor = monitor
    try:
        if not stopping.asked:
            monitor.run_until(None, on_tick=on_tick, stop=is_over)
        exit_code = training.exit_code
        if exit_code is not None and not stopping.asked:  # what it sent last is still to be read
            monitor.run_until(time.monotonic_ns() + _LAST_WORDS_NS, stop=lambda: _all_ended(monitor))
            meter.update()
        at_end(monitor)
        facts, steady = meter.facts, meter.steady()
        usage = _usage(monitor.timeline, polls, host)
        training.end()
    finally:
        stopping.monitor = None
        monitor.stop()
    failure = host.excess
    if failure is None and not stopping.asked and not meter.is_full:
        killed = _oom_kills() - oom_kills
        failure = _failure(training, exit_code, steady, facts is not None, enough, oom_kills=killed)
    interrupted = stopping.asked and not meter.is_full
    return RunResult(place, steady, facts, failure, polls.thermal(), interrupted=interrupted, usage=usage)


def _usage(timeline: Timeline, polls: _Polls, host: _HostPeak) -> Usage:
    with timeline.lock:
        memory = [totals for each in timeline.trainers.values() if (totals := each.memory.totals(0, 0)) is not None]
    return Usage(
        utilization_percent=fmean(polls.utilization) if polls.utilization else None,
        gpu_used_bytes=polls.used_bytes,
        gpu_total_bytes=polls.total_bytes,
        allocated_bytes=max((each.allocated_peak_bytes or 0 for each in memory), default=0) or None,
        out_of_memory_count=max((each.out_of_memory or 0 for each in memory), default=None),
        reserved_bytes=max((each.reserved_peak_bytes or 0 for each in memory), default=0) or None,
        host_bytes=host.peak_bytes or None,
    )


@dataclass(slots=True)
class _HostPeak:
    """The memory of the host that a run takes: pages that processes share count once.

    What one process had for a moment between two readings is in its own peak, which the kernel keeps.
    """

    training: Training
    limit_bytes: float | None  # None: it is not read
    peak_bytes: int = 0

    @property
    def excess(self) -> Failure | None:
        """Why the run is ended, where it takes more than it may."""
        if self.limit_bytes is None or self.peak_bytes <= self.limit_bytes:
            return None
        taken, limit = byte_size(self.peak_bytes), byte_size(self.limit_bytes)
        return Failure(f"it took {taken} of memory, more than the budget of {limit}", out_of_memory=True)

    def read(self) -> None:
        """Takes a reading, about 1 ms for each GB of a process."""
        if self.limit_bytes is None:
            return
        total, beyond = 0, 0
        for pid in self.training.members():
            rollup, status = read_once(f"/proc/{pid}/smaps_rollup"), read_status(pid)
            total += (keyed_int(rollup, b"Pss:") or 0) if rollup else 0
            with contextlib.suppress(KeyError, ValueError):
                beyond = max(beyond, int(status["VmHWM"].split()[0]) - int(status["VmRSS"].split()[0]))
        self.peak_bytes = max(self.peak_bytes, 1024 * (total + beyond))


def _all_ended(monitor: Monitor) -> bool:
    with monitor.timeline.lock:
        return all(each.ended is not None for each in monitor.timeline.trainers.values())


def _failure(
    training: Training,
    exit_code: int | None,
    steady: Steady | None,
    is_hooked: bool,
    enough: Enough,
    *,
    oom_kills: int,
) -> Failure | None:
    """Why the run gives no figure; None where it ended by itself and gives one."""
    lines = training.last_lines()
    if exit_code is None:
        seen = (
            "its hook reported: it loads or hangs (--patience waits longer), or it steps without a torch optimizer "
            "(call gpuwatch.step() once per step)"
            if is_hooked
            else "no hook reported from it: it does not import torch, or its launcher drops PYTHONPATH (sudo, docker)"
        )
        return Failure(
            f"it made no training step for {enough.patience_seconds:.0f} s and was stopped; {seen}", None, lines
        )
    memory = _what_ran_out(exit_code, "\n".join(lines), oom_kills)
    if memory is not None:
        return Failure(f"it ran out of {memory}", exit_code, lines, out_of_memory=True)
    if exit_code < 0:
        return Failure(f"it was killed by {signal_name(-exit_code)}", exit_code, lines)
    if exit_code > 0:
        return Failure(f"it ended with exit code {exit_code}", exit_code, lines)
    wanted = min(ENOUGH_STEPS, enough.steps or ENOUGH_STEPS)
    if steady is not None and steady.steps >= wanted:
        return None
    steps = steady.steps if steady is not None else 0
    reason = f"it ended by itself after {steps} settled steps, and a figure needs {wanted}: let it train longer"
    return Failure(reason, exit_code, lines)


def _what_ran_out(exit_code: int, printed: str, oom_kills: int) -> str | None:
    """Which memory a program lacked that failed; None where it failed of something else."""
    if oom_kills and (exit_code == -signal.SIGKILL or (exit_code and "killed by signal: Killed" in printed)):
        return "the host's memory: the kernel's OOM killer ended it"
    if exit_code and is_out_of_memory_text(printed):
        return "the GPU's memory" if "CUDA" in printed or "HIP" in printed else "the host's memory"
    return None


def _oom_kills() -> int:
    """How many processes the kernel's OOM killer has ended since it started, on the whole machine."""
    return keyed_int(read_all("/proc/vmstat") or b"", b"oom_kill ") or 0


GRACE_SECONDS = 10.0
"""What a program gets to end after SIGINT, and once more after SIGTERM."""


_LAST_LINES = 15


_TAIL_BYTES = 64 * 1024


class Training:
    """A process group of its own, so that Ctrl-C in the terminal reaches the trial and not the program behind its back.

    It does not outlive the trial, however that ends: see `process_guard`.

    Args:
        command: what is started.
        environment: all of it.
        scratch: whether it runs in an empty folder of its own, which goes with it.
        meeting_place: the trial's folder for all its runs, which goes with the last one if the trial is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        scratch: bool = False,
        meeting_place: Path | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpuwatch-trial-"))
        self._log = self._folder / "output.log"
        self._place = environment.get("GPUWATCH_DIR")
        work = self._folder / "scratch"
        work.mkdir()
        folders = [self._folder] if meeting_place is None else [self._folder, meeting_place]
        waits, self._guard = os.pipe()
        python = (sys.executable, "-I", "-S")
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*python, process_guard.__file__, str(waits), *map(str, folders), "--", *command],
                    env=environment,
                    cwd=work if scratch else None,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(waits,),
                )
        except OSError as error:
            os.close(self._guard)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise TrialError(f"{command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(waits)

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or not issubclass(kind, KeyboardInterrupt):  # the second Ctrl-C: do not wait
                self.end()
        finally:
            self._kill_group(signal.SIGKILL)
            self._process.wait()
            os.close(self._guard)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        return self._process.poll()

    def end(self) -> None:
        """Asks it to end as Ctrl-C would, then harder; what is left of it is killed."""
        # Started from a shell's background or by nohup it ignores SIGINT, like everything it starts.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        for number in (signal.SIGTERM,) if ignored else (signal.SIGINT, signal.SIGTERM):
            if self._process.poll() is not None:
                break
            self._kill_group(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        self._kill_group(signal.SIGKILL)
        process_guard.send(signal.SIGKILL, self._process.pid, self._place)

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it printed."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            text = log.read().decode("utf-8", "backslashreplace")
        return tuple(deque((line.rstrip() for line in text.splitlines() if line.strip()), maxlen=_LAST_LINES))

    def members(self) -> list[int]:
        """The processes of the run, without the one that guards it."""
        guard = process_guard.__file__.encode()
        every = process_guard.members(self._process.pid, self._place)
        return [pid for pid in every if guard not in (read_once(f"/proc/{pid}/cmdline") or b"")]

    def _kill_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


_PARTS = 8
_MOST_MARKS = 4096


@dataclass(slots=True)
class _Count:
    counted_ns: int | None = None
    began_ns: int = 0
    sums: StepSums = field(default_factory=StepSums)
    marks: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])  # steps and seconds of training

    def add(self, sums: StepSums) -> None:
        """Takes up further steps."""
        self.sums += sums
        mark = (self.sums.steps, self.sums.train)
        if mark[1] > self.marks[-1][1]:
            self.marks.append(mark)
            if len(self.marks) > _MOST_MARKS:
                del self.marks[1::2]

    def error(self) -> float | None:
        """The standard error of the speed as a share, from equal parts; None where the run is too short for them."""
        ideal = [part * self.sums.train / _PARTS for part in range(_PARTS)]
        ends = [*(next(mark for mark in self.marks if mark[1] >= seconds) for seconds in ideal), self.marks[-1]]
        parts = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(ends)]
        if not all(steps > 0 and seconds > 0 for steps, seconds in parts):
            return None
        return stdev(math.log(steps / seconds) for steps, seconds in parts) / math.sqrt(_PARTS)


@dataclass(slots=True)
class Meter:
    """Counts the steps of the trial's trainers from where each has settled.

    A trainer has settled when its warm-up is over and, after that, the batches are gone that its workers had made
    ahead meanwhile: they come at no cost.

    Args:
        timeline: that the trainers' steps come into.
        seconds: of training that are enough; None: whatever `steps` say.
        steps: that are enough.
        most_seconds: of training that are enough, however few its steps.
    """

    timeline: Timeline
    seconds: float | None
    steps: int | None = None
    most_seconds: float | None = None
    _counts: dict[str, _Count] = field(default_factory=dict)

    def update(self) -> None:
        """Takes up the steps that have come: at least every few minutes, for the timeline forgets them."""
        with self.timeline.lock:
            for history in self.timeline.trainers.values():
                if history.is_exact and len(history.steps):
                    self._read(history)

    @property
    def is_full(self) -> bool:
        """Whether every trainer of the run has done what was asked."""
        counts = self._of_run()
        return bool(counts) and all(self._is_enough(count) for count in counts.values())

    @property
    def is_described(self) -> bool:
        """Whether the DataLoader is known that the run waits for, if it waits for one."""
        facts = self.facts
        waits = any(count.sums.wait_steps for count in self._of_run().values())
        return not waits or (facts is not None and any(loader.role == "train" for loader in facts.loaders))

    @property
    def began_ns(self) -> int | None:
        """When the last trainer had settled; None before."""
        counts = self._of_run()
        settled = [count.began_ns for count in counts.values() if count.counted_ns is not None]
        return max(settled) if settled and len(settled) == len(counts) else None

    @property
    def last_step_ns(self) -> int | None:
        """When the newest step of any trainer ended."""
        with self.timeline.lock:
            ends = [each.last_step_ns for each in self.timeline.trainers.values() if each.last_step_ns is not None]
        return max(ends, default=None)

    @property
    def facts(self) -> RunFacts | None:
        """What the run's first trainer says of itself; before any step, any trainer."""
        with self.timeline.lock:
            trainers = self.timeline.trainers
            own = [trainers[name].facts for name in self._of_run() if name in trainers]
            known = [facts for facts in own or [each.facts for each in trainers.values()] if facts is not None]
        return min(known, key=lambda facts: (facts.rank or 0, facts.pid), default=None)

    def steady(self) -> Steady | None:
        """What has been counted so far; None before the first step that counts."""
        counted = [count for count in self._of_run().values() if count.sums.step_seconds]
        facts, counts = self.facts, [count.sums for count in counted]
        if not counts:
            return None
        errors = [count.error() for count in counted]
        are_counted = all(sums.samples and sums.samples_train == sums.train for sums in counts)
        return Steady(
            steps=round(min(sums.steps for sums in counts)),
            seconds=max(sums.train for sums in counts),
            steps_per_second=min(sums.steps / sums.train for sums in counts),
            samples_per_second=run_rate([(False, sums.samples_per_second) for sums in counts]) if are_counted else None,
            batch_size=_batch_size(facts) if facts is not None else None,
            error=max((each for each in errors if each is not None), default=None),
        )

    def _is_enough(self, count: _Count) -> bool:
        if self.most_seconds is not None and count.sums.train >= self.most_seconds:
            return count.sums.steps >= LEAST_STEPS
        if count.sums.steps < max(LEAST_STEPS, self.steps or 0):
            return False
        return self.seconds is None or count.sums.train >= self.seconds

    def _of_run(self) -> dict[str, _Count]:
        """The counts of the trainers that are the run: of several, that with the most steps, and its other ranks."""
        with self.timeline.lock:
            trainers = {name: each for name, each in self.timeline.trainers.items() if name in self._counts}
        if not trainers:
            return {}
        most = max(trainers.values(), key=lambda each: each.steps_total)
        group = most.facts.group if most.facts is not None else None
        return {
            name: self._counts[name]
            for name, each in trainers.items()
            if each is most or (group is not None and each.facts is not None and each.facts.group == group)
        }

    def _read(self, history: TrainerHistory) -> None:
        count = self._counts.setdefault(history.trainer, _Count())
        if count.counted_ns is None:
            count.counted_ns = _settled_ns(history)
            if count.counted_ns is None:
                return
            count.began_ns = count.counted_ns
        steps = history.steps
        count.add(sums_of_rows(steps, slice(steps.since(count.counted_ns), len(steps))))
        count.counted_ns = steps.times[-1]


def _settled_ns(history: TrainerHistory) -> int | None:
    over_ns = history.warm_up.over_ns
    if over_ns is None:  # steps that never agree with each other are what this run is like
        return history.steps.times[-1] if len(history.steps) >= SETTLED_AT_LATEST else None
    loaders = history.facts.loaders if history.facts is not None else ()
    ahead = max((head_batches(loader) for loader in loaders if loader.role == "train"), default=0)
    row = history.steps.until(over_ns) - 1 + ahead
    return history.steps.times[row] if 0 <= row < len(history.steps) else None


def _batch_size(facts: RunFacts) -> int | None:
    return next((loader.batch_size for loader in facts.loaders if loader.role == "train"), None)
