"""`gpuwatch run`: the environment that it hands on, and the commands that would run without the hook."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.cli import run


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["python3.11", "-u", "-E", "train.py"], "-E"),
        (["python", "-uS", "train.py"], "-uS"),
        (["python", "-X", "dev", "-I", "train.py"], "-I"),
        (["python", "-Wignore", "-I", "train.py"], "-I"),
        (["python", "-W", "ignore::Exception", "-Xfaulthandler", "-E", "train.py"], "-E"),
        (["python", "train.py", "-I"], None),
        (["python", "-m", "train", "-I"], None),
        (["python", "-mIPython"], None),
        (["python", "-cprint('EIS')"], None),
        (["python", "-WError", "-XImporttime", "train.py"], None),
        (["python", "-W", "-I", "train.py"], None),
        (["python", "-", "-I"], None),
        (["torchrun", "-I"], None),
    ],
)
def test_the_flag_is_found_where_python_reads_it(argv: list[str], flag: str | None) -> None:
    assert run.flag_that_ignores_the_environment(argv) == flag


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "{site}"),
        ({"PYTHONPATH": ""}, "{site}"),
        ({"PYTHONPATH": "/a:/b"}, "{site}:/a:/b"),
        ({"PYTHONPATH": "/a:"}, "{site}:/a:"),
        ({"PYTHONPATH": "/a:{site}"}, "{site}:/a"),
    ],
)
def test_the_hook_comes_first_once_and_the_rest_keeps_its_order(before: dict[str, str], after: str) -> None:
    site = str(run.SITE)
    environment = {name: value.format(site=site) for name, value in before.items()}
    hooked = run.hooked_environment({**environment, "HOME": "/h"})
    assert hooked == {"HOME": "/h", "PYTHONPATH": after.format(site=site)}
    assert run.hooked_environment(hooked) == hooked


def test_a_folder_that_cannot_stand_on_a_path_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "SITE", Path(f"/a{os.pathsep}b"))
    assert run.hooked_environment({"PYTHONPATH": "/x"}) == {"PYTHONPATH": "/x"}
    assert "cannot go on PYTHONPATH" in capsys.readouterr().err
