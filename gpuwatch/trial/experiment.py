"""The order of a trial: a first run, then all arms alternately, whether their changes took effect, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from gpuwatch.trial.changes import BATCH_SIZE, LOADER, PLACEHOLDER, Arm, Change, Place, TrialError, command_of
from gpuwatch.trial.results import ArmResult, Failure, Judgement, Metric, Prediction, RunResult, Steady, judge

OnProgress = Callable[[Steady | None], None]


class Runs(Protocol):
    """What makes the runs."""

    def probe(self, arms: tuple[Arm, ...], on_progress: OnProgress) -> tuple[RunResult, dict[Arm, Prediction]]:
        """A run as it is that does not count, and what is promised for the arms."""

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: OnProgress) -> RunResult:
        """One run of an arm."""


class Narrator(Protocol):
    """Reports the progress to the user."""

    def begins(self, arm: Arm, place: int, of: int) -> OnProgress:
        """A run begins: place 0 is the probe. Returns what is called about once a second."""

    def ended(self, run: RunResult) -> None:
        """The run that had begun has ended."""


@dataclass(slots=True)
class Experiment:
    """All runs of a trial.

    Args:
        arms: the program as it is first.
        runs_per_arm: how often each is run.
        min_effect: the least change that is called one.
        command: the program, to recognise an arm that changes nothing.
        environment: its usual one.
    """

    arms: tuple[Arm, ...]
    runs_per_arm: int
    min_effect: float
    command: Sequence[str]
    environment: Mapping[str, str]
    probe: RunResult | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    _promised: dict[Arm, Prediction] = field(default_factory=dict)
    _runs: dict[Arm, list[RunResult]] = field(default_factory=dict)
    _ineffective: dict[Arm, tuple[str, ...]] = field(default_factory=dict)
    _closed: set[Arm] = field(default_factory=set)

    def perform(self, runs: Runs, narrator: Narrator) -> None:
        """Makes the runs, up to the end or to the user's wish.

        Raises:
            TrialError: the program as it is gives no figure, or does already all that is to be tried.
        """
        total = len(self.arms) * self.runs_per_arm
        self.probe, self._promised = runs.probe(self.arms, narrator.begins(Arm(), 0, total))
        narrator.ended(self.probe)
        if self._stopped_by(self.probe):
            return
        self._leave_out_what_is_so(self.probe)
        at = self._place(self.probe)
        total = len(self.arms) * self.runs_per_arm
        for place, arm in enumerate(self._alternating()):
            run = runs.run(arm, at, place, narrator.begins(arm, place + 1, total))
            narrator.ended(run)
            self._runs.setdefault(arm, []).append(run)
            if self._stopped_by(run, arm):
                return
            self._judge_effect(arm, run)

    def results(self) -> tuple[Metric, tuple[ArmResult, ...]]:
        """What the speeds were measured in, and each arm with its verdict."""
        metric: Metric = "samples_per_second"
        counted = [run for runs in self._runs.values() for run in runs if run.counts]
        if any(run.steady is not None and run.steady.samples_per_second is None for run in counted):
            metric = "steps_per_second"
        plain = [ArmResult(arm, tuple(self._runs.get(arm, ())), Judgement("-")) for arm in self.arms]
        rates = [each.rates(metric) if not self._is_void(each.arm) else [] for each in plain]
        judged = judge(rates[0], rates[1:], self.min_effect)
        return metric, tuple(
            self._judged(each, judgement) for each, judgement in zip(plain, (Judgement("-"), *judged), strict=True)
        )

    def _judged(self, each: ArmResult, judgement: Judgement) -> ArmResult:
        if self._is_void(each.arm):
            judgement = Judgement("did not take effect")
        elif each.failure is not None and not any(run.counts for run in each.runs):
            judgement = Judgement("failed")
        ineffective, promised = self._ineffective.get(each.arm, ()), self._promised.get(each.arm)
        return ArmResult(each.arm, each.runs, judgement, ineffective, promised)

    def _alternating(self) -> Iterator[Arm]:
        """Forwards, then backwards, so that what grows or wears off during the trial meets all arms alike."""
        for turn in range(self.runs_per_arm):
            for arm in self.arms if turn % 2 == 0 else self.arms[::-1]:
                if arm not in self._closed:
                    yield arm

    def _stopped_by(self, run: RunResult, arm: Arm | None = None) -> bool:
        """Whether the trial ends with this run: by the user, or because there is nothing to compare with."""
        if run.interrupted:
            self.interrupted = True
            return True
        if run.failure is None:
            return False
        if arm is not None:
            self._closed.add(arm)
        is_first = arm is None or arm == self.arms[0]
        if is_first and not any(each.counts for each in self._runs.get(self.arms[0], ())):
            raise nothing_to_compare(run.failure)
        return False

    def _leave_out_what_is_so(self, probe: RunResult) -> None:
        same = [arm for arm in self.arms[1:] if already_so(arm, probe, self.command, self.environment)]
        self.arms = tuple(arm for arm in self.arms if arm not in same)
        for arm in same:
            self.notes.append(f"{arm.label} is what the program does already: that is the first arm")
        if len(self.arms) == 1:
            raise TrialError(
                f"there is nothing to compare: the program already does {' and '.join(arm.label for arm in same)}"
            )

    def _place(self, probe: RunResult) -> Place | None:
        place = loader_place(probe)
        if place is None and probe.loader is not None and any(_sets_loader(arm) for arm in self.arms):
            self.notes.append(EVERY_LOADER)
        return place

    def _judge_effect(self, arm: Arm, run: RunResult) -> None:
        """An arm of which nothing took effect is not run again: it would be the first arm under another name."""
        if run.failure is not None or arm in self._ineffective:
            return
        missing = ineffective(arm, run)
        self._ineffective[arm] = tuple(f"{change} did not take effect: {reason}" for change, reason in missing)
        if self._is_void(arm):
            self._closed.add(arm)

    def _is_void(self, arm: Arm) -> bool:
        return bool(arm.changes) and len(self._ineffective.get(arm, ())) == len(arm.changes)


def nothing_to_compare(failure: Failure) -> TrialError:
    """What ends a trial of a program that fails as it is."""
    printed = "".join(f"\n  {line}" for line in failure.last_lines)
    return TrialError(
        f"the unchanged program gives no figure to compare with: {failure.reason}"
        + (f"; its last lines:{printed}" if printed else "; it printed nothing")
    )


EVERY_LOADER = "where the training's DataLoader is built could not be seen, so all DataLoaders were changed"


def loader_place(probe: RunResult) -> Place | None:
    """Where the training's DataLoader is built, as the run that does not count shows it."""
    loader = probe.loader
    if loader is None or loader.file is None or loader.line is None:
        return None
    return loader.file, loader.line


