"""From what was said to how often it was right: one unit is a scenario, a seed and a rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tests.scenarios.attached import EVERY
from tests.scenarios.baselines import BASELINES
from tests.scenarios.judged import WARNED, Judged, Promise, Said
from tests.scenarios.scenario import CLEARED_WITHIN_SECONDS

TRULY_STARVED = 1.10
"""An ideal loader makes the job so much faster: what the baselines are asked to tell."""
GAIN_TOLERANCE = 0.15
GPUWATCH = "gpuwatch (data-starvation, epoch-start-stall)"
LOADING = frozenset({"data-starvation", "epoch-start-stall"})


@dataclass(frozen=True, slots=True)
class Miss:
    """A rule that was to fire and did not, or too late."""

    scenario: str
    seed: int
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class FalseWarning:
    """A warning that the label does not allow."""

    scenario: str
    seed: int
    said: Said


@dataclass(slots=True)
class RuleScore:
    """One rule over all streams."""

    rule: str
    built: bool
    hits: int = 0
    misses: int = 0
    false: int = 0
    delays: list[float] = field(default_factory=list)
    clearings: list[float | None] = field(default_factory=list)
    causes: int = 0  # streams of which it is the cause, as far as data-starvation was said,
    right_causes: int = 0  # and those in which it was named
    flips: int = 0  # ends and returns while its cause was there,
    hours: float = 0.0  # in this many of them
    stray: int = 0  # said below a warning where no label asks for it

    @property
    def precision(self) -> float | None:
        """Of what it warned of, what was so."""
        return self.hits / (self.hits + self.false) if self.hits + self.false else None

    @property
    def recall(self) -> float | None:
        """Of what it was to find, what it found in time."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None

    @property
    def cleared(self) -> int:
        """How often it was unsaid in time."""
        return sum(one is not None and one <= CLEARED_WITHIN_SECONDS for one in self.clearings)

    @property
    def flips_per_hour(self) -> float | None:
        """How often it ended or came again in an hour with its cause there."""
        return self.flips / self.hours if self.hours else None


@dataclass(slots=True)
class Confusion:
    """A detector of truly starved jobs."""

    name: str
    hits: int = 0
    false: int = 0
    misses: int = 0
    silent: int = 0

    def add(self, says: bool, so: bool) -> None:
        """One job."""
        if says:
            self.hits, self.false = self.hits + so, self.false + (not so)
        else:
            self.misses, self.silent = self.misses + so, self.silent + (not so)


@dataclass(slots=True)
class Score:
    """The whole run of the suite."""

    streams: int
    redrawn: int
    rules: dict[str, RuleScore]
    missed: list[Miss]
    stayed: list[Miss]
    false: list[FalseWarning]
    wrong_never: list[FalseWarning]
    causes: list[tuple[Judged, str]]
    right_causes: int
    healthy_hours: float
    healthy_warnings: int
    flips_per_hour: list[float]
    ideal_errors: list[tuple[Judged, float]]
    promises: list[tuple[Judged, Promise]]
    baselines: dict[str, Confusion]
    troubles: list[tuple[Judged, str]]

    @property
    def precision(self) -> float | None:
        """Of all warnings (and findings that were asked for)."""
        hits = sum(rule.hits for rule in self.rules.values())
        return hits / (hits + len(self.false)) if hits else None

    @property
    def recall(self) -> float | None:
        """Of all that was to be found by rules that exist."""
        built = [rule for rule in self.rules.values() if rule.built]
        wanted = sum(rule.hits + rule.misses for rule in built)
        return sum(rule.hits for rule in built) / wanted if wanted else None

    @property
    def clearings(self) -> list[float | None]:
        """How long each finding outlived its cause, where that was played; None: to the end."""
        return [seconds for rule in self.rules.values() for seconds in rule.clearings]

    @property
    def macro_f1(self) -> float | None:
        """The mean over the rules that were asked for."""
        values = []
        for rule in self.rules.values():
            precision, recall = rule.precision, rule.recall
            if rule.built and recall is not None:
                together = (precision or 0.0) + recall
                values.append(2.0 * (precision or 0.0) * recall / together if together else 0.0)
        return fmean(values) if values else None


