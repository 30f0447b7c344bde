"""Whose files the names of a run lead to: those of the process while it runs, else of this machine only for its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.edits.source import UnreadableSourceError, read_recorded_source, read_source
from gpuwatch.foreign import whereabouts
from gpuwatch.procfs import read_stat
from gpuwatch.samples import RunFacts

NOBODY = 65534


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("step()\n")
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.gpuwatch"
    path.touch()
    return path


def ended(**fields: object) -> RunFacts:
    """A process of this machine that has ended: this one's start is another."""
    facts = RunFacts(0, "1.1", os.getpid(), 1, ("python", "train.py"), **whereabouts()._asdict())
    return replace(facts, **fields)  # type: ignore[arg-type]


def test_files_of_an_ended_process_of_this_machine_are_read(script: Path, recording: Path) -> None:
    assert read_source(script, None, ended()) == b"step()\n"
    assert read_recorded_source(recording, script, None, ended()) == b"step()\n"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"boot": "00000000-0000-0000-0000-000000000000"}, "another machine, or before"),
        ({"mount_namespace": 4}, "in a container"),
        ({"boot": None}, "not known"),
        ({"mount_namespace": None}, "not known"),
    ],
)
def test_files_of_another_machine_boot_or_container_are_not_read(
    script: Path, recording: Path, fields: dict[str, object], reason: str
) -> None:
    for read in (
        lambda: read_source(script, None, ended(**fields)),
        lambda: read_recorded_source(recording, script, None, ended(**fields)),
    ):
        with pytest.raises(UnreadableSourceError, match=reason):
            read()


def test_a_recorded_pid_that_runs_again_elsewhere_leads_nowhere(script: Path, recording: Path) -> None:
    alive = read_stat("/proc", os.getpid()).start_ticks
    facts = ended(start_ticks=alive, boot="00000000-0000-0000-0000-000000000000")
    with pytest.raises(UnreadableSourceError, match="another machine"):
        read_recorded_source(recording, script, None, facts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_recording_of_another_user_names_no_file_of_mine(script: Path, recording: Path) -> None:
    os.chown(recording, NOBODY, NOBODY)
    with pytest.raises(UnreadableSourceError, match=f"of user {NOBODY}"):
        read_recorded_source(recording, script, None, ended())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could read a file that the process's user cannot")
def test_root_reads_with_the_rights_of_the_user_of_an_ended_process(script: Path) -> None:
    script.chmod(0o600)
    assert read_source(script, None, ended(user=0)) == b"step()\n"
    with pytest.raises(UnreadableSourceError, match="Permission denied"):
        read_source(script, None, ended(user=NOBODY))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root of a process")
def test_files_of_a_running_process_with_another_root_are_its_own(script: Path, tmp_path: Path) -> None:
    (tmp_path / "jail").mkdir()
    inner = tmp_path / "jail" / script.relative_to("/")
    inner.parent.mkdir(parents=True)
    inner.write_text("inside()\n")
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        os.chroot(tmp_path / "jail")
        os.chdir("/")
        os.write(told, b"!")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"!"
        ticks = read_stat("/proc", pid).start_ticks
        assert read_source(script, None, ended(pid=pid, start_ticks=ticks)) == b"inside()\n"
    finally:
        os.close(ready)
        os.close(told)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_where_a_process_is_is_known_while_it_runs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert whereabouts(child.pid) == whereabouts()
    child.communicate(b"\n")
