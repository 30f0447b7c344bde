"""A stream through the real monitor, timeline and engine in time that jumps, and what it said when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding, Level
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin, Snapshot
from tests.scenarios.baselines import BASELINES, flagged
from tests.scenarios.fixes import CHANGES, real_factor
from tests.scenarios.scenario import CLEARING_SECONDS, Draw
from tests.scenarios.stream import SECOND_NS, StreamSource

START_NS = 1_000 * SECOND_NS
STEPS = 30
WARNED = ("critical", "warning")
BASELINE_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Said:
    """One rule over one stream. Seconds are of the stream; `gone` and `back` count its ends and returns."""

    rule: str
    first: float
    severity: str
    behind: str | None
    summary: str
    numbers: dict[str, Any]
    gone: int = 0
    back: int = 0
    lasts: bool = True


@dataclass(frozen=True, slots=True)
class Promise:
    """What a finding promised, and what its change brings in the simulation; None where it cannot be tried there."""

    rule: str
    low: float
    high: float
    real: float
    exact: bool


@dataclass(slots=True)
class Judged:
    """What was said of one stream. `begun` is the second of the 30th step."""

    scenario: str
    seed: int
    tried: int
    data_loss: float
    begun: float | None = None
    said: dict[str, Said] = field(default_factory=dict)
    cause: str | None = None
    share: float | None = None
    ideal_factor: float = 1.0
    promises: list[Promise] = field(default_factory=list)
    together: float = 1.0
    """What the plan promises at most, with all its steps made, at the end of the stream."""
    brought: dict[str, float] = field(default_factory=dict)
    """By rule, where nothing is labelled: how much faster the job is with the finding's change."""
    baselines: dict[str, bool] = field(default_factory=dict)
    flips: int = 0
    trouble: str | None = None
    cleared: dict[str, float | None] = field(default_factory=dict)
    """By rule: seconds from the end of the trouble to the end of the finding; None: it was still there."""

    @property
    def key(self) -> tuple[str, int]:
        """What names it."""
        return self.scenario, self.seed


class _Log:
    """Takes the snapshots as they come."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._present: frozenset[str] = frozenset()
        self.newest: dict[str, Finding] = {}
        self.causes: dict[str | None, int] = {}

    def take(self, snapshot: Snapshot) -> None:
        judged, second = self._judged, (snapshot.time_ns - START_NS) / SECOND_NS
        if judged.begun is None and any(run.steps_total >= STEPS for run in snapshot.runs):
            judged.begun = second
        present = frozenset(finding.rule for finding in snapshot.findings)
        judged.flips += ("data-starvation" in present) != ("data-starvation" in self._present)
        for finding in snapshot.findings:
            self._hear(finding, second)
        for rule in self._present - present:
            judged.said[rule].gone += 1
            judged.said[rule].lasts = False
        self._present = present

    def clear(self, ending: frozenset[str], end: float) -> Callable[[Snapshot], None]:
        """Takes the snapshots from the end of the trouble on: what of `ending` stays, and what is said anew."""
        judged = self._judged
        judged.cleared = dict.fromkeys(ending & judged.said.keys(), 0.0)

        def take(snapshot: Snapshot) -> None:
            second = (snapshot.time_ns - START_NS) / SECOND_NS
            present = {finding.rule for finding in snapshot.findings}
            for rule in judged.cleared:
                if rule in present:
                    judged.cleared[rule] = None
                elif judged.cleared[rule] is None:
                    judged.cleared[rule] = second - end
            for finding in snapshot.findings:
                if finding.rule not in self.newest:
                    self._hear(finding, second, counts=False)

        return take

    def _hear(self, finding: Finding, second: float, *, counts: bool = True) -> None:
        said = self._judged.said.get(finding.rule)
        numbers = {measure.name: measure.value for measure in finding.evidence}
        if said is None:
            said = Said(finding.rule, second, finding.severity.value, finding.behind, finding.summary, numbers)
            self._judged.said[finding.rule] = said
        elif finding.severity.value in WARNED and said.severity not in WARNED:
            said.severity, said.summary, said.numbers = finding.severity.value, finding.summary, numbers
            said.behind = finding.behind
        said.back += not said.lasts
        said.lasts = True
        if not counts:
            return
        self.newest[finding.rule] = finding
        if finding.rule == "data-starvation" and finding.state == "firing":
            named = numbers.get("cause")
            cause = None if named is None else str(named)
            self.causes[cause] = self.causes.get(cause, 0) + 1


def judge(drawn: Draw, *, clearing: bool = True) -> Judged:
    """Plays one draw and tells what was said; without `clearing` only up to the end of its trouble."""
    scenario = drawn.scenario
    judged = Judged(scenario.id, drawn.seed, drawn.tried, drawn.truth.data_loss)
    source = StreamSource(drawn.job, drawn.name, START_NS, hooked=scenario.hooked)
    monitor = Monitor([source], origin=Origin("simulated", scenario.id), clock=VirtualClock(START_NS), engine=Engine())
    log = _Log(judged)
    try:
        monitor.run_until(START_NS + drawn.seconds * SECOND_NS, on_tick=log.take)
        scene = monitor.final_scene(BASELINE_WINDOW_SECONDS)
        judged.baselines = {name: flagged(name, scene) for name in BASELINES}
        last = monitor.snapshot()
        judged.trouble = "; ".join(map(str, last.notices)) or None
        judged.together = max((each.plan.together.high for each in last.findings if each.plan), default=1.0)
        ending = scenario.ends(drawn.seed)
        if ending and clearing:
            source.relieve()
            end = float(scenario.seconds)
            monitor.run_until(
                START_NS + (scenario.seconds + CLEARING_SECONDS) * SECOND_NS, on_tick=log.clear(ending, end)
            )
    finally:
        monitor.stop()
    if log.causes:
        judged.cause = max(log.causes, key=lambda cause: log.causes[cause])
    truth = drawn.truth
    judged.ideal_factor = truth.ideal_samples_per_second / truth.samples_per_second
    starved = log.newest.get("data-starvation")
    if starved is not None and starved.level is Level.E3:
        share = {measure.name: measure.value for measure in starved.evidence}.get("gpu_idle_from_wait_share")
        judged.share = float(share) if isinstance(share, float | int) else None
    for finding in log.newest.values():
        gain = finding.gain if finding.rule in CHANGES else None
        if gain is None and not scenario.unlabelled:
            continue
        real = real_factor(drawn, finding)
        if real is not None and scenario.unlabelled:
            judged.brought[finding.rule] = real
        if real is not None and gain is not None:
            judged.promises.append(Promise(finding.rule, gain.low, gain.high, real, finding.level is Level.E3))
    return judged