def _sets_loader(arm: Arm) -> bool:
    return any(change.name in LOADER for change in arm.changes)


_TF32 = ("high", "medium")


def ineffective(arm: Arm, run: RunResult) -> tuple[tuple[Change, str], ...]:
    """The changes that did not take effect in the run, each with the reason."""
    found = [(change, _missing(change, run)) for change in arm.changes]
    return tuple((change, reason) for change, reason in found if reason is not None)


def already_so(arm: Arm, probe: RunResult, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the program as it is does all that the arm asks for."""
    return all(_is_so(change, probe, command, environment) for change in arm.changes)


def _missing(change: Change, run: RunResult) -> str | None:
    facts = run.facts
    if change.name == "env.OMP_NUM_THREADS" and facts is not None and facts.torch_threads is not None:
        is_so = str(facts.torch_threads) == change.value
        return None if is_so else f"the program sets torch to {facts.torch_threads} threads itself"
    if facts is None or change.name == PLACEHOLDER or change.name.startswith(("env.", "arg.")):
        return None  # given to every process that starts: whether it respects them is its own affair
    if change.name in LOADER | {BATCH_SIZE}:
        return _missing_of_loader(change, facts, run.loader)
    if change.name == "compile":
        wanted, seen = change.value, facts.model.compiled
        return None if seen is wanted else ("nothing was compiled" if wanted else "something was compiled anyway")
    if facts.device == "cpu":
        return "it trained on the CPU"
    if change.name == "non_blocking":
        return None if "non_blocking" in facts.overrides else "no copy of pinned memory to the GPU was seen"
    return (
        None if _switch_is(change, facts.model) else "the program sets it to another value after its optimizer is built"
    )


def _missing_of_loader(change: Change, facts: RunFacts, loader: LoaderFacts | None) -> str | None:
    if loader is None:
        return "no DataLoader was read in training"
    if change.name in ("prefetch_factor", "persistent_workers") and not loader.num_workers and change.value:
        return "there are no workers"
    if change.name not in facts.overrides:
        return "the training's DataLoader is not built where it was seen to be built"
    live = getattr(loader, change.name)
    if live != change.value:
        had = "has no such setting in this version of torch" if live is None else f"has {change.name}={live}"
        return f"the training's DataLoader {had}"
    if change.name == "pin_memory" and change.value and facts.device == "cpu":
        return "it trained on the CPU, which pins nothing"
    return None


def _is_so(change: Change, probe: RunResult, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    kind, _, rest = change.name.partition(".")
    if kind == "env":
        return environment.get(rest) == str(change.value)
    if kind == "arg":
        return command_of(Arm((change,)), command) == list(command)
    if change.name in LOADER:
        loader = probe.loader
        return loader is not None and getattr(loader, change.name) == change.value
    if probe.facts is None or change.name == "non_blocking":
        return False
    if change.name == "compile":
        return probe.facts.model.compiled is change.value
    return _switch_is(change, probe.facts.model)


def _switch_is(change: Change, model: ModelFacts) -> bool:
    if change.name == "tf32":
        return model.float32_matmul_precision is not None and (
            (model.float32_matmul_precision in _TF32) is change.value
        )
    return model.cudnn_benchmark is change.value
