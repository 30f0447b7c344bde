"""Findings of a long report: those that stand and those that are over, each with how long it stood."""

from __future__ import annotations

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.recorded_findings import to_record
from gpuwatch.report.observation import FindingDuration
from gpuwatch.report.recorded import key_of, merged
from tests.unit.report_builder import starvation

SECOND_NS = 1_000_000_000


def told(found: Finding, seconds: float, *, is_over: bool) -> str:
    lasted = FindingDuration(key_of(found), seconds, is_over, to_record(found).blob)
    (one,) = merged(() if is_over else (found,), [lasted], 0, 86_400 * SECOND_NS)
    return one.summary


def test_a_finding_that_is_over_says_that_it_stood() -> None:
    found = starvation()
    assert told(found, 12 * 3600.0, is_over=True) == f"{found.summary}; it stood for 12 h of 24 h and is over"


def test_a_finding_that_stands_says_for_how_long_it_does() -> None:
    found = starvation()
    assert told(found, 12 * 3600.0, is_over=False) == f"{found.summary}; so for 12 h of 24 h"
