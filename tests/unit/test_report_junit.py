from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.diagnosis.engine import SEEN_IN_STACKS
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import Report, as_json
from tests.unit import scene_builder as build
from tests.unit.report_builder import report, starvation
from tests.unit.test_report_document import check_schema


def cases(document: Report, fail_on: str = "warning") -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(render_junit(document, fail_on).encode())
    return {case.get("name") or "": case for case in root.iter("testcase")}


def outcome(case: ElementTree.Element) -> str:
    return next((tag for tag in ("failure", "skipped") if case.find(tag) is not None), "passed")


def reason(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    assert skipped is not None
    return skipped.get("message") or ""


def test_every_rule_is_one_case() -> None:
    assert sorted(cases(report())) == sorted(rule.id for rule in all_rules())


def test_counts_are_those_of_the_cases() -> None:
    document = report(build.scene(build.run(build.rank(steps=12)), gpus=[]), [starvation()])
    root = ElementTree.fromstring(render_junit(document).encode())
    outcomes = [outcome(case) for case in root.iter("testcase")]
    for element in (root, root[0]):
        assert element.get("tests") == str(len(outcomes))
        assert element.get("failures") == str(outcomes.count("failure"))
        assert element.get("skipped") == str(outcomes.count("skipped"))
    assert (root.tag, root[0].tag) == ("testsuites", "testsuite")


@pytest.mark.parametrize(
    ("severity", "fail_on", "expected"),
    [
        (Severity.CRITICAL, "warning", "failure"),
        (Severity.WARNING, "warning", "failure"),
        (Severity.WARNING, "critical", "passed"),
        (Severity.CRITICAL, "critical", "failure"),
        (Severity.INFO, "warning", "passed"),
        (Severity.HINT, "warning", "passed"),
    ],
)
def test_finding_fails_its_rule_from_the_asked_severity_on(severity: Severity, fail_on: str, expected: str) -> None:
    case = cases(report(findings=[starvation(severity=severity)]), fail_on)["data-starvation"]
    assert outcome(case) == expected
    text = "".join(case.itertext())
    assert "the GPU idles 41%" in text
    assert "num_workers=10" in text, "what does not fail is told all the same"


def test_failure_says_what_to_change_where_and_names_the_file() -> None:
    case = cases(report(findings=[starvation()]))["data-starvation"]
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "the GPU idles 41% of the time waiting for data"
    assert f"{build.SCRIPT}:88" in (failure.text or "")
    assert case.get("file") == build.SCRIPT


def test_rules_that_could_not_judge_are_skipped_with_the_reason() -> None:
    found = cases(report(build.scene(build.run(build.rank(steps=3)), gpus=[])))
    assert "too few steps" in reason(found["workers-zero"])
    assert "no GPU was seen" in reason(found["power-capped"])
    assert "no training run was seen" in reason(cases(report(build.scene()))["workers-zero"])


def test_run_that_has_ended_was_judged_while_it_ran() -> None:
    ended = build.run(build.rank(ended="exited"))
    assert outcome(cases(report(build.scene(ended)))["workers-zero"]) == "passed"


def test_silence_of_a_rule_that_needs_the_hook_is_no_clean_bill_for_a_run_without() -> None:
    document = report(build.scene(build.run(build.rank(facts={"visibility": "process"}))))
    judged = {rule.rule: rule for rule in document.rules}
    assert not judged["amp-off"].judged
    assert "gpuwatch run" in (judged["amp-off"].reason or "")
    assert not judged["io-bound"].judged
    check_schema(as_json(document))


def test_rules_said_to_read_stacks_are_rules() -> None:
    assert {rule.id for rule in all_rules()} >= SEEN_IN_STACKS


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text_gives_well_formed_xml(text: str) -> None:
    document = report(build.scene(build.run(build.rank(), title=text)), [starvation(summary=text)])
    assert outcome(cases(document)["data-starvation"]) == "failure"
