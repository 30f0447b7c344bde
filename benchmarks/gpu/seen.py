"""What a watch found: each rule that fired, when first, how bad at worst, and its newest words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.monitor.snapshot import Snapshot

WARNED = ("critical", "warning")


@dataclass(frozen=True, slots=True)
class Seen:
    """One rule in one watch. `seconds` is how long it took."""

    rule: str
    seconds: float
    severity: str  # the worst it had
    level: int
    summary: str
    file: str | None = None
    line: int | None = None
    value: float | int | str | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    evidence: tuple[str, ...] = ()


class FindingLog:
    """Collects the findings of snapshot after snapshot."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Notes what fires now."""
        for finding in snapshot.findings:
            before = self.seen.get(finding.rule)
            now = _seen(finding, (snapshot.time_ns - snapshot.started_ns) / 1e9)
            if before is not None:
                worst = min((before.severity, now.severity), key=lambda word: Severity(word).order)
                now = replace(now, seconds=before.seconds, severity=worst)
            self.seen[finding.rule] = now

    def rules(self) -> frozenset[str]:
        """All that fired."""
        return frozenset(self.seen)

    def plain(self) -> dict[str, dict[str, Any]]:
        """For JSON, in the order in which they fired."""
        return {rule: asdict(seen) for rule, seen in sorted(self.seen.items(), key=lambda item: item[1].seconds)}


def _seen(finding: Finding, seconds: float) -> Seen:
    fix, gain = finding.fix, finding.gain
    return Seen(
        rule=finding.rule,
        seconds=round(seconds, 2),
        severity=finding.severity.value,
        level=int(finding.level),
        summary=finding.summary,
        file=fix.file if fix else None,
        line=fix.line if fix else None,
        value=fix.value if fix else None,
        gain_low=gain.low if gain else None,
        gain_high=gain.high if gain else None,
        evidence=tuple(measure.text for measure in finding.evidence),
    )
