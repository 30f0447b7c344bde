"""Being read changes nothing for the target: what it prints, how it ends, what memory it has."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.attached import (
    STEPS,
    TARGETS,
    attached_as_soon_as_possible,
    needs_training,
    pipes_of,
    reporting,
    running,
    training,
    wait_until_attached,
)
from tests.integration.command_line import PATIENCE_SECONDS

READING_MONITOR = TARGETS / "reading_monitor.py"
ENOUGH_LOOKS = 20


def undisturbed(steps: int) -> tuple[str, int]:
    """What the target prints when nobody reads it, and its peak memory in kilobytes."""
    run = subprocess.run([sys.executable, str(STEPS), str(steps)], capture_output=True, text=True, check=True)
    return run.stdout, int(run.stderr)


def test_short_targets_read_from_exec_to_exit_end_as_always() -> None:
    printed, _ = undisturbed(12)
    for _ in range(16):
        with running(STEPS, "12", "--hold", "6") as target:
            looks = read_until_gone(target)
            out, _ = target.communicate(timeout=PATIENCE_SECONDS)
        assert (target.returncode, out) == (0, printed)
        assert looks >= ENOUGH_LOOKS


def read_until_gone(target: subprocess.Popen[str]) -> int:
    """Reads all its threads without a pause; lets the target go on after some looks. Returns how many succeeded."""
    interpreter = attached_as_soon_as_possible(target.pid)
    looks = 0
    with pytest.raises(CannotReadError) as refusal:
        while True:
            looks += bool(interpreter.main_stack()) and bool(interpreter.stacks())
            if looks == ENOUGH_LOOKS:
                go_on(target)
                looks += 1
    interpreter.close()
    assert refusal.value.reason in (Reason.GONE, Reason.ZOMBIE)
    return looks


def go_on(target: subprocess.Popen[str]) -> None:
    """Ends the hold that it stands in, or will come to."""
    assert target.stdin is not None
    target.stdin.write("\n")
    target.stdin.flush()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_reader_killed_or_stopped_amid_a_read_leaves_the_target_as_it_was(sent: signal.Signals) -> None:
    steps = 300
    printed, peak_kilobytes = undisturbed(steps)
    moments = random.Random(int(sent))
    for _ in range(3):
        # It is there from the monitor's first look to the signal, however late either comes.
        with running(STEPS, str(steps), "--hold", "1", str(steps)) as target:
            assert target.stdout is not None
            before = [target.stdout.readline()]
            with reading(target.pid) as monitor:
                go_on(target)
                before += [target.stdout.readline() for _ in range(moments.randint(steps // 2, steps - 1))]
                assert monitor.poll() is None
                monitor.send_signal(sent)
                go_on(target)
                rest = target.stdout.read()  # communicate() would miss what readline() has read ahead
                _, peak = target.communicate(timeout=PATIENCE_SECONDS)
        assert (target.returncode, "".join(before) + rest) == (0, printed)
        assert int(peak) < 1.1 * peak_kilobytes


@contextmanager
def reading(pid: int) -> Iterator[subprocess.Popen[str]]:
    """A process that reads the target all the time, once it does."""
    root = str(Path(__file__).parents[2])
    monitor = subprocess.Popen(
        [sys.executable, str(READING_MONITOR), str(pid)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert monitor.stdout is not None
        assert monitor.stdout.readline() == "ready\n"
        yield monitor
    finally:
        monitor.kill()
        monitor.communicate()


@needs_training
def test_training_is_the_same_with_the_command_reading_it_killed_and_stopped(tmp_path: Path) -> None:
    """The numbers it prints follow from every random number it draws, here and in its workers."""
    alone = trained(tmp_path, ())
    attended = trained(tmp_path, (signal.SIGKILL, signal.SIGSTOP))
    assert attended == alone


def trained(folder: Path, signals: tuple[signal.Signals, ...]) -> tuple[str, int]:
    """What the training prints after its first epoch, and its exit code; a monitor per signal meets that signal."""
    with (
        training(folder, "--workers", "2", "--epochs", "10", stops_itself=True) as target,
        ExitStack() as monitors,
    ):
        assert target.stdout is not None
        watching = [monitors.enter_context(reporting(folder, target.pid)) for _ in signals]
        for monitor in watching:
            wait_until_attached(monitor, target.pid)
            assert pipes_of(monitor.pid).isdisjoint(pipes_of(target.pid))
        target.send_signal(signal.SIGCONT)
        printed = ""
        for monitor, sent in zip(watching, signals, strict=True):
            printed += target.stdout.readline()
            monitor.send_signal(sent)
        printed += target.stdout.read()
        return printed, target.wait(timeout=PATIENCE_SECONDS)
