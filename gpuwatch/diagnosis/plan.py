"""How findings stand to each other: which one weakens another, their order, and what each brings in a plan.

Rules judge training time, and most of the loading's the time between the starts of epochs. Evaluations and pauses stay
as long as they are, so that a loop that becomes twice as fast makes a run of which they take a third 1.5 times as fast.

Every gain is a share of the time recovered, 1 - 1 / gain. Made one after the other the shares add up and the factors
multiply: 2x (half of the time) and 1.25x (a fifth) are 1 / (1 - 0.5 - 0.2) = 3.3x together, so the second one then
brings 1.67x. What two of them would recover from the same time (waits for data, say) is recovered once, and all that
recover what a GPU idles in training recover no more than it does: copies that do not block and workers both claim the
same waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.cost import MINUTE_ERROR
from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE, middle, without
from gpuwatch.diagnosis.advice.pauses import epoch_edges
from gpuwatch.diagnosis.advice.sampled import is_sampled, train_share
from gpuwatch.diagnosis.advice.starvation import idle_share
from gpuwatch.diagnosis.finding import LEVEL_WORDS, Finding, Gain, Level, PlanStep, Severity
from gpuwatch.diagnosis.rule import LEAST_GAIN, Rule, run_case_of
from gpuwatch.diagnosis.tree import SYMPTOM, WAITS
from gpuwatch.timeline.windows import RunWindow, Scene, Share

STUCK = ("collective-hang", "step-stalled")
"""While nothing moves, whatever the last minutes showed of speed is of no use."""
HARDWARE_FAMILIES = frozenset({"power", "health", "hang", "sharing"})

_WAITS, _LAUNCHES, _COPIES, _LOGS = "waits", "launches", "copies", "logs"
_TIME_OF: Mapping[str, frozenset[str]] = {
    **dict.fromkeys((SYMPTOM, *(cause.rule for cause in WAITS)), frozenset({_WAITS})),
    **dict.fromkeys(
        ("thread-oversubscription", "too-many-workers", "cpu-quota-throttled", "host-cpu-exhausted"),
        frozenset({_WAITS, _LAUNCHES}),
    ),
    "noisy-neighbour": frozenset({_WAITS, _LAUNCHES}),
    "launch-bound": frozenset({_LAUNCHES}),
    "loop-code": frozenset({_LAUNCHES}),
    "sync-per-step": frozenset({_LAUNCHES, _LOGS}),
    "log-stall": frozenset({_LOGS}),
    "pageable-transfer": frozenset({_COPIES, _LAUNCHES}),
    "h2d-bound": frozenset({_COPIES}),
}
"""Which time a rule's fix recovers; what is not here recovers time of its own."""
_OF_IDLE_TIME = frozenset({*_TIME_OF, "epoch-start-stall"})
"""Rules whose fix recovers what the GPU idles in training. Pauses and slow kernels are another time."""
_OF_ALL_TIME = frozenset(
    {"eval-stall", "checkpoint-stall", "gc-stall", "recompile-storm", "epoch-start-stall", "log-stall"}
)
"""Rules whose share is of all time. The others' is of training time, without evaluation, saving and the like."""
_OF_TRAINING = frozenset(
    {"noisy-neighbour", "launch-bound", "loop-code", "sync-per-step", "pageable-transfer", "h2d-bound"}
)
"""Of these it is that of all training. What the loading's rules win they win between the starts of epochs."""
_NO_TRAINING = frozenset({"warmup", "eval", "checkpoint", "compile", "gc", "stopped"})
_SYMPTOMS = frozenset({"step-time-regression"})
"""Rules that describe what another one explains: their gain is that one's."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A finding with the rule that said it and the GPUs it concerns; `gpus` is None for the machine."""

    finding: Finding
    rule: Rule
    gpus: frozenset[str] | None

    def related(self, other: Placed) -> bool:
        """Whether both concern the same run, a common GPU, or one of them the machine."""
        if self.gpus is None or other.gpus is None:
            return True
        return bool(self.gpus & other.gpus) or (self.finding.run is not None and self.finding.run == other.finding.run)


def settle(placed: Sequence[Placed], order: dict[str, int]) -> tuple[Finding, ...]:
    """Weakens, puts behind, and sorts: worst first, those that another one comes before last."""
    settled = [_put_behind(_weaken(one, placed), one, placed) for one in placed]
    return in_order(settled, order)


