"""Fixes and edits: at the lines that are known, in the user's own call or a library's settings."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.advice import fixes
from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.finding import AutocastEdit, CallEdit, LoopEdit, ModelEdit, SettingsEdit, SetupEdit
from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from tests.unit import scene_builder as build

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


KEYWORDS = {"num_workers": "6", "persistent_workers": "True"}


def test_own_loader_is_edited_at_its_call():
    fix = loader_fix(build.loader(), KEYWORDS, "Load in 6 worker processes", 6)
    assert (fix.edit.call, fix.edit.line, dict(fix.edit.keywords)) == ("DataLoader", 88, KEYWORDS)
    assert fix.edit.present["num_workers"] == "4"
    assert fix.code == "DataLoader(..., num_workers=6, persistent_workers=True)"


def test_loader_of_the_hugging_face_trainer_is_set_in_its_arguments():
    fix = loader_fix(build.loader(library="transformers"), KEYWORDS, "Load in 6 worker processes", 6)
    assert fix.code == "TrainingArguments(..., dataloader_num_workers=6, dataloader_persistent_workers=True)"
    settings = {"dataloader_num_workers": "6", "dataloader_persistent_workers": "True"}
    assert fix.edit == SettingsEdit("TrainingArguments", fix.file, settings, fix.edit.present)
    assert fix.edit.present["dataloader_num_workers"] == "4"
    assert fix.value == 6


def test_setting_that_the_library_does_not_have_is_left_out():
    fix = loader_fix(build.loader(library="transformers"), {"in_order": "False", "num_workers": "6"}, "text", 6)
    assert fix.code == "TrainingArguments(..., dataloader_num_workers=6)"


def test_loader_of_an_unknown_library_names_the_library():
    fix = loader_fix(build.loader(library="somelib"), KEYWORDS, "Load in 6 worker processes", 6)
    assert fix.edit.line == 88, "Lightning wraps the call that the line itself makes"
    assert "somelib" in fix.text and "num_workers=6" in fix.code


def test_a_loop_of_an_installed_package_is_set_in_the_script_that_was_started():
    seen = LoaderFacts(1, loop_file="/v/site-packages/transformers/trainer.py", loop_line=9, num_workers=0)
    fix = loader_fix(seen, KEYWORDS, "Load in 6 worker processes", 6)
    settings = {"dataloader_num_workers": "6", "dataloader_persistent_workers": "True"}
    assert fix.edit == SettingsEdit("TrainingArguments", None, settings, {"dataloader_num_workers": "0"})
    other = loader_fix(replace(seen, loop_file="/v/site-packages/lightning/fit.py"), KEYWORDS, "text", 6)
    assert other.edit == SettingsEdit("DataLoader", None, KEYWORDS, {"num_workers": "0"})
    own = loader_fix(replace(seen, loop_file="/home/u/train.py"), KEYWORDS, "text", 6)
    assert own.edit == LoopEdit("DataLoader", "/home/u/train.py", 9, KEYWORDS, {"num_workers": "0"})
