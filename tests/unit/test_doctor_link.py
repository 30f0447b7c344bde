"""The doctor's look at the folder where runs and monitors meet, on real folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuwatch.cli.doctor_checks.check import State
from gpuwatch.cli.doctor_checks.link import check_link
from gpuwatch.sources.hook_link import processes
from gpuwatch.sources.host.procfs import read_stat

PROC = Path("/proc")


def test_a_folder_that_can_be_made_is_fine_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    check = check_link({"GPUWATCH_DIR": str(folder)})
    assert check.state is State.OK
    assert check.details == {"folder": str(folder), "runs": 0, "passed_over": None}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_runs_that_left_word_are_counted_and_ended_ones_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    folder.mkdir(mode=0o700)
    me = read_stat(PROC, os.getpid())
    assert me is not None
    for pid, start_ticks in ((os.getpid(), me.start_ticks), (1, me.start_ticks + 1)):
        words = {"version": 1, "pid": pid, "start_ticks": start_ticks, "command": ["python"], "cwd": "/"}
        (folder / f"trainer-{pid}.json").write_text(json.dumps(words))
    assert check_link({"GPUWATCH_DIR": str(folder)}).details["runs"] == 1


def test_a_folder_that_others_can_reach_is_refused_with_the_cure(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = check_link({"GPUWATCH_DIR": str(tmp_path)})
    assert check.state is State.PROBLEM
    assert "755" in check.sentence
    assert check.cure == f"Run: chmod 700 {tmp_path}."


def test_a_link_or_a_missing_parent_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path / "link", tmp_path / "none/meet"):
        check = check_link({"GPUWATCH_DIR": str(path)})
        assert check.state is State.PROBLEM
        assert str(path) in check.sentence
        assert check.cure


def test_a_variable_that_names_a_folder_of_a_file_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(processes, "mounts_of", lambda root: {"/": "ext4", str(remote): "nfs4"})
    check = check_link({"XDG_RUNTIME_DIR": str(remote), "TMPDIR": str(remote), "TEMP": str(local)})
    assert check.state is State.OK
    assert check.details["folder"] == str(local / f"gpuwatch-{os.geteuid()}")
    assert check.details["passed_over"] == "XDG_RUNTIME_DIR TMPDIR"
    assert "the folder of XDG_RUNTIME_DIR and TMPDIR is passed over" in check.sentence
