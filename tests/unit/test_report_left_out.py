"""A report says which rules the user's settings leave out: their silence is no clean bill."""

from __future__ import annotations

from gpuwatch.report.observation import Stretch, leave_out
from gpuwatch.report.words import quality_lines
from tests.unit.report_builder import observation, report, starvation

WHY = "ignored by config (/home/user/pyproject.toml): amp-off, tf32-off"


def test_rules_that_the_user_ignores_were_not_judged_and_the_reason_is_named() -> None:
    document = report(left_out={"amp-off": WHY, "tf32-off": WHY})
    judged = {each.rule: (each.judged, each.reason) for each in document.rules}
    assert judged["amp-off"] == judged["tf32-off"] == (False, WHY)
    assert judged["data-starvation"] != (False, WHY)


def test_the_data_quality_names_them() -> None:
    assert any(f"2: {WHY}" in line for line in quality_lines(report(left_out={"amp-off": WHY, "tf32-off": WHY})))
    assert not any("ignored" in line for line in quality_lines(report()))


def test_findings_of_a_recording_go_with_the_rules_and_hold_nothing_back() -> None:
    zero = starvation(rule="workers-zero", behind="data-starvation")
    stretches = (
        Stretch("finding", "data-starvation", 0, 1),
        Stretch("finding", "workers-zero", 0, 1),
        Stretch("phase", "eval", 0, 1),
    )
    seen = observation(findings=[starvation(), zero], stretches=stretches)
    left = leave_out(seen, {"data-starvation": WHY})
    assert [(finding.rule, finding.behind) for finding in left.snapshot.findings] == [("workers-zero", None)]
    assert [each.name for each in left.stretches] == ["workers-zero", "eval"]
    assert leave_out(seen, {}).snapshot.findings == seen.snapshot.findings
