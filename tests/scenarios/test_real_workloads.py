"""The real workloads' labels are possible, and a report is compared with them rightly; they are run by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.diagnosis.rules import all_rules
from tests.scenarios.real.__main__ import document
from tests.scenarios.real.catalogue import WORKLOADS
from tests.scenarios.real.judging import judged

SLOW = WORKLOADS["R1"]


def finding(rule: str, severity: str = "warning", **fix: Any) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "summary": "", "numbers": [], "fix": {"text": "", **fix}}


def report(*findings: dict[str, Any], state: str = "training") -> dict[str, Any]:
    return {"findings": list(findings), "runs": [{"state": state}]}


@pytest.mark.parametrize("name", WORKLOADS)
def test_labels_name_rules_and_lines_that_exist(name: str) -> None:
    workload = WORKLOADS[name]
    rules = {rule.id for rule in all_rules()}
    assert workload.path.is_file()
    assert workload.may.union(*workload.must, *workload.must_be(attached=True)) <= rules
    if workload.place is not None:
        assert workload.place[0] in rules
        assert workload.marked_line(workload.place[1]) > 0


def test_all_that_must_be_said_at_its_line_is_right() -> None:
    line = SLOW.marked_line("the loader")
    said = report(
        finding("data-starvation", "critical"),
        finding("workers-zero", file=SLOW.script, line=line),
        finding("amp-off", "hint"),
    )
    assert judged(SLOW, said, attached=False).is_right


def test_a_rule_that_is_missing_is_reported() -> None:
    assert judged(SLOW, report(finding("data-starvation")), attached=True).missing == ("workers-zero",)


def test_another_warning_is_false_and_a_hint_is_not() -> None:
    healthy = WORKLOADS["R16"]
    verdict = judged(healthy, report(finding("gc-stall"), finding("amp-off", "hint")), attached=False)
    assert verdict.false == ("gc-stall",)
    assert not verdict.is_right


def test_a_wrong_line_is_reported() -> None:
    said = report(finding("data-starvation"), finding("workers-zero", file=SLOW.script, line=1))
    verdict = judged(SLOW, said, attached=False)
    assert verdict.misplaced is not None and f"{SLOW.script}:1" in verdict.misplaced


def test_what_only_the_hook_sees_is_not_asked_of_the_stacks() -> None:
    tail = WORKLOADS["R5"]
    assert judged(tail, report(), attached=False).missing == ("slow-samples",)
    assert judged(tail, report(), attached=True).missing == ()


@pytest.mark.parametrize(("state", "is_right"), [("stopped", True), ("silent", False)])
def test_a_stopped_run_must_be_called_stopped(state: str, is_right: bool) -> None:
    stopped = replace(WORKLOADS["R15"], must=())
    assert judged(stopped, report(state=state), attached=False).is_right is is_right


def test_a_training_that_is_played_again_replaces_its_own_row_only() -> None:
    hooked, attached, other = "| R1 slow | hooked |", "| R1 slow | attached |", "| R16 well | hooked |"
    before = document("", [f"{other} yes | nothing |  |", f"{attached} **no** | nothing |  |"])
    after = document(before, [f"{hooked} yes | workers-zero |  |", f"{attached} yes | workers-zero |  |"])
    assert [row for row in after.splitlines() if row.startswith("| R")] == [
        f"{hooked} yes | workers-zero |  |",
        f"{attached} yes | workers-zero |  |",
        f"{other} yes | nothing |  |",
    ]
    assert document(after, []) == after