def scored(results: Sequence[Judged], built: Iterable[str]) -> Score:
    """Adds the streams up."""
    known = frozenset(built)
    rules: dict[str, RuleScore] = {}
    score = Score(
        streams=len(results),
        redrawn=sum(one.tried > 0 for one in results),
        rules=rules,
        missed=[],
        stayed=[],
        false=[],
        wrong_never=[],
        causes=[],
        right_causes=0,
        healthy_hours=sum(EVERY[one.scenario].seconds for one in results if EVERY[one.scenario].healthy) / 3600.0,
        healthy_warnings=0,
        flips_per_hour=[one.flips * 3600.0 / EVERY["H20"].seconds for one in results if one.scenario == "H20"],
        ideal_errors=[],
        promises=[(one, promise) for one in results for promise in one.promises],
        baselines={name: Confusion(name) for name in (GPUWATCH, *BASELINES)},
        troubles=[(one, one.trouble) for one in results if one.trouble],
    )

    def of(rule: str) -> RuleScore:
        return rules.setdefault(rule, RuleScore(rule, rule in known))

    for one in results:
        _count_musts(one, of, score)
        _count_warnings(one, of, score)
        _count_causes(one, of, score)
        _count_starved(one, score)
    return score


def _count_musts(one: Judged, of: Callable[[str], RuleScore], score: Score) -> None:
    scenario = EVERY[one.scenario]
    begun = max(scenario.onset, one.begun if one.begun is not None else 0.0)
    for rule in sorted(scenario.must):
        row = of(rule)
        said = one.said.get(rule)
        deadline = begun + scenario.deadlines.get(rule, scenario.deadline)
        if said is not None and said.first <= deadline:
            row.hits += 1
            row.delays.append(said.first - begun)
            row.flips += said.gone + said.back
            row.hours += (scenario.seconds - said.first) / 3600.0
            if rule in one.cleared:
                _count_clearing(one, rule, row, score)
            continue
        row.misses += 1
        why = "never" if said is None else f"only {said.first - begun:.0f} s after the onset"
        score.missed.append(Miss(one.scenario, one.seed, rule, why))


def _count_clearing(one: Judged, rule: str, row: RuleScore, score: Score) -> None:
    seconds = one.cleared[rule]
    row.clearings.append(seconds)
    if seconds is None or seconds > CLEARED_WITHIN_SECONDS:
        why = "still there" if seconds is None else f"{seconds:.0f} s"
        score.stayed.append(Miss(one.scenario, one.seed, rule, why))


def _count_warnings(one: Judged, of: Callable[[str], RuleScore], score: Score) -> None:
    scenario = EVERY[one.scenario]
    for rule, said in one.said.items():
        if rule in scenario.never:
            score.wrong_never.append(FalseWarning(one.scenario, one.seed, said))
        if rule in scenario.must or rule in scenario.may:
            continue
        row = of(rule)
        if said.severity in WARNED:
            row.false += 1
            score.healthy_warnings += scenario.healthy
            score.false.append(FalseWarning(one.scenario, one.seed, said))
        else:
            row.stray += 1


def _count_causes(one: Judged, of: Callable[[str], RuleScore], score: Score) -> None:
    expected = EVERY[one.scenario].cause
    if expected is None or "data-starvation" not in one.said:
        return
    score.causes.append((one, expected))
    is_right = one.cause == expected
    score.right_causes += is_right
    for row in (of(expected), of("data-starvation")):
        row.causes += 1
        row.right_causes += is_right


def _count_starved(one: Judged, score: Score) -> None:
    if one.scenario == "H20" or any(fault.kind in ("hang", "stall") for fault in EVERY[one.scenario].job.faults):
        return
    so = one.ideal_factor >= TRULY_STARVED
    score.baselines[GPUWATCH].add(not LOADING.isdisjoint(one.said), so)
    for name, says in one.baselines.items():
        score.baselines[name].add(says, so)
    if one.share is not None:
        score.ideal_errors.append((one, abs(1.0 / (1.0 - min(one.share, 0.98)) / one.ideal_factor - 1.0)))


def by_rule(promises: Iterable[tuple[Judged, Promise]]) -> dict[str, list[Promise]]:
    """The promises of each rule."""
    found: dict[str, list[Promise]] = defaultdict(list)
    for _, promise in promises:
        found[promise.rule].append(promise)
    return dict(sorted(found.items()))


def range_error(promise: Promise) -> float:
    """How far the truth lies outside the promised range, as a share of the truth."""
    if promise.low <= promise.real <= promise.high:
        return 0.0
    nearest = promise.low if promise.real < promise.low else promise.high
    return abs(nearest - promise.real) / promise.real


def middle_error(promise: Promise) -> float:
    """How far the middle of the promised range lies from the truth: a range so wide that it is always right is none."""
    return abs(0.5 * (promise.low + promise.high) / promise.real - 1.0)