def in_order(findings: Iterable[Finding], order: Mapping[str, int]) -> tuple[Finding, ...]:
    """Worst first, those that another one comes before last; alike ones by the rules' `order`.

    A finding of no known gain comes before one that is worth less than a warning: unknown is not nothing.
    """
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                finding.behind is not None,
                finding.severity.order,
                finding.gain is not None and middle(finding.gain) < LEAST_GAIN,
                -(finding.gain.low if finding.gain else 1.0),
                order.get(finding.rule, len(order)),  # a recording may have rules that this version does not
                finding.run or "",
                finding.gpu or "",
            ),
        )
    )


def _weaken(one: Placed, placed: Iterable[Placed]) -> Finding:
    """A shared or half-blind GPU costs one level of evidence, and says so."""
    finding, notes = one.finding, []
    if one.gpus and one.rule.family not in ("sharing", "health", "hang"):
        for other in placed:
            if other.gpus is None or not other.gpus & one.gpus:
                continue
            if other.rule.id == "shared-gpu":
                notes.append("another process uses this GPU, so its readings are not this run's alone")
            # Event pairs and exact CPU waits do not come from the GPU's own counters.
            elif other.rule.id == "metrics-limited" and finding.level < Level.E3:
                notes.append("this GPU does not report everything")
    notes = list(dict.fromkeys(notes))
    level = Level(max(0, finding.level - len(notes)))
    if level < one.rule.level:
        notes.append(f"likely, not proven: proof needs {LEVEL_WORDS[one.rule.level]}")
    severity = finding.severity
    if level < one.rule.level and severity is Severity.CRITICAL:
        severity = Severity.WARNING
    return replace(finding, level=level, severity=severity, confidence_notes=(*finding.confidence_notes, *notes))


def _put_behind(finding: Finding, one: Placed, placed: Iterable[Placed]) -> Finding:
    firing = {other.rule.id for other in placed if other is not one and one.related(other)}
    first: tuple[str, ...] = one.rule.behind
    if one.rule.family not in HARDWARE_FAMILIES:
        first = STUCK + first
    behind = next((name for name in first if name in firing), None)
    return finding if behind is None else replace(finding, behind=behind)


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Of all time of a run: training, training between the starts of epochs, and what the GPU idles in training.

    `idle` is None where that is not known. It limits a single gain too where the rank is `alone`: one of several has a
    busy GPU while it waits for the others, which then idles less than they lose.
    """

    training: float = 1.0
    settled: float = 1.0
    idle: Share | None = None
    alone: bool = True

    def judged_by(self, rule: str) -> float:
        """The part that a rule's gain is a factor of."""
        if rule in _OF_ALL_TIME:
            return 1.0
        return self.training if rule in _OF_TRAINING else self.settled


@dataclass(frozen=True, slots=True)
class _Claim:
    """The least and the most of all time that a finding's fix recovers, and which time that is.

    `most` is what it wins where the fixes before it win the least that they may.
    """

    finding: Finding
    low: float
    high: float
    most: float
    time: frozenset[str]

    @property
    def is_of_idle_time(self) -> bool:
        """Whether it is time in which the GPU idles in training."""
        return self.finding.rule in _OF_IDLE_TIME

    def within(self, won: Sequence[_Claim], low: float, high: float) -> _Claim:
        """What is left of it of a time that those claims share: at least and at most that long.

        At worst what was won before was as much as it may be, and the same seconds.
        """
        taken, least_taken = sum(claim.high for claim in won), sum(claim.low for claim in won)
        return replace(
            self,
            low=min(self.low, max(0.0, low - taken)),
            high=min(self.high, max(0.0, high - taken)),
            most=min(self.most, max(0.0, high - least_taken)),
        )


def planned(findings: Sequence[Finding], shares: Mapping[str, TimeShares]) -> tuple[Finding, ...]:
    """The same findings, each gain as a factor of the whole run, with its step in the plan of that run.

    Args:
        findings: All of them, in the order in which they are shown.
        shares: By run, what its time is made of.
    """
    findings = tuple(_of_all_time(finding, shares.get(finding.run or "", TimeShares())) for finding in findings)
    steps: dict[int, PlanStep] = {}
    for run in dict.fromkeys(finding.run for finding in findings if finding.run is not None):
        own = [finding for finding in findings if finding.run == run]
        steps |= _steps(_claims(own), shares.get(run, TimeShares()).idle)
    return tuple(replace(finding, plan=steps.get(id(finding))) for finding in findings)


def time_shares(scene: Scene) -> dict[str, TimeShares]:
    """By run, what its time is made of."""
    return {run.id: _time_shares_of(scene, run) for run in scene.runs}


