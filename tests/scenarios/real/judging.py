"""Holds a report against what is true of the workload."""

from __future__ import annotations

from dataclasses import dataclass

from tests.scenarios.real.playing import Report
from tests.scenarios.real.workload import Workload

_WARNINGS = ("warning", "critical")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of a workload, and what was wrong about it."""

    workload: Workload
    attached: bool
    found: tuple[str, ...]
    missing: tuple[str, ...]
    false: tuple[str, ...]
    misplaced: str | None = None
    misnamed: str | None = None

    @property
    def is_right(self) -> bool:
        """Nothing missing, nothing false, the right line and the right state."""
        return not (self.missing or self.false or self.misplaced or self.misnamed)


def judged(workload: Workload, report: Report, *, attached: bool) -> Verdict:
    """The verdict on one report."""
    must = workload.must_be(attached=attached)
    findings = report["findings"]
    found = {each["rule"]: each for each in findings}
    wanted = workload.may.union(*workload.must)
    return Verdict(
        workload,
        attached,
        tuple(found),
        tuple(" or ".join(sorted(group)) for group in must if not group & set(found)),
        tuple(rule for rule, each in found.items() if each["severity"] in _WARNINGS and rule not in wanted),
        _misplaced(workload, report, found),
        _misnamed(workload, report),
    )


def _misplaced(workload: Workload, report: Report, found: Report) -> str | None:
    """The places that were named where the right one was not; a rule that did not fire has been counted as missing."""
    if workload.place is None or workload.place[0] not in found:
        return None
    finding = found[workload.place[0]]
    line = workload.marked_line(workload.place[1])
    fix = finding["fix"] or {}
    said = [finding["summary"], fix.get("text") or "", *finding["numbers"], f"{fix.get('file')}:{fix.get('line')}"]
    right = f"{workload.script}:{line}"
    return None if any(right in words for words in said) else f"{right} is not in {' | '.join(said)}"


def _misnamed(workload: Workload, report: Report) -> str | None:
    """The states that the runs were said to be in, where the right one is not among them."""
    if workload.state is None:
        return None
    states = [str(run["state"]) for run in report["runs"]]
    return None if any(state.startswith(workload.state) for state in states) else f"said to be {', '.join(states)}"
