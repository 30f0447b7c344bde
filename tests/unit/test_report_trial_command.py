from __future__ import annotations

import pytest

from gpuwatch.diagnosis.finding import CallEdit, Edit, Fix, IntervalEdit, SetupEdit, TransferEdit
from gpuwatch.report.findings import trial_command
from gpuwatch.report.markdown import render_markdown
from tests.unit import scene_builder as build
from tests.unit.report_builder import report, starvation

RUN = build.run(build.rank(facts={"command": ("python", "train.py", "--name", "a b")}))
LOADER = CallEdit("DataLoader", "train.py", 8, {"num_workers": "3", "persistent_workers": "True"})


@pytest.mark.parametrize(
    ("edits", "changes"),
    [
        ((LOADER,), "num_workers=3 persistent_workers=true"),
        ((LOADER, TransferEdit("train.py", 9)), "num_workers=3 persistent_workers=true non_blocking=true"),
        ((SetupEdit("train.py", 'torch.set_float32_matmul_precision("high")'),), "tf32=true"),
        ((CallEdit("DataLoader", "train.py", 8, {"worker_init_fn": "seed"}),), None),
        ((CallEdit("DataLoader", "train.py", 8, {"num_workers": "cores()"}),), None),
        ((CallEdit("TrainingArguments", "train.py", 8, {"num_workers": "3"}),), None),
        ((IntervalEdit("train.py", 8, 50),), None),
    ],
)
def test_command_makes_the_changes_of_the_fix_or_is_not_offered(edits: tuple[Edit, ...], changes: str | None) -> None:
    command = trial_command(Fix("do it", edit=edits[0], also=edits[1:]), RUN)
    assert command == (None if changes is None else f"gpuwatch trial {changes} -- python train.py --name 'a b'")


def test_several_ranks_were_launched_nobody_knows_how() -> None:
    assert trial_command(Fix("do it", edit=LOADER), build.run(build.rank(pid=1), build.rank(pid=2))) is None
    assert trial_command(Fix("do it", edit=LOADER), None) is None


def test_report_offers_the_command_with_the_fix() -> None:
    document = report(findings=[starvation()])
    fix = document.findings[0].fix
    assert fix is not None and fix.trial == "gpuwatch trial num_workers=10 -- python train.py"
    assert "**Prove it first:** `gpuwatch trial num_workers=10 -- python train.py`" in render_markdown(document)
