"""What the rules promised for an arm, what the trial measured, and what may be said of it: verdicts and remarks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.loader_queue import LoaderQueue, queue_model
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.advice.workers import LEAST_PROMISE, advise
from gpuwatch.diagnosis.finding import Finding, Fix, Gain
from gpuwatch.diagnosis.rule import RunCase, run_case_of
from gpuwatch.samples import LoaderFacts, RunFacts
from gpuwatch.statistics import CONFIDENCE, Interval, detectable_effect, geometric_mean, holm, log_ratio_interval
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial.changes import Arm

WORKERS = ("workers-zero", "workers-too-few")
"""The rules that choose a number of workers by the same formula."""
QUEUES = ("slow-samples", "bursty-prefetch")
"""The rules that choose a queue by the same model."""
WAITS = "data-starvation"
"""The rule that names one of the causes of a wait, or none."""
_QUEUE = frozenset({"num_workers", "prefetch_factor", "in_order"})
_BESIDE = frozenset({"persistent_workers", "pin_memory", "prefetch_factor"})
"""What a fix may set along with its own change, and an arm may leave out."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The gain of a change, and the rule that promises it."""

    gain: Gain
    rule: str


def predict(arm: Arm, scene: Scene | None, findings: Sequence[Finding]) -> Prediction | None:
    """What was promised for just this change; None where no rule speaks of it."""
    if scene is None or not arm.changes:
        return None
    asked = {change.name: str(change.value) for change in arm.changes}
    blamed = _blamed(findings)
    queued = _of_queue(asked, scene, blamed)
    if queued is not None:
        return queued
    for finding in findings:
        if finding.gain is not None and finding.fix is not None and _is_of(finding.fix, asked):
            return Prediction(finding.gain, finding.rule)
    if blamed not in (None, *WORKERS):
        return None  # what the run waits for is not that workers are too few: their number alone says nothing of it
    gain = _of_workers(asked, scene)
    return None if gain is None else Prediction(gain, WORKERS[0] if _workers_now(scene) == 0 else WORKERS[1])


def _blamed(findings: Sequence[Finding]) -> str | None:
    """The rule that says why the run waits for data, its parent where none does; None where it does not wait."""
    found = {finding.rule: finding for finding in findings}
    queue = next((rule for rule in QUEUES if rule in found), None)
    if queue is not None or WAITS not in found:
        return queue
    cause = next((measure.value for measure in found[WAITS].evidence if measure.name == "cause"), None)
    return str(cause) if cause is not None else WAITS


def _is_of(fix: Fix, asked: dict[str, str]) -> bool:
    """Whether the fix and the arm change the same."""
    settings = fix.trial_settings
    if settings is None:
        return False
    own = {(name, value) for name, value in settings.items() if name not in _BESIDE}
    return own <= {(name, value.lower()) for name, value in asked.items()} <= settings.items()


def _of_queue(asked: dict[str, str], scene: Scene, blamed: str | None) -> Prediction | None:
    """What the model of a loader's queue says of another depth and order; of a number of workers where it is to blame.

    The model vouches for itself: there is none where the batches as they were measured do not come to the loss.
    """
    if blamed is None or not scene.runs or not asked.keys() & _QUEUE or asked.keys() - _QUEUE - _BESIDE:
        return None
    is_queue = blamed in (*QUEUES, WAITS)
    workers = int(asked.get("num_workers", "1"))
    if workers < 1 or ("num_workers" in asked and not is_queue):
        return None
    case, starvation = _starved(scene)
    model = queue_model(case, starvation) if starvation is not None else None
    if model is None or ("num_workers" in asked and advise(case, model.cost).promise is None):
        return None
    queue = LoaderQueue(
        workers=int(asked.get("num_workers", model.present.workers)),
        prefetch=int(asked.get("prefetch_factor", model.present.prefetch)),
        in_order=asked.get("in_order", str(model.present.in_order)) == "True",
    )
    return Prediction(model.gain(queue), blamed if is_queue else WAITS)


def _starved(scene: Scene) -> tuple[RunCase, Starvation | None]:
    """The trial's run, and how much of its time it waits for data."""
    case = run_case_of(scene, scene.runs[0])
    return case, starvation_of(case)


def _workers_now(scene: Scene) -> int | None:
    loader = scene.runs[0].critical.train_loader if scene.runs else None
    return None if loader is None else loader.num_workers


