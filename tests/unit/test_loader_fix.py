"""The fix of a loader: in the user's own call, or in the settings of the library that built it."""

from dataclasses import replace

from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.finding import LoopEdit, SettingsEdit
from gpuwatch.samples import LoaderFacts
from tests.unit import scene_builder as build

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
