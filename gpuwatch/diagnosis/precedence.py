"""How findings stand to each other: which one comes first, and which one weakens another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.finding import Finding, Level, Severity
from gpuwatch.diagnosis.rule import Rule

STUCK = ("collective-hang", "step-stalled")
"""While nothing moves, whatever the last minutes showed of speed is of no use."""
HARDWARE_FAMILIES = frozenset({"power", "health", "hang", "sharing"})

LEVEL_WORDS = {
    Level.E0: "hardware readings alone",
    Level.E1: "process readings and stacks",
    Level.E2: "the hook's timings",
    Level.E3: "the hook: its GPU event pairs, or its timings of a run that computes on the CPU",
}


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
    """Worst first, those that another one comes before last; alike ones by the rules' `order`."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                finding.behind is not None,
                finding.severity.order,
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
