"""The fixes of a report: the patch, what has to be made by hand, and the trial that proves a fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuwatch.diagnosis.finding import CallEdit, Fix, SetupEdit
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.report.findings import finding_section, fix_patch
from gpuwatch.report.observation import Observation
from gpuwatch.report.text import render_markdown
from tests.unit import report_builder
from tests.unit.report_builder import report, starvation

SOURCE = b"import torch\nloader = DataLoader(data, num_workers=0)\n"
SCRIPT = "/home/ana/train.py"


def seen_with(*fixes: Fix, behind: str | None = None, read: object = None) -> Observation:
    observation = report_builder.observation()
    like = report_builder.starvation()
    findings = tuple(replace(like, rule=f"rule-{number}", fix=fix, behind=behind) for number, fix in enumerate(fixes))
    snapshot = replace(observation.snapshot, findings=findings)
    return replace(observation, snapshot=snapshot, read_source=read or (lambda path, newest, of: SOURCE))


def workers(number: str) -> Fix:
    return Fix("More workers", edit=CallEdit("DataLoader", SCRIPT, 2, {"num_workers": number}))


PRECISE = Fix("Allow TF32", edit=SetupEdit(SCRIPT, "torch.f()"), also=(SetupEdit(SCRIPT, "torch.g()"),))


def test_all_fixes_of_a_file_are_one_patch() -> None:
    patch = fix_patch(seen_with(workers("6"), PRECISE, workers("6")))
    assert patch.by_hand == ()
    assert patch.data.count(b"--- a/") == 1
    assert b"+loader = DataLoader(data, num_workers=6)\n" in patch.data
    assert b"+torch.f()\n" in patch.data and b"+torch.g()\n" in patch.data


def test_what_is_not_in_the_patch_is_reported_with_its_fix_and_why() -> None:
    by_words = Fix("Buy a faster disk")
    patch = fix_patch(seen_with(workers("6"), workers("2"), by_words))
    assert b"num_workers=6" in patch.data
    assert [line.split(":")[0] for line in patch.by_hand] == ["rule-2", "rule-1"]
    assert "Buy a faster disk" in patch.by_hand[0]
    assert "an earlier fix of this patch sets num_workers=6" in patch.by_hand[1]


def test_the_same_fix_of_two_findings_is_reported_once() -> None:
    by_words = Fix("Buy a faster disk")
    (line,) = fix_patch(seen_with(by_words, by_words)).by_hand
    assert line.startswith("rule-0, rule-1: Buy a faster disk")


def test_a_fix_that_comes_after_another_waits_for_it() -> None:
    patch = fix_patch(seen_with(workers("6"), behind="data-starvation"))
    assert (patch.data, len(patch.by_hand)) == (b"", 1)
    assert "fix data-starvation first" in patch.by_hand[0]


def test_source_that_is_elsewhere_or_changed_is_no_patch() -> None:
    assert "not on this machine" in fix_patch(replace(seen_with(workers("6")), read_source=None)).by_hand[0]

    def changed(path: Path, newest: float | None, of: object) -> bytes:
        raise UnreadableSourceError(f"{path} was changed after the training started")

    assert "was changed after" in fix_patch(seen_with(workers("6"), read=changed)).by_hand[0]


def test_a_report_shows_the_part_that_can_be_made_and_says_what_is_left() -> None:
    loader = CallEdit("DataLoader", SCRIPT, 2, {"num_workers": "6"})
    optimizer = CallEdit("SGD", SCRIPT, 2, {"fused": "True"})
    (section,) = finding_section(seen_with(Fix("Both", edit=loader, also=(optimizer,))))
    assert section.fix is not None
    assert "num_workers=6" in (section.fix.diff or "")
    assert "does not hold exactly one SGD(...) call" in (section.fix.no_diff_reason or "")


def test_report_offers_the_command_with_the_fix() -> None:
    document = report(findings=[starvation()])
    fix = document.findings[0].fix
    assert fix is not None and fix.trial == "gpuwatch trial num_workers=10 -- python train.py"
    assert "**Prove it first:** `gpuwatch trial num_workers=10 -- python train.py`" in render_markdown(document)
