"""A finding's change as the dashboard reads it from the user's files: the diff, and what is left to do by hand."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.dashboard.screens.finding import source_of
from gpuwatch.diagnosis.finding import CallEdit, Fix, SetupEdit
from gpuwatch.foreign import whereabouts
from gpuwatch.samples import RunFacts

SOURCE = "import torch\nloader = DataLoader(data, num_workers=config.workers)\n"


def trainer(folder: Path, *arguments: str) -> RunFacts:
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    (folder / "train.py").write_text(SOURCE)
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    command = ("python", "train.py", *arguments)
    return RunFacts(0, "1.1", 1, int(started), command, cwd=str(folder), **whereabouts()._asdict())


def test_the_config_file_of_the_command_line_is_in_the_diff(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("workers: 2  # enough\n")
    edit = CallEdit("DataLoader", "train.py", 2, {"num_workers": "6"})
    source = source_of(Fix("text", file="train.py", line=2, edit=edit), trainer(tmp_path, "base.yaml"))
    assert source.diff is not None
    assert "+workers: 6  # enough" in source.diff


def test_a_change_without_a_line_is_shown_and_what_is_left_is_said(tmp_path: Path) -> None:
    edit = SetupEdit("train.py", "torch.backends.cudnn.benchmark = True")
    left = CallEdit("SGD", "train.py", 2, {"fused": "True"})
    source = source_of(Fix("text", edit=edit, also=(left,)), trainer(tmp_path))
    assert source.diff is not None and "+torch.backends.cudnn.benchmark = True" in source.diff
    assert source.reason == "By hand: line 2 of train.py holds no single SGD(...) call."


def test_a_change_that_cannot_be_made_and_has_no_line_gives_its_reason(tmp_path: Path) -> None:
    source = source_of(Fix("text", edit=SetupEdit("gone.py", "f()")), trainer(tmp_path))
    assert (source.diff, source.lines) == (None, ())
    assert "cannot be read" in source.reason
