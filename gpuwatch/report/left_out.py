"""Leaves the rules that the user ignores out of what was seen: also of a recording that was made with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuwatch.report.observation import Observation


def leave_out(seen: Observation, ignored: Mapping[str, str]) -> Observation:
    """The same without these rules' findings, none of which stands before another one.

    Args:
        seen: what is to be reported.
        ignored: why, by rule.
    """
    kept = tuple(
        replace(finding, behind=None) if finding.behind in ignored else finding
        for finding in seen.snapshot.findings
        if finding.rule not in ignored
    )
    return replace(
        seen,
        snapshot=replace(seen.snapshot, findings=kept),
        stretches=tuple(each for each in seen.stretches if each.kind != "finding" or each.name not in ignored),
        left_out=ignored,
    )
