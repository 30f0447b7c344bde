"""Targets to be read from outside, and ways to read them that end by themselves."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuwatch.reader.attach import Interpreter, attach
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.command_line import PATIENCE_SECONDS, ROOT, lonely_environment
from tests.integration.forked_python import ForkedPython
from tests.integration.process_groups import killed_after

TARGETS = Path(__file__).parent / "attach_targets"
STEPS = TARGETS / "steps.py"
AUGMENTED = ROOT / "benchmarks" / "scripts" / "augmented.py"

LOOKS = 100
"""A second or two of them: what the monitor does at its second look at a process, it has done."""

NOT_YET = {Reason.NOT_READY, Reason.NOT_PYTHON, Reason.NO_SYMBOLS}
"""What a process is while it is between fork, exec and the start of its interpreter."""

needs_training = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None or importlib.util.find_spec("torch") is None,
    reason="the training under test needs torch and Pillow: pip install torch pillow",
)


@contextmanager
def running(
    script: Path, *arguments: str, environment: dict[str, str] | None = None, forked: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A script in a Python of its own, whose pipes are ours; it is gone after the block.

    With `forked`, it comes from a Python that has imported torch already.
    """
    process = (ForkedPython if forked else subprocess.Popen)(
        [sys.executable, str(script), *arguments],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with killed_after(process):
        yield process


STOPS_ITSELF = """\
import builtins, os, signal

def printed_and_stopped(*words, **options):
    builtins.print = shown
    shown(*words, **options)
    os.kill(os.getpid(), signal.SIGSTOP)

shown, builtins.print = print, printed_and_stopped
"""
"""A sitecustomize.py by which a program stands still behind its first line: it cannot end before it is watched."""


@contextmanager
def training(
    folder: Path, *arguments: str, epoch_steps: int = 20, stops_itself: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """The plain training script with its files in the folder, once it has done its first epoch.

    With `stops_itself` it then stands still until it is sent SIGCONT.
    """
    options = ["--threads", "1", "--size", "32", "--width", "8", "--batch-size", "4", "--epoch-steps", str(epoch_steps)]
    options += ["--data", str(folder / "photos"), "--output", str(folder / "checkpoint.pt"), *arguments]
    environment = {}
    if stops_itself:
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / "sitecustomize.py").write_text(STOPS_ITSELF)
        environment["PYTHONPATH"] = str(folder / "site")
    with running(AUGMENTED, *options, environment=environment, forked=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("epoch 0:"), f"the training did not start: {line!r}"
        if stops_itself:
            wait_until_stopped(process)
        yield process


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    """Until all of its threads stand still."""
    while set(contents_of(Path(f"/proc/{process.pid}/task"), state_in)) != {"T"}:
        assert process.poll() is None
        time.sleep(0.001)


def state_in(folder: Path) -> str:
    """The state of the process or thread whose folder in /proc this is."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def held(target: subprocess.Popen[str]) -> Iterator[None]:
    """The target stands still in this block: it cannot come to its end before the block does."""
    target.send_signal(signal.SIGSTOP)
    wait_until_stopped(target)
    try:
        yield
    finally:
        target.send_signal(signal.SIGCONT)


def attached_as_soon_as_possible(pid: int) -> Interpreter:
    """Tries again while the target is still becoming a Python process.

    Raises:
        CannotReadError: It ended before that, or cannot be read for good.
    """
    while (interpreter := _attached(pid)) is None:
        pass
    return interpreter


def _attached(pid: int) -> Interpreter | None:
    try:
        return attach(pid)
    except CannotReadError as refusal:
        if refusal.reason not in NOT_YET:
            raise
        return None


@contextmanager
def reporting(folder: Path, pid: int) -> Iterator[subprocess.Popen[str]]:
    """`gpuwatch report --attach PID --format json`, running until the process ends; gone after the block."""
    command = [sys.executable, "-m", "gpuwatch", "report", "--attach", str(pid)]
    monitor = subprocess.Popen(
        [*command, "--duration", str(10 * PATIENCE_SECONDS), "--format", "json"],
        env=lonely_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield monitor
    finally:
        monitor.kill()
        monitor.communicate()


def wait_until_attached(monitor: subprocess.Popen[str], pid: int) -> None:
    """Until the monitor has looked at the target for a while.

    It holds a pidfd of what it reads, to make sure that it reads no other process, and one for a moment when it only
    tries whether it may; and between two looks its sampling thread sleeps, as no other of its threads does this often.
    """
    before: dict[str, int] | None = None
    while before is None or all(now - before.get(thread, 0) < LOOKS for thread, now in sleeps_of(monitor.pid).items()):
        assert monitor.poll() is None, monitor.communicate()
        time.sleep(0.01)
        if f"Pid:\t{pid}\n" not in "".join(contents_of(Path(f"/proc/{monitor.pid}/fdinfo"), Path.read_text)):
            before = None
        elif before is None:
            before = sleeps_of(monitor.pid)


def sleeps_of(pid: int) -> dict[str, int]:
    """How often each thread of a process has gone to sleep, but its first: that one polls, and looks at nothing."""
    texts = contents_of(Path(f"/proc/{pid}/task"), lambda thread: (thread / "status").read_text())
    fields = [dict(line.split(":\t", 1) for line in text.splitlines()) for text in texts]
    return {each["Pid"]: int(each["voluntary_ctxt_switches"]) for each in fields if each["Pid"] != str(pid)}


def pipes_of(pid: int) -> set[str]:
    """The pipes and sockets that a process holds an end of."""
    links = contents_of(Path(f"/proc/{pid}/fd"), lambda file: str(file.readlink()))
    return {link for link in links if link.startswith(("pipe:", "socket:"))}


def contents_of(folder: Path, read: Callable[[Path], str]) -> list[str]:
    """What each file in the folder says, without those that were closed in the meantime."""
    found = []
    for file in folder.iterdir():
        with suppress(OSError):
            found.append(read(file))
    return found
