"""Where the rendezvous folder is and when it is trusted."""

from __future__ import annotations

import _io
import errno
import os
import posix
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpuwatch.hook import folder
from gpuwatch.hook.folder import Folder, rendezvous_path
from gpuwatch.sources.hook_link import rendezvous
from gpuwatch.sources.hook_link.rendezvous import Processes

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


def mountinfo(*mounts: tuple[str, str]) -> bytes:
    lines = [f"36 1 0:36 / {point} rw,noatime shared:1 - {kind} server:/x rw" for point, kind in mounts]
    return "\n".join(lines).encode()


def test_mount_points_are_read_as_the_kernel_writes_them() -> None:
    content = mountinfo(("/", "ext4"), ("/a\\040b\\134c", "nfs4"), ("/a", "tmpfs"), ("/a", "fuse.sshfs"))
    expected = {"/": "ext4", "/a b\\c": "nfs4", "/a": "fuse.sshfs"}
    assert folder.mounts_in(content) == expected
    assert folder.mounts_in(b"\n1 2\n - \n") == {}


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "9p", "fuse.sshfs", "autofs", "a type of next year"])
def test_a_folder_that_a_server_can_keep_waiting_is_passed_over_by_both_sides_untouched(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    (remote / "deep").mkdir(parents=True)
    local.mkdir(mode=0o700)
    (local / "link").symlink_to(remote / "deep")
    (local / "relative").symlink_to("../remote")
    mounts = {"/": kind, str(tmp_path): "xfs", str(remote): kind}
    calls = {name: Mock(wraps=getattr(posix, name)) for name in ("stat", "lstat", "readlink", "access", "listdir")}
    for name, call in calls.items():
        monkeypatch.setattr(posix, name, call)
        monkeypatch.setattr(os, name, call)

    def chosen(**environment: str) -> str:
        path = folder.rendezvous_path(environment, ME, mounts)
        assert path == str(rendezvous.rendezvous_path(environment, ME, mounts=mounts))
        return path

    for elsewhere in (remote, remote / "deep", remote / "missing", local / "link", local / "relative" / "deep"):
        assert chosen(GPUWATCH_DIR=str(elsewhere), TMPDIR=str(local)) == str(local / f"gpuwatch-{ME}")
        assert chosen(XDG_RUNTIME_DIR=str(elsewhere), TMPDIR=str(local)) == str(local / f"gpuwatch-{ME}")
        assert chosen(TMPDIR=str(elsewhere), TEMP=str(local)) == str(local / f"gpuwatch-{ME}")
        assert rendezvous.folders_elsewhere({"TMPDIR": str(elsewhere)}, mounts) == ["TMPDIR"]
    mounts.update(dict.fromkeys(("/tmp", "/var", "/usr"), kind))
    assert chosen(TMPDIR=str(remote)) == f"/dev/shm/gpuwatch-{ME}"
    touched = [os.fspath(one.args[0]) for call in calls.values() for one in call.call_args_list]
    assert str(local / "link") in touched
    assert not [path for path in touched if path.startswith(str(remote))]
    assert chosen(GPUWATCH_DIR=str(local)) == f"/dev/shm/gpuwatch-{ME}", "the way to it leads through /tmp"


def test_a_loop_of_links_is_no_local_folder(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert not folder.is_local(str(tmp_path / "one"), {})


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_draft_that_cannot_be_completed_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    if failing == "rename":
        monkeypatch.setattr(posix, "rename", full)
    else:
        monkeypatch.setattr(_io, "FileIO", full)
    watched = Folder(str(tmp_path / "gpuwatch"), ME)
    watched.announce({"pid": 7, "start_ticks": 1})
    assert list((tmp_path / "gpuwatch").iterdir()) == []
    watched.withdraw()


USUAL, EXITING = 0x400040, 0x400044


@pytest.mark.parametrize(
    ("state", "flags", "start_ticks", "is_alive"),
    [("S", USUAL, 5000, True), ("R", EXITING, 5000, False), ("Z", EXITING, 5000, False), ("S", USUAL, 5001, False)],
)
def test_a_process_lives_until_the_kernel_takes_it_apart(
    tmp_path: Path, state: str, flags: int, start_ticks: int, is_alive: bool
) -> None:
    words = [state, "1", "77", "77", "0", "-1", str(flags), *["0"] * 12, str(start_ticks), "0", "0"]
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text(f"77 (python) {' '.join(words)}\n")
    assert Processes(tmp_path).is_alive(77, 5000) is is_alive
