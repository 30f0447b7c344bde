"""Trainers that look elsewhere: with another environment, in a container, with pids of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from link_monitor import LinkMonitor
from link_peer import start_ticks
from process_groups import killed_after

from gpuwatch.samples import RunFacts, TrainerEnded
from gpuwatch.sources.hook_link.source import HookLinkSource

HERE = Path(__file__).parent

# Leaves word in the folder its own environment names, waits for a monitor there, and speaks to it.
TRAINER = f"""
import json, os, sys, time
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]
from link_peer import *
from gpuwatch.hook.folder import rendezvous_path
folder = Path(rendezvous_path(os.environ, os.geteuid()))
folder.mkdir(0o700, parents=True, exist_ok=True)
word = {{"pid": os.getpid(), "start_ticks": start_ticks("self"), "command": ["x"], "cwd": "/"}}
word["pid_ns"] = os.stat("/proc/self/ns/pid").st_ino
(folder / f"trainer-{{os.getpid()}}.json").write_text(json.dumps(word))
print(os.getpid(), flush=True)
if sys.argv[1:] != ["silent"]:
    while True:
        try:
            peer = Peer(folder)
        except (StopIteration, ConnectionRefusedError):  # a socket is there a moment before it listens
            time.sleep(0.02)
        else:
            break
    peer.hello()
sys.stdin.read()
"""


@contextmanager
def trainer(*prefix: str, mode: str = "", **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A trainer process that has left word; killed at the end."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", TRAINER, *([mode] if mode else [])],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with killed_after(process):
        assert process.stdout is not None and process.stdout.readline().strip()
        yield process


def proc_with(root: Path, *pids: int) -> Path:
    """A /proc that shows only these processes, so that nothing else on the machine is looked at."""
    root.mkdir()
    for pid in (*pids, os.getpid(), "self"):
        (root / str(pid)).symlink_to(f"/proc/{pid}")
    return root


def inner_pid(process: subprocess.Popen[str]) -> int:
    """The trainer itself, where the process started is the tool that put it into a namespace."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        children = (task / "children").read_text().split()
        if children:
            return int(children[0])
    return process.pid


def test_trainer_with_another_temporary_folder_is_found(tmp_path: Path) -> None:
    """A batch system sets TMPDIR per job; the shell in which the monitor runs does not have it."""
    (tmp_path / "job").mkdir()
    with trainer(TMPDIR=str(tmp_path / "job")) as process:
        proc = proc_with(tmp_path / "proc", process.pid)
        source = HookLinkSource(tmp_path / "own", proc_root=proc, discover=True)
        with LinkMonitor(source) as monitor:
            monitor.until(lambda: bool(monitor.of(RunFacts)))
            assert monitor.of(RunFacts)[0].pid == process.pid
        assert list((tmp_path / "job" / f"gpuwatch-{os.geteuid()}").glob("monitor-*.sock")) == []


def test_named_folder_is_the_only_one_looked_at(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with trainer(TMPDIR=str(tmp_path / "job")) as process:
        proc = proc_with(tmp_path / "proc", process.pid)
        with LinkMonitor(HookLinkSource(tmp_path / "own", proc_root=proc)) as monitor:
            monitor.collect()
        environment = {"GPUWATCH_DIR": str(tmp_path / "own")}
        with LinkMonitor(HookLinkSource(environment=environment, proc_root=proc)) as monitor:
            monitor.collect()
            assert monitor.source.folder == tmp_path / "own"
        assert list((tmp_path / "job").rglob("monitor-*.sock")) == []


def can_unshare() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not can_unshare(), reason="making namespaces takes unshare (util-linux) and the right to use it"
)


@needs_namespaces
def test_trainer_in_a_container_is_known_by_the_pid_it_has_here(tmp_path: Path) -> None:
    """Its own temp dir and its own pids: it calls itself 1, and only /proc/PID/root leads to its folder.

    Not /tmp: the interpreter that runs these tests may live there.
    """
    inside = 'mount -t tmpfs none /var/tmp && exec "$@"'
    prefix = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", inside, "sh")
    with trainer(*prefix, TMPDIR="/var/tmp") as process:
        pid = inner_pid(process)
        proc = proc_with(tmp_path / "proc", pid)
        with LinkMonitor(HookLinkSource(tmp_path / "own", proc_root=proc, discover=True)) as monitor:
            monitor.until(lambda: bool(monitor.of(RunFacts)))
            facts = monitor.of(RunFacts)[0]
            assert (facts.trainer, facts.visibility) == (f"{pid}.{start_ticks(pid)}", "exact")
            os.kill(pid, 9)
            monitor.until(lambda: bool(monitor.of(TrainerEnded)))
            assert monitor.of(TrainerEnded)[0].how == "killed"


NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def can_be_nobody() -> bool:
    """Whether nobody may run this Python and read this checkout."""
    command = [*NOBODY, sys.executable, "-c", "import sys; open(sys.argv[1])", __file__]
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(
    not can_be_nobody(),
    reason="acting as another user takes root, setpriv (util-linux), and a Python and a checkout that others may read",
)
def test_root_sees_the_trainers_of_all_users() -> None:
    with tempfile.TemporaryDirectory() as job:
        Path(job).chmod(0o777)
        with trainer(*NOBODY, TMPDIR=job) as process:
            proc = proc_with(Path(job) / "proc", process.pid)
            source = HookLinkSource(Path(job) / "own", proc_root=proc, discover=True)
            with LinkMonitor(source) as monitor:
                monitor.until(lambda: bool(monitor.of(RunFacts)))
                assert monitor.of(RunFacts)[0].pid == process.pid


@needs_namespaces
def test_silent_trainer_of_another_pid_namespace_is_named_by_its_pid_here(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    prefix = ("unshare", "--pid", "--fork", "--mount-proc")
    with trainer(*prefix, mode="silent", GPUWATCH_DIR=str(folder)) as process:
        pid = inner_pid(process)
        with LinkMonitor(HookLinkSource(folder, proc_root=proc_with(tmp_path / "proc", pid))) as monitor:
            (word,) = folder.glob("trainer-*.json")
            assert word.name == "trainer-1.json"
            monitor.until(lambda: bool(monitor.of(RunFacts)))
            assert monitor.of(RunFacts)[0].pid == pid
            os.kill(pid, 9)
            monitor.until(lambda: bool(monitor.of(TrainerEnded)))
            assert not word.exists()


@needs_namespaces
def test_link_out_of_a_container_is_not_followed(tmp_path: Path) -> None:
    """Its /tmp could be a link to a folder of ours, which would then be taken for the container's."""
    trap = tmp_path / "trap"
    (trap / f"gpuwatch-{os.geteuid()}").mkdir(0o700, parents=True)
    inside = f'mount -t tmpfs none /mnt && ln -s {trap} /mnt/link && exec "$@"'
    prefix = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", inside, "sh")
    with trainer(*prefix, mode="silent", TMPDIR="/mnt/link") as process:
        assert list(trap.rglob("trainer-*.json"))
        proc = proc_with(tmp_path / "proc", inner_pid(process))
        with LinkMonitor(HookLinkSource(tmp_path / "own", proc_root=proc, discover=True)) as monitor:
            monitor.collect()
            monitor.collect()
        assert list(trap.rglob("monitor-*.sock")) == []