def _of_workers(asked: dict[str, str], scene: Scene) -> Gain | None:
    """The rules' own formula for a number of workers that is not the one they chose."""
    workers = int(asked.get("num_workers", "0"))
    if not scene.runs or workers < 1 or asked.keys() - {"num_workers"} - _BESIDE:
        return None
    case, starvation = _starved(scene)
    cost = step_cost(case, starvation) if starvation is not None else None
    if cost is None:
        return None
    advice, gain = advise(case, cost), cost.gain(workers)
    # Where the rules promise nothing for their own number, there is no promise for another one.
    if advice.promise is None or middle(advice.gain) < LEAST_PROMISE or (advice.shared and gain.low < LEAST_PROMISE):
        return None
    return gain


Verdict = Literal[
    "faster", "slower", "no detectable change", "too small to matter", "anecdote", "did not take effect", "failed", "-"
]
"""Of an arm against the first one; "-" where nothing was measured."""

Metric = Literal["samples_per_second", "steps_per_second"]


@dataclass(frozen=True, slots=True)
class Steady:
    """What one run did while it was counted, all ranks together.

    Seconds are of training: evaluation, checkpoints, compilation and garbage collection are left out, epoch starts
    are not. `samples_per_second` is None where the program did not say how many samples a step takes.
    `error` is the standard error of the speed as its own parts give it, 0.01 for 1%; None where it has too few. What
    differs from run to run comes on top.
    """

    steps: int
    seconds: float
    steps_per_second: float
    samples_per_second: float | None
    batch_size: int | None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that gave no figure: why, and the last lines it printed. The exit code is negative for a signal."""

    reason: str
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Thermal:
    """The hottest of a run's GPUs while steps were counted: its mean, and what slowed it down in how many polls."""

    celsius: float | None
    polls: int
    slowed_polls: int
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run took of the machine at its peak, and the mean utilization of its GPUs while steps were counted.

    The GPU's own count, that of the fullest, holds the CUDA context and other processes, too; torch's peaks are those
    of the largest rank.
    """

    utilization_percent: float | None = None
    gpu_used_bytes: int | None = None
    gpu_total_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    out_of_memory_count: int | None = None  # how often torch ran out of the GPU's memory, as it counts
    host_bytes: int | None = None  # of all its processes, shared pages once; None where it was not asked for


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of the program. `place` counts all runs of the trial from 0; the probe, which does not count, has -1."""

    place: int
    steady: Steady | None
    facts: RunFacts | None
    failure: Failure | None = None
    thermal: Thermal | None = None
    interrupted: bool = False
    usage: Usage = Usage()

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
    `detectable` is the least change, 0.03 for 3%, that this many runs with such scatter show in four of five trials.
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
    prediction: Prediction | None = None

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


MIN_EFFECT = 0.02
_DRIFT_STEPS_OF_ERROR = 3.0


def judge(
    before: Sequence[float], others: Sequence[Sequence[float]], min_effect: float = MIN_EFFECT
) -> list[Judgement]:
    """Each set of speeds against the first one.

    A difference is called where Welch's test over run means finds it among all comparisons of the trial (Holm) and
    it is at least `min_effect`. Steps of one run are never compared: they are not independent (a test over them calls
    a difference between a program and itself in 42 to 82 of 100 trials).
    """
    intervals = [log_ratio_interval(before, after) for after in others]
    asked = [each for each in intervals if each is not None]
    adjusted = iter(holm([each.p_value for each in asked]))
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(asked))
    judgements = []
    for after, interval in zip(others, intervals, strict=True):
        if interval is None:
            ratio = _ratio(before, after)
            judgements.append(Judgement("-" if ratio is None else "anecdote", ratio))
            continue
        detectable = detectable_effect(before, after, confidence)
        verdict: Verdict = "faster" if interval.ratio > 1 else "slower"
        if next(adjusted) >= 1 - CONFIDENCE:
            verdict = "no detectable change"
        elif abs(math.log(interval.ratio)) < math.log1p(min_effect):
            verdict = "too small to matter"
        judgements.append(Judgement(verdict, interval.ratio, interval, detectable))
    return judgements


def _ratio(before: Sequence[float], after: Sequence[float]) -> float | None:
    first, second = geometric_mean(before), geometric_mean(after)
    return None if first is None or second is None else second / first


def scatter(rates: Sequence[float]) -> float | None:
    """From run to run, as a share of the mean; None for a single run."""
    return stdev(rates) / fmean(rates) if len(rates) > 1 else None