def _time_shares_of(scene: Scene, run: RunWindow) -> TimeShares:
    rank = run.critical
    idle = idle_share(run_case_of(scene, run)) if rank.facts.device != "cpu" else None
    if is_sampled(rank) and rank.stacks is not None:
        training = train_share(rank.stacks)
    else:
        training = max(0.0, 1.0 - sum(total.share for kind, total in rank.phases.items() if kind in _NO_TRAINING))
    edges = epoch_edges(rank)
    if idle is not None:
        # A minute's utilization is not the next one's.
        most = max(idle.high, 1.0 - (1.0 - idle.value) / (1.0 + MINUTE_ERROR))
        idle = Share(training * idle.value, training * idle.low, training * most)
    return TimeShares(
        training=training,
        settled=max(0.0, training - (0.0 if edges is None else edges.share)),
        idle=idle,
        alone=len(run.ranks) == 1,
    )


def lasting(rule: str, gain: Gain, shares: TimeShares) -> Gain:
    """A rule's gain as a factor of the whole run."""
    part = shares.judged_by(rule)
    low, high = (1.0 / (1.0 - part * (1.0 - 1.0 / factor)) for factor in (gain.low, gain.high))
    return replace(gain, low=round(low, 3), high=round(high, 3))


def _of_all_time(finding: Finding, shares: TimeShares) -> Finding:
    if finding.gain is None:
        return finding
    gain = lasting(finding.rule, finding.gain, shares)
    if finding.rule in _OF_IDLE_TIME and finding.state == "firing" and shares.alone and shares.idle is not None:
        most = round(without(shares.idle.high), 3)
        gain = replace(gain, low=min(gain.low, most), high=min(gain.high, most))
    return replace(finding, gain=gain)


def _claims(findings: Sequence[Finding]) -> list[_Claim]:
    rules = {finding.rule for finding in findings if finding.gain is not None}
    waits = frozenset({_WAITS})
    explained = any(rule != "data-starvation" and waits <= _TIME_OF.get(rule, frozenset()) for rule in rules)
    claims = []
    for finding in findings:
        if finding.gain is None or finding.rule in _SYMPTOMS or (finding.rule == "data-starvation" and explained):
            continue
        low, high = (1.0 - 1.0 / max(1.0, factor) for factor in (finding.gain.low, finding.gain.high))
        high = max(low, high)
        claims.append(_Claim(finding, low, high, high, _TIME_OF.get(finding.rule, frozenset({finding.rule}))))
    return claims


def _steps(claims: list[_Claim], idle: Share | None) -> dict[int, PlanStep]:
    """The largest first, but nothing before what it comes behind; by the finding's identity."""
    rest, won = list(claims), list[_Claim]()
    steps: dict[int, PlanStep] = {}
    while rest:
        open_rules = {claim.finding.rule for claim in rest}
        ready = [claim for claim in rest if claim.finding.behind not in open_rules] or rest
        left = [(claim, _left_of(claim, won, claims, idle)) for claim in ready]
        first, now = max(left, key=lambda pair: pair[1].low + pair[1].most)
        before = _sums(won)
        won.append(now)
        rest.remove(first)
        after = _sums(won)
        factors = [
            (1.0 - left_before) / (1.0 - left_after) for left_before, left_after in zip(before, after, strict=True)
        ]
        factors.append((1.0 - before[0]) / (1.0 - min(before[0] + now.most, HIGHEST_SHARE)))
        steps[id(first.finding)] = PlanStep(
            number=len(won),
            of=len(claims),
            then=_gain(min(factors), max(factors)),
            together=_gain(1.0 / (1.0 - after[0]), 1.0 / (1.0 - after[1])),
        )
    return steps


def _left_of(claim: _Claim, won: Sequence[_Claim], claims: Sequence[_Claim], idle: Share | None) -> _Claim:
    """What is left of a claim: of the time of its kind, and of all that the GPU idles in training."""
    same = [other for other in won if not other.time.isdisjoint(claim.time)]
    if same:
        of_kind = max(other.high for other in claims if not other.time.isdisjoint(claim.time))
        claim = claim.within(same, of_kind, of_kind)
    if idle is None or not claim.is_of_idle_time:
        return claim
    return claim.within([other for other in won if other.is_of_idle_time], idle.value, idle.high)


def _gain(low: float, high: float) -> Gain:
    return Gain(round(low, 3), round(high, 3))


def _sums(won: Iterable[_Claim]) -> tuple[float, float]:
    low = high = 0.0
    for claim in won:
        low, high = low + claim.low, high + claim.high
    return min(low, HIGHEST_SHARE), min(max(low, high), HIGHEST_SHARE)
