"""What rules ask for is placed at the lines that are known, and left out where none is."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.advice import fixes
from gpuwatch.diagnosis.finding import AutocastEdit, CallEdit, ModelEdit, SetupEdit
from gpuwatch.samples import ModelFacts, RunFacts

MODEL = ModelFacts(
    optimizer="AdamW", optimizer_file="/t/opt.py", optimizer_line=5, backward_file="/t/loop.py", backward_line=9
)
RUN = RunFacts(0, "7.1", 7, 1, ("python", "-u", "train.py", "--lr", "1"), model=MODEL)


def test_edits_stand_where_the_hook_saw_the_lines() -> None:
    assert fixes.autocast_edit(MODEL, "torch.float16") == AutocastEdit("/t/loop.py", 9, "torch.float16")
    assert fixes.optimizer_edit(MODEL, fused="True") == CallEdit("AdamW", "/t/opt.py", 5, {"fused": "True"})
    assert fixes.model_edit(MODEL, "{model}.compile()") == ModelEdit("/t/opt.py", 5, "{model}.compile()")


def test_set_up_goes_to_the_script_that_was_started_or_to_the_optimizers_file() -> None:
    assert fixes.setup_edit(RUN, "f()") == SetupEdit("train.py", "f()")
    assert fixes.setup_edit(replace(RUN, command=("python", "-m", "train")), "f()") == SetupEdit("/t/opt.py", "f()")


def test_no_line_is_no_edit() -> None:
    unknown = ModelFacts()
    assert fixes.autocast_edit(unknown, "torch.bfloat16") is None
    assert fixes.optimizer_edit(unknown, fused="True") is None
    assert fixes.model_edit(unknown, "{model}.compile()") is None
    assert fixes.setup_edit(replace(RUN, command=("python", "-c", "x"), model=unknown), "f()") is None
    assert fixes.transfer_edit(None) is None
    assert fixes.logging_edit(None, 50) is None
