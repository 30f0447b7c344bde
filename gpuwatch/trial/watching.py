"""Watches one run of the program until it has trained long enough, has failed, or the user has had enough."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.trial.meter import Meter, Steady
from gpuwatch.trial.results import Failure, RunResult, Warmth
from gpuwatch.trial.runner import Training

PATIENCE_SECONDS = 600.0
"""Without a step for so long, a run counts as failed: models and data sets of terabytes take minutes to load."""
ENOUGH_STEPS = 30
"""A run that ends before its time counts if it has made so many settled steps."""
_LAST_WORDS_NS = SECOND_NS
_HARMFUL = frozenset({"heat", "hardware brake"})
"""What slows a GPU down because of how it was before; a power limit slows all arms alike."""


@dataclass(slots=True)
class Stopping:
    """The user's wish to stop, as signal handlers can tell it."""

    asked: bool = False
    monitor: Monitor | None = None

    def __call__(self) -> None:
        """Lets the run that is going on end."""
        self.asked = True
        if self.monitor is not None:
            self.monitor.stop()


@dataclass(frozen=True, slots=True)
class Enough:
    """When a run has been watched long enough: training seconds, or steps; and how long to wait for a step."""

    seconds: float | None
    steps: int | None = None
    patience_seconds: float = PATIENCE_SECONDS


@dataclass(slots=True)
class _Heat:
    """The polls of the run's GPUs while steps were counted."""

    celsius: list[float] = field(default_factory=list)
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

    def result(self) -> Warmth | None:
        """None where there is no GPU."""
        if not self.polls:
            return None
        slowed_polls = max(self.slowed.values(), default=0)
        return Warmth(
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
    meter = Meter(monitor.timeline, enough.seconds, enough.steps)
    heat = _Heat()
    started_ns = time.monotonic_ns()

    def on_tick(snapshot: Snapshot) -> None:
        if meter.began_ns is not None:
            heat.see(snapshot)
        on_progress(meter.steady())

    def is_over() -> bool:
        meter.look()
        quiet_ns = time.monotonic_ns() - (meter.last_step_ns or started_ns)
        return meter.is_full or training.exit_code is not None or quiet_ns > enough.patience_seconds * SECOND_NS

    stopping.monitor = monitor
    try:
        if not stopping.asked:
            monitor.run_until(None, on_tick=on_tick, stop=is_over)
        exit_code = training.exit_code
        if exit_code is not None and not stopping.asked:  # what it sent last is still to be read
            monitor.run_until(time.monotonic_ns() + _LAST_WORDS_NS, stop=lambda: _all_ended(monitor))
            meter.look()
        at_end(monitor)
        facts, steady = meter.facts, meter.steady()
        training.end()
    finally:
        stopping.monitor = None
        monitor.stop()
    failure = None
    if not stopping.asked and not meter.is_full:
        failure = _failure(training, exit_code, steady, facts is not None, enough)
    return RunResult(place, steady, facts, failure, heat.result(), interrupted=stopping.asked and not meter.is_full)


def _all_ended(monitor: Monitor) -> bool:
    with monitor.timeline.lock:
        return all(each.ended is not None for each in monitor.timeline.trainers.values())


def _failure(
    training: Training, exit_code: int | None, steady: Steady | None, is_hooked: bool, enough: Enough
) -> Failure | None:
    """Why the run gives no figure; None where it ended by itself and gives one."""
    lines = training.last_lines()
    if exit_code is None:
        seen = (
            "its hook was heard: it loads or hangs (--patience waits longer), or steps without a torch optimizer (call "
            "gpuwatch.step() once per step)"
            if is_hooked
            else "no hook was heard in it: it does not import torch, or what starts it drops PYTHONPATH (sudo, docker)"
        )
        return Failure(
            f"it made no training step for {enough.patience_seconds:.0f} s and was stopped; {seen}", None, lines
        )
    if exit_code < 0:
        return Failure(f"it was killed by {_signal_name(-exit_code)}", exit_code, lines)
    if exit_code > 0:
        return Failure(f"it ended with exit code {exit_code}", exit_code, lines)
    wanted = min(ENOUGH_STEPS, enough.steps or ENOUGH_STEPS)
    if steady is not None and steady.steps >= wanted:
        return None
    steps = steady.steps if steady is not None else 0
    reason = f"it ended by itself after {steps} settled steps, and {wanted} make a figure: let it train longer"
    return Failure(reason, exit_code, lines)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
