"""The rendezvous folder on a real file system: trusted or refused, left clean, found again."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from link_monitor import LinkMonitor
from link_peer import Peer, start_ticks

from gpuwatch.hook.folder import rendezvous_path as path_of_the_hook
from gpuwatch.samples import LinkLoss, RunFacts, TrainerEnded
from gpuwatch.sources.hook_link.rendezvous import Rendezvous, RendezvousError, rendezvous_path
from gpuwatch.sources.hook_link.source import HookLinkSource

SECOND = 1_000_000_000
ME = os.geteuid()


def presence(folder: Path, pid: int, ticks: int, **more: object) -> Path:
    path = folder / f"trainer-{pid}.json"
    content = {"version": 1, "pid": pid, "start_ticks": ticks, "command": ["python", "a.py"], "cwd": "/x", **more}
    path.write_text(json.dumps(content))
    return path


def test_folder_and_socket_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    before = os.umask(0)
    try:
        source = HookLinkSource(folder)
    finally:
        os.umask(before)
    with LinkMonitor(source):
        (address,) = folder.glob("monitor-*.sock")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert address.name == f"monitor-{os.getpid()}.sock"


def test_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "gpuwatch").symlink_to(tmp_path / "real")
    with pytest.raises(RendezvousError, match="links are not followed"):
        Rendezvous.create(tmp_path / "gpuwatch", ME)


def test_folder_open_to_others_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "gpuwatch").mkdir()
    (tmp_path / "gpuwatch").chmod(0o755)
    with pytest.raises(RendezvousError, match=f"chmod 700 {tmp_path}"):
        Rendezvous.create(tmp_path / "gpuwatch", ME)


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpuwatch").mkdir(0o700)
    with pytest.raises(RendezvousError, match=f"belongs to user {ME}"):
        Rendezvous.open(tmp_path / "gpuwatch", ME + 1)


def test_unusable_folder_is_said_once_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    folder.mkdir()
    folder.chmod(0o755)
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        assert "chmod 700" in (monitor.source.problem or "")
        now = time.monotonic_ns()
        for second in range(30):
            monitor.collect(now + second * SECOND)
        assert [loss.detail for loss in monitor.of(LinkLoss)] == [monitor.source.problem]
        folder.chmod(0o700)
        monitor.collect(now + 60 * SECOND)
        assert monitor.source.problem is None
        assert list(folder.glob("monitor-*.sock"))


def test_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with LinkMonitor(HookLinkSource(deep / "gpuwatch")) as monitor:
        descriptor = os.open(deep / "gpuwatch", os.O_PATH)
        Peer(Path(f"/proc/self/fd/{descriptor}")).hello()
        os.close(descriptor)
        monitor.until(lambda: bool(monitor.of(RunFacts)))
        assert {facts.pid for facts in monitor.of(RunFacts)} == {os.getpid()}
        assert monitor.source.problem is None


def test_sockets_of_dead_monitors_are_removed_and_living_ones_kept(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    folder.mkdir(0o700)
    listeners = {}
    for name in ("monitor-1.sock", "monitor-999999.sock", f"monitor-{os.getpid()}.sock"):
        listeners[name] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listeners[name].bind(str(folder / name))
        listeners[name].listen()
    for name in ("monitor-999999.sock", f"monitor-{os.getpid()}.sock"):
        listeners[name].close()
    with LinkMonitor(HookLinkSource(folder)):
        assert {path.name for path in folder.iterdir()} == {"monitor-1.sock", f"monitor-{os.getpid()}.sock"}
    listeners["monitor-1.sock"].close()


def test_folder_that_was_cleaned_away_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        monitor.collect()
        now = time.monotonic_ns()
        (socket_path,) = folder.glob("monitor-*.sock")
        socket_path.unlink()
        monitor.collect(now + 20 * SECOND)
        assert socket_path.exists()
        socket_path.unlink()
        folder.rmdir()
        monitor.collect(now + 40 * SECOND)
        assert socket_path.exists()
        Peer(folder).hello()
        monitor.until(lambda: bool(monitor.of(RunFacts)))


def test_hooked_process_that_is_silent_is_named_and_its_end_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            ticks = start_ticks(process.pid)
            path = presence(folder, process.pid, ticks)
            now = time.monotonic_ns()
            monitor.collect(now)
            assert monitor.of(RunFacts) == [], "a trainer that is about to link says more itself"
            for second in range(1, 6):
                monitor.collect(now + second * SECOND)
            (facts,) = monitor.of(RunFacts)
            assert (facts.trainer, facts.command, facts.cwd) == (f"{process.pid}.{ticks}", ("python", "a.py"), "/x")
            assert facts.visibility == "process"
            assert "hooked, but" in facts.notes[0]
            process.kill()
            process.wait()
        monitor.collect(now + 7 * SECOND)
        assert [(end.trainer, end.how) for end in monitor.of(TrainerEnded)] == [(facts.trainer, "killed")]
        assert not path.exists()


def test_linked_trainer_is_not_named_a_second_time(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        presence(folder, os.getpid(), start_ticks(os.getpid()))
        peer = Peer(folder)
        peer.hello()
        now = time.monotonic_ns()
        for second in range(6):
            monitor.collect(now + second * SECOND)
        assert [facts.visibility for facts in monitor.of(RunFacts)] == ["exact"]


def test_files_of_the_dead_are_removed_those_of_the_living_kept(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        mine = presence(folder, os.getpid(), start_ticks(os.getpid()))
        gone = presence(folder, dead.pid, 5)
        reused = presence(folder, 1, start_ticks(1) + 1)
        elsewhere = presence(folder, dead.pid + 1, 5, pid_ns=4)
        (folder / "trainer-7.json").write_text("{")
        (folder / "trainer-8.json").symlink_to(mine)
        os.mkfifo(folder / "trainer-9.json")
        monitor.collect()
        assert mine.exists()
        assert not gone.exists()
        assert not reused.exists(), "the pid lives, but it is another process"
        if not monitor.source._processes.sees_all:
            assert elsewhere.exists(), "a pid of another namespace says nothing here"


def test_drafts_of_killed_trainers_and_sockets_of_a_killed_doctor_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    folder.mkdir(0o700)
    old, fresh = folder / "trainer-7.json.12.new", folder / "trainer-8.json.13.new"
    for draft in (old, fresh):
        draft.write_text("{")
    os.utime(old, (time.time() - 90, time.time() - 90))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as doctor:
        doctor.bind(str(folder / "doctor-7-1.sock"))
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        monitor.collect()
        assert [path.name for path in folder.glob("[td]*")] == [fresh.name]


def test_a_file_of_a_container_that_is_gone_is_removed_by_who_sees_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "gpuwatch"
    for sees_all in (False, True):
        with LinkMonitor(HookLinkSource(folder)) as monitor:
            elsewhere = presence(folder, 1, 5, pid_ns=4)
            monitor.source._processes.sees_all = sees_all
            monitor.collect()
            assert elsewhere.exists() is not sees_all


@pytest.mark.parametrize(
    "environment",
    [
        {"GPUWATCH_DIR": "/somewhere/else"},
        {"XDG_RUNTIME_DIR": "{tmp}"},
        {"XDG_RUNTIME_DIR": "/does/not/exist"},
        {"TMPDIR": "{tmp}"},
        {"TMPDIR": "/does/not/exist"},
        {},
    ],
)
def test_monitor_and_hook_choose_the_same_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    settings = {name: value.format(tmp=tmp_path) for name, value in environment.items()}
    assert str(rendezvous_path(settings, ME)) == path_of_the_hook(settings, ME)
