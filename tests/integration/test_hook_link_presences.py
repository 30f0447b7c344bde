"""Presence files that mean harm, and runs that have the hook but cannot link: named truthfully, or not at all."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from link_monitor import LinkMonitor
from link_peer import start_ticks

from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.monitor.verdict import state_sentence
from gpuwatch.samples import LinkLoss, RunFacts
from gpuwatch.sources.hook_link.rendezvous import Rendezvous
from gpuwatch.sources.hook_link.source import HookLinkSource
from gpuwatch.timeline.timeline import Timeline

SECOND = 1_000_000_000
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files and processes of another user take root's rights")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gpuwatch"
    path.mkdir(0o700)
    yield path


def presence(folder: Path, pid: int, ticks: int | None = None, **more: object) -> Path:
    path = folder / f"trainer-{pid}.json"
    ticks = start_ticks(pid) if ticks is None else ticks
    content = {"version": 1, "pid": pid, "start_ticks": ticks, "command": ["python", "a.py"], "cwd": "/x", **more}
    path.write_text(json.dumps(content))
    return path


def named(folder: Path, seconds: int = 4) -> tuple[list[RunFacts], list[LinkLoss]]:
    """What a monitor says of the folder's silent runs within some of its seconds."""
    with LinkMonitor(HookLinkSource(folder)) as monitor:
        now = time.monotonic_ns()
        for second in range(seconds):
            monitor.collect(now + second * SECOND)
        return monitor.of(RunFacts), monitor.of(LinkLoss)


@needs_root
def test_a_presence_file_cannot_name_a_process_of_another_user(folder: Path) -> None:
    presence(folder, os.getpid())
    facts, _ = named(folder)
    assert [each.pid for each in facts] == [os.getpid()]
    os.chown(folder / f"trainer-{os.getpid()}.json", 1234, -1)
    os.chown(folder, 1234, -1)
    theirs = Rendezvous.open(folder, 1234)
    try:
        from gpuwatch.sources.hook_link.rendezvous import PresenceWatch, Processes

        assert [found.pid for found in theirs.presences()] == [os.getpid()]
        watch = PresenceWatch(Processes(Path("/proc")))
        samples = [sample for second in range(9) for sample in watch.look([theirs], (), second * SECOND)]
    finally:
        theirs.close()
    assert samples == []
    assert (folder / f"trainer-{os.getpid()}.json").exists(), "nor is it removed for somebody else's life"


def test_a_pid_that_another_process_has_by_now_is_not_named_and_its_file_goes(folder: Path) -> None:
    path = presence(folder, os.getpid(), start_ticks(os.getpid()) - 1)
    facts, _ = named(folder)
    assert facts == []
    assert not path.exists()


def reads(folder: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    read = Rendezvous._presence
    monkeypatch.setattr(Rendezvous, "_presence", lambda self, name: (opened.append(name), read(self, name))[1])
    list(folder.presences())
    return opened


def test_a_file_is_read_again_only_when_it_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = presence(folder, os.getpid())
    opened = Rendezvous.open(folder, os.geteuid())
    try:
        assert len(reads(opened, monkeypatch)) == 1
        assert reads(opened, monkeypatch) == []
        presence(folder, os.getpid(), cwd="/elsewhere")
        assert len(reads(opened, monkeypatch)) == 1
        assert [each.cwd for each in opened.presences()] == ["/elsewhere"]
        path.unlink()
        assert list(opened.presences()) == []
    finally:
        opened.close()


def test_large_files_pipes_links_and_folders_are_not_read(folder: Path, tmp_path: Path) -> None:
    presence(folder, os.getpid(), cwd="x" * 5000)
    os.mkfifo(folder / "trainer-2.json")
    (folder / "trainer-3.json").mkdir()
    elsewhere = presence(tmp_path, 4, 5)
    (folder / "trainer-4.json").symlink_to(elsewhere)
    opened = Rendezvous.open(folder, os.geteuid())
    try:
        assert list(opened.presences()) == []
    finally:
        opened.close()


def test_more_files_than_are_read_are_said_once(folder: Path) -> None:
    for number in range(1100):
        (folder / f"trainer-{9_000_000 + number}.json").write_text("{}")
    _, losses = named(folder)
    assert len(losses) == 1
    assert f"{folder} holds more presence files than gpuwatch reads" in losses[0].detail


def test_what_the_hook_writes_is_short_enough_to_be_read(folder: Path) -> None:
    from gpuwatch.hook.folder import Folder

    hook = Folder(str(folder), os.geteuid())
    command = ["python", "a.py", *("\x01" * 900 for _ in range(200))]
    pid = os.getpid()
    hook.announce({"version": 1, "pid": pid, "start_ticks": start_ticks(pid), "command": command, "cwd": "/x" * 2000})
    opened = Rendezvous.open(folder, os.geteuid())
    try:
        (found,) = opened.presences()
        assert found.pid == pid
        assert found.command[:1] == ("python",)
    finally:
        opened.close()
        hook.withdraw()


TRAINING = "import time, gpuwatch\ngpuwatch.watch()\nwhile True:\n    gpuwatch.step()\n    time.sleep(0.01)\n"


def test_a_run_that_serves_four_others_is_called_hooked_not_unhooked(folder: Path) -> None:
    """Four monitors that listen before the fifth take all of its links."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(4)]
        for number, listener in enumerate(listeners, 1):
            listener.bind(str(folder / f"monitor-{number}.sock"))
            listener.listen()
        environment = {**os.environ, "GPUWATCH_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        process = stack.enter_context(subprocess.Popen([sys.executable, "-c", TRAINING], env=environment))
        stack.callback(process.kill)
        for listener in listeners:
            assert select.select([listener], [], [], 120)[0], "the hook links to each of the first four"
            stack.enter_context(listener.accept()[0])
        monitor = stack.enter_context(LinkMonitor(HookLinkSource(folder)))
        monitor.until(lambda: bool(monitor.of(RunFacts)), seconds=120)
        (facts,) = monitor.of(RunFacts)
        assert facts.pid == process.pid
        assert facts.hooked
        timeline = Timeline(started_ns=facts.time_ns)
        timeline.extend(monitor.samples)
        snapshot = build_snapshot(
            timeline, now_ns=facts.time_ns, wall_time=0.0, origin=Origin("live", "LIVE"), evaluation=Evaluation()
        )
        (run,) = snapshot.runs
        assert run.state == "not linked"
        said = state_sentence(run, snapshot)
        assert said == "hooked, but already linked to 4 other gpuwatch processes, the most that a run serves; close one"
        assert run.how_to_see_more == said


def test_a_run_that_has_done_nothing_yet_is_called_hooked_too(folder: Path) -> None:
    presence(folder, os.getpid())
    facts, _ = named(folder)
    assert [(each.hooked, each.how_to_see_more) for each in facts] == [
        (True, "hooked, but it has done nothing that the hook reports since this gpuwatch started")
    ]
