"""Findings go into a recording and come out of it as they were, with every kind of edit."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest

from gpuwatch.diagnosis.finding import (
    AutocastEdit,
    CallEdit,
    Edit,
    Finding,
    Fix,
    Gain,
    Level,
    Measure,
    RuledOut,
    Severity,
)
from gpuwatch.monitor.recorded_findings import from_blob, to_record
from tests.unit.sample_strategies import any_of

EDITS = get_args(Edit)


def finding(fix: Fix | None) -> Finding:
    return Finding(
        rule="data-starvation",
        severity=Severity.WARNING,
        level=Level.E3,
        summary="the GPU waits",
        evidence=(
            Measure("wait_share", 0.41, "41%"),
            Measure("num_workers", 4, "4"),
            Measure("state", "D", "D"),
            Measure("gap_share", None, "?"),
        ),
        state="firing",
        since_ns=2**60,
        run="4711.99",
        window_seconds=60.0,
        fix=fix,
        gain=Gain(1.5, 1.7, "then the CPU"),
        hint="1.0-2.6x",
        ruled_out=(RuledOut("slow disk", "0% in state D"),),
        chart=("gpu.utilization",),
        behind="xid-error",
        incidents=3,
        confidence_notes=("shared",),
    )


def test_a_finding_without_a_fix_comes_back() -> None:
    assert from_blob(to_record(finding(None)).blob) == finding(None)


@pytest.mark.parametrize("cls", EDITS, ids=lambda cls: cls.__name__)
def test_a_finding_with_an_edit_comes_back(cls: type) -> None:
    edit = any_of(cls)
    before = finding(Fix("do", "num_workers=10", "train.py", 88, 10, edit, (AutocastEdit("a.py", 3), edit)))
    after = from_blob(to_record(before).blob)
    assert after == before
    assert after.fix is not None and type(after.fix.edit) is cls and isinstance(after.fix.also[0], AutocastEdit)


def test_the_row_says_what_the_finding_is_about() -> None:
    record = to_record(dataclasses.replace(finding(None), run=None, gpu="GPU-1"))
    assert (record.rule, record.severity, record.state, record.run, record.gpu) == (
        "data-starvation",
        "warning",
        "firing",
        None,
        "GPU-1",
    )
    assert record.key != to_record(finding(None)).key


def test_a_file_name_that_is_no_utf8_comes_back() -> None:
    edit = CallEdit("DataLoader", "caf\udce9.py", 3, {"num_workers": "4"})
    before = finding(Fix("do", file="caf\udce9.py", edit=edit))
    assert from_blob(to_record(before).blob) == before


@pytest.mark.parametrize("blob", [b"", b"[]", b"{}", b"\xff", b'{"rule": 5}'])
def test_what_is_no_finding_is_refused(blob: bytes) -> None:
    with pytest.raises(ValueError):
        from_blob(blob)


def test_an_edit_of_a_later_version_is_refused() -> None:
    plain = json.loads(to_record(finding(Fix("do", edit=AutocastEdit("a.py", 3)))).blob)
    plain["fix"]["edit"]["kind"] = "TelepathyEdit"
    with pytest.raises(ValueError, match="does not know"):
        from_blob(json.dumps(plain).encode())