def drift(arms: Sequence[Sequence[tuple[int, float]]]) -> float | None:
    """How much the speed changed from the first run to the last, whatever the arm: -0.08 for 8% slower.

    Each arm is a sequence of (place of the run, speed). None where no drift stands out of the scatter. Alternating
    keeps a drift out of the ratios, but it widens their intervals.
    """
    points: list[tuple[float, float]] = []
    for runs in arms:
        if len(runs) > 1:
            usual = fmean(math.log(rate) for _, rate in runs)
            middle = fmean(place for place, _ in runs)
            points += [(place - middle, math.log(rate) - usual) for place, rate in runs]
    spread = sum(place**2 for place, _ in points)
    freedom = len(points) - sum(len(runs) > 1 for runs in arms) - 1
    if spread == 0 or freedom < 1:
        return None
    slope = sum(place * rest for place, rest in points) / spread
    error = math.sqrt(sum((rest - slope * place) ** 2 for place, rest in points) / freedom / spread)
    if abs(slope) <= _DRIFT_STEPS_OF_ERROR * error:
        return None
    places = [place for runs in arms for place, _ in runs]
    return math.expm1(slope * (max(places) - min(places)))


WARMER_CELSIUS = 3.0


def remarks(arms: Sequence[ArmResult], metric: Metric) -> list[str]:
    """Sentences, the gravest first."""
    return [*_metric(arms, metric), *_heat(arms), *_drift(arms, metric), *_workers(arms)]


def _metric(arms: Sequence[ArmResult], metric: Metric) -> Iterator[str]:
    if metric == "steps_per_second":
        yield "steps per second are compared: how many samples a step takes is not known"
    sizes = {each.arm.label: size for each in arms if (size := _batch_size(each)) is not None}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} with {label}" for label, size in sizes.items())
        yield f"the batch sizes differ ({listed}): this compares speed, not how much is learned per sample"


def _batch_size(each: ArmResult) -> int | None:
    return next((run.steady.batch_size for run in each.runs if run.counts and run.steady is not None), None)


def _heat(arms: Sequence[ArmResult]) -> Iterator[str]:
    means = {each.arm.label: mean for each in arms if (mean := _celsius(each)) is not None}
    if len(means) > 1 and max(means.values()) - min(means.values()) > WARMER_CELSIUS:
        listed = ", ".join(f"{mean:.0f} °C with {label}" for label, mean in means.items())
        yield f"the GPUs were not equally warm ({listed}): a warmer GPU may clock lower"
    for each in arms:
        slowed = [
            run.thermal for run in each.runs if run.counts and run.thermal is not None and run.thermal.slowed_polls
        ]
        if slowed:
            reasons = sorted({reason for thermal in slowed for reason in thermal.slowed_by})
            yield (
                f"the GPU was throttled ({' and '.join(reasons)}) in {len(slowed)} of {len(_counting(each))} runs"
                f" with {each.arm.label}"
            )


def _celsius(each: ArmResult) -> float | None:
    known = [run.thermal.celsius for run in _counting(each) if run.thermal is not None]
    warm = [celsius for celsius in known if celsius is not None]
    return fmean(warm) if warm else None


def _counting(each: ArmResult) -> list[RunResult]:
    return [run for run in each.runs if run.counts]


def _drift(arms: Sequence[ArmResult], metric: Metric) -> Iterator[str]:
    points = [
        [(run.place, rate) for run in _counting(each) if (rate := getattr(run.steady, metric)) is not None]
        for each in arms
    ]
    found = drift(points)
    if found is not None:
        way = "quicker" if found > 0 else "slower"
        yield (
            f"from the first run to the last everything became {100 * abs(found):.0f}% {way}: the arms alternated, so "
            "the ratios hold, but the intervals are wider"
        )


def _workers(arms: Sequence[ArmResult]) -> Iterator[str]:
    loader = next((run.loader for each in arms for run in each.runs if run.loader is not None), None)
    changed = any(change.name == "num_workers" and change.value for each in arms for change in each.arm.changes)
    if not changed or loader is None:
        return
    if loader.iterable or (loader.iterable is None and loader.batches_per_epoch is None):
        name = loader.dataset or "the dataset"
        who = f"{name} is an IterableDataset and" if loader.iterable else f"if {name} is an IterableDataset, it"
        yield (
            f"{who} must split its items by get_worker_info(), or every worker yields all of them and the samples are "
            "the same ones again"
        )
