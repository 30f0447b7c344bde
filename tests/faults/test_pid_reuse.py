"""A pid that the kernel gives to another training: in a pid namespace of the test's own, where the next one is chosen.

Run as a program, this is the inside of that namespace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.samples import RunFacts, Sample, StepEnd, TrainerEnded
from tests.faults.live import PATIENCE_SECONDS, environment, wait_until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NOT_POSSIBLE = 77
STEPS = 3
ATTEMPTS = 50
"""The monitor starts threads and processes too, one of which may get the number first."""
TRAINING = """
import sys, gpuwatch
gpuwatch.watch()
print("ready", flush=True)
for line in sys.stdin:
    gpuwatch.step(int(line))
    print("done", flush=True)
"""


def recorded(path: Path) -> list[Sample]:
    with Recording(path) as recording:
        return [*recording.samples(recording.start_ns, recording.end_ns)]


def trained(path: Path, samples: int) -> list[StepEnd]:
    """The steps of the training whose steps have this many samples."""
    return [each for each in recorded(path) if isinstance(each, StepEnd) and each.samples == samples]


def training() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def training_with(pid: int) -> subprocess.Popen[str]:
    """A new training that has the number of an old one."""
    for _ in range(ATTEMPTS):
        LAST_PID.write_text(str(pid - 1))
        process = training()
        if process.pid == pid:
            return process
        process.kill()
        process.communicate()
    raise AssertionError(f"nobody got pid {pid}")


def step(process: subprocess.Popen[str], samples: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{samples}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def steps_until(process: subprocess.Popen[str], samples: int, is_enough: Callable[[], bool]) -> None:
    """Steps until it is enough: what a step has done goes to the monitor with a later one."""

    def once_more() -> bool:
        step(process, samples)
        return is_enough()

    wait_until(once_more)


def inside(path: Path) -> int:
    """Three trainings, one after the other, under one pid; the monitor is stopped as the second takes it."""
    words = [sys.executable, "-m", "gpuwatch", "record", "-o", str(path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as monitor:
        assert monitor.stderr is not None and b"recording into" in monitor.stderr.readline()
        first = training()
        try:
            LAST_PID.write_text(LAST_PID.read_text())
        except OSError as error:
            print(error)
            return NOT_POSSIBLE
        steps_until(first, 1, lambda: len(trained(path, 1)) >= STEPS)
        monitor.send_signal(signal.SIGSTOP)
        first.kill()
        first.wait()
        second = training_with(first.pid)
        step(second, 2)
        monitor.send_signal(signal.SIGCONT)
        steps_until(second, 2, lambda: len(trained(path, 2)) >= STEPS)
        second.kill()
        second.wait()
        third = training_with(first.pid)
        steps_until(third, 3, lambda: len(trained(path, 3)) >= STEPS)
        third.communicate()
        last = trained(path, 3)[0].trainer
        wait_until(lambda: any(isinstance(each, TrainerEnded) and each.trainer == last for each in recorded(path)))
        monitor.send_signal(signal.SIGINT)
        assert monitor.wait(PATIENCE_SECONDS) == 130
    print(first.pid)
    return 0


def test_trainings_that_have_one_pid_after_each_other_are_three_runs(tmp_path: Path) -> None:
    try:
        can_unshare = not subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    except FileNotFoundError:
        can_unshare = False
    if not can_unshare:
        pytest.skip("making namespaces takes unshare (util-linux) and the right to use it")
    path = tmp_path / "a.gpuwatch"
    env = environment(tmp_path, None)
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[1])
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.faults.test_pid_reuse", str(path)],
        env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS,
    )  # fmt: skip
    if done.returncode == NOT_POSSIBLE:
        pytest.skip(f"the next pid cannot be chosen here: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout)
    samples = recorded(path)
    names = [next(step.trainer for step in trained(path, number)) for number in (1, 2, 3)]
    assert len(set(names)) == 3 and all(name.startswith(f"{pid}.") for name in names)
    assert {each.trainer for each in samples if isinstance(each, RunFacts) and each.pid == pid} == set(names)
    for number, name in enumerate(names, 1):
        assert {step.samples for step in samples if isinstance(step, StepEnd) and step.trainer == name} == {number}
    ends = [(each.trainer, each.how) for each in samples if isinstance(each, TrainerEnded) and each.trainer in names]
    assert ends == [(names[0], "killed"), (names[1], "killed"), (names[2], "exited")]


if __name__ == "__main__":
    raise SystemExit(inside(Path(sys.argv[1])))
