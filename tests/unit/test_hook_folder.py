"""Where the rendezvous folder is and when it is trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.hook.folder import Folder, rendezvous_path

ME = os.geteuid()


def test_the_override_wins_then_the_runtime_folder_then_the_temp_folder(tmp_path: Path) -> None:
    runtime, temporary = tmp_path / "run", tmp_path / "tmp"
    runtime.mkdir()
    temporary.mkdir()
    environment = {"GPUWATCH_DIR": "/x", "XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(temporary)}
    assert rendezvous_path(environment, ME) == "/x"
    del environment["GPUWATCH_DIR"]
    assert rendezvous_path(environment, ME) == str(runtime / "gpuwatch")
    assert rendezvous_path(environment, ME + 1) == str(temporary / f"gpuwatch-{ME + 1}"), "a runtime folder not mine"
    environment["XDG_RUNTIME_DIR"] = str(tmp_path / "missing")
    assert rendezvous_path(environment, ME) == str(temporary / f"gpuwatch-{ME}")
    environment["TMPDIR"] = str(tmp_path / "missing")
    assert rendezvous_path(environment, ME) == f"/tmp/gpuwatch-{ME}"


@pytest.mark.parametrize(("mode", "user", "trusted"), [(0o700, ME, True), (0o750, ME, False), (0o700, ME + 1, False)])
def test_only_a_folder_of_mine_that_is_closed_to_others_is_trusted(
    tmp_path: Path, mode: int, user: int, trusted: bool
) -> None:
    folder = tmp_path / "gpuwatch"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "monitor-1.sock").touch()
    assert Folder(str(folder), user).is_trusted() is trusted
    assert Folder(str(folder), user).monitors() == (["monitor-1.sock"] if trusted else [])
    (tmp_path / "link").symlink_to(folder)
    assert not Folder(str(tmp_path / "link"), user).is_trusted()


def test_the_folder_is_listed_when_it_changed_and_again_while_the_change_is_fresh(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    folder.mkdir(mode=0o700)
    watched = Folder(str(folder), ME)
    (folder / "monitor-2.sock").touch()
    assert watched.monitors_if_changed() == ["monitor-2.sock"]
    assert watched.monitors_if_changed() == ["monitor-2.sock"], "time stamps are coarse: a change may hide in the tick"
    os.utime(folder, (1, 1))
    assert watched.monitors_if_changed() == ["monitor-2.sock"]
    assert watched.monitors_if_changed() is None


def test_a_presence_file_is_withdrawn_unless_somebody_else_has_taken_its_name(tmp_path: Path) -> None:
    path = tmp_path / "gpuwatch" / "trainer-7.json"
    folder = Folder(str(path.parent), ME)
    folder.announce({"pid": 7, "start_ticks": 1})
    assert path.read_text() == '{"pid": 7, "start_ticks": 1}'
    assert path.parent.stat().st_mode & 0o777 == 0o700
    folder.withdraw()
    assert not path.exists()
    folder.announce({"pid": 7, "start_ticks": 1})
    other = Folder(str(path.parent), ME)
    other.announce({"pid": 7, "start_ticks": 2})
    folder.withdraw()
    assert path.exists()
