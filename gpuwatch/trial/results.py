"""What a trial hands to its printers: frozen, complete, without a process or a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuwatch.diagnosis.finding import Gain
from gpuwatch.samples import LoaderFacts, RunFacts
from gpuwatch.statistics.interval import Interval, log_ratio_interval
from gpuwatch.trial.changes import Arm
from gpuwatch.trial.meter import Steady

Verdict = Literal[
    "faster", "slower", "no detectable change", "too small to matter", "anecdote", "did not take effect", "failed", "-"
]
"""Of an arm against the first one; "-" where nothing was measured."""

Metric = Literal["samples_per_second", "steps_per_second"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that gave no figure: why, and the last lines it printed. The exit code is negative for a signal."""

    reason: str
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warmth:
    """The hottest of a run's GPUs while steps were counted: its mean, and what slowed it down in how many polls."""

    celsius: float | None
    polls: int
    slowed_polls: int
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of the program. `place` counts all runs of the trial, from 0; the look at the beginning is none."""

    place: int
    steady: Steady | None
    facts: RunFacts | None
    failure: Failure | None = None
    warmth: Warmth | None = None
    interrupted: bool = False

    @property
    def counts(self) -> bool:
        """Whether its speed goes into the comparison."""
        return self.failure is None and not self.interrupted and self.steady is not None

    @property
    def loader(self) -> LoaderFacts | None:
        """The loader it trained from."""
        loaders = self.facts.loaders if self.facts is not None else ()
        return next((loader for loader in loaders if loader.role == "train"), None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What may be said of an arm's speed against the first arm's.

    `interval` is that of one comparison by itself; where there are several arms, the verdict asks for more (Holm).
    `detectable` is the least change, 0.03 for 3 %, that so many runs with such scatter show in four of five trials.
    """

    verdict: Verdict
    ratio: float | None = None
    interval: Interval | None = None
    detectable: float | None = None


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm with its runs, and what they say."""

    arm: Arm
    runs: tuple[RunResult, ...]
    judgement: Judgement
    ineffective: tuple[str, ...] = ()  # a sentence per change that did not take effect
    predicted: Gain | None = None
    predicted_by: str | None = None  # the rule

    @property
    def failure(self) -> Failure | None:
        """Of the run that ended the arm."""
        return next((run.failure for run in self.runs if run.failure is not None), None)

    def rates(self, metric: Metric) -> list[float]:
        """The speed of each run that counts."""
        found = [getattr(run.steady, metric) for run in self.runs if run.counts]
        return [rate for rate in found if rate is not None]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """All arms, the program as it is first."""

    command: tuple[str, ...]
    metric: Metric
    runs_per_arm: int
    seconds: float | None
    steps: int | None
    min_effect: float
    arms: tuple[ArmResult, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    scratch: bool = False
    patch: bytes = b""
    by_hand: tuple[str, ...] = ()  # what of the best arm no patch can hold

    @property
    def best(self) -> ArmResult | None:
        """The quickest of the arms that are faster for sure."""
        faster = [each for each in self.arms if each.judgement.verdict == "faster"]
        return max(faster, key=lambda each: each.judgement.ratio or 0.0, default=None)

    @property
    def like_best(self) -> tuple[ArmResult, ...]:
        """The other faster arms that may be as quick as the best one."""
        best = self.best
        if best is None:
            return ()
        others = [each for each in self.arms if each.judgement.verdict == "faster" and each is not best]
        against = [(each, log_ratio_interval(each.rates(self.metric), best.rates(self.metric))) for each in others]
        return tuple(each for each, interval in against if interval is None or interval.spans_no_change)

    @property
    def compares(self) -> bool:
        """Whether any arm could be compared with the first."""
        return any(each.judgement.ratio is not None for each in self.arms[1:])
