"""Signals that a seed chooses, to a training, its workers, the monitor and its NVML child, while it is recorded."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.recording.reader import Recording
from gpuwatch.samples import StepEnd
from tests.faults.conftest import Place, SideBySide
from tests.faults.live import PATIENCE_SECONDS, children_of, environment, left_behind, nvml_children, wait_until
from tests.integration.process_groups import kill_group

PAUSES = 5
TRAINING = f"""
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = 8 * (10 * {PAUSES} + 5)
data = TensorDataset(torch.randn(samples, 4), torch.randint(2, (samples,)))
for step, (inputs, labels) in enumerate(DataLoader(data, batch_size=8, shuffle=True, num_workers=2)):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    if step % 10 == 9:
        print("waits", flush=True)
        sys.stdin.readline()
"""
SURVIVED = ("trainer STOP CONT", "worker STOP CONT", "child KILL", "child TERM", "child STOP CONT", "monitor STOP CONT")
FATAL = ("trainer KILL", "trainer TERM", "worker KILL", "worker TERM", "monitor KILL", "monitor TERM")


def state(pid: int) -> str:
    """The letter of /proc, Z also for what is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return "Z"


def has_socket(pid: int) -> bool:
    """Whether the training has found its monitor."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()).startswith("socket:"):
                return True
    return False


class Machine:
    """A training, and the monitor that records it unless it trains alone."""

    def __init__(self, trainer: subprocess.Popen[str], monitor: subprocess.Popen[bytes] | None) -> None:
        self.trainer = trainer
        self.monitor = monitor

    def pids(self, target: str) -> list[int]:
        """The processes that are meant; none of the monitor's where there is none."""
        if target == "trainer":
            return [self.trainer.pid]
        if target == "worker":
            return children_of(self.trainer.pid)[:1]
        if self.monitor is None:
            return []
        return [self.monitor.pid] if target == "monitor" else nvml_children(self.monitor.pid)

    def inject(self, fault: str) -> None:
        """Sends the signals, and waits until what was to stop has stopped, is gone, or is replaced."""
        target, *names = fault.split()
        for pid in self.pids(target):
            for name in names:
                os.kill(pid, signal.Signals[f"SIG{name}"])
                if name == "STOP":
                    wait_until(lambda pid=pid: state(pid) == "T")  # type: ignore[misc]
            if "STOP" not in names:
                wait_until(lambda pid=pid: state(pid) == "Z")  # type: ignore[misc]
            if target == "child" and "STOP" not in names:
                wait_until(lambda pid=pid: self.pids("child") not in ([], [pid]))  # type: ignore[misc]

    def train(self, faults: list[str]) -> tuple[int, str, str]:
        """The exit code and output of a training that meets one fault in each of its pauses."""
        assert self.trainer.stdin is not None and self.trainer.stdout is not None
        printed = ""
        for fault in faults:
            for line in self.trainer.stdout:
                printed += line
                if line == "waits\n":
                    break
            if self.monitor is not None and self.monitor.poll() is None:
                wait_until(lambda: has_socket(self.trainer.pid))
            self.inject(fault)
            if fault in FATAL and not fault.startswith("monitor"):
                self.trainer.wait(PATIENCE_SECONDS)  # in its pause, which an end of input would end
            else:
                self.trainer.stdin.write("\n")
                self.trainer.stdin.flush()
        out, err = self.trainer.communicate(timeout=PATIENCE_SECONDS)
        return self.trainer.returncode, printed + out, re.sub(r"pid\(s\) [\d, ]+|pid \d+", "pid", err)


@contextmanager
def machine(folder: Path, driver: SimulatedDriver, recording: Path | None) -> Iterator[Machine]:
    env = environment(folder, driver)
    gpuwatch = [sys.executable, "-m", "gpuwatch"]
    (folder / "train.py").write_text(TRAINING)
    with ExitStack() as stack:
        monitor = None
        if recording is not None:
            words = [*gpuwatch, "record", "-o", str(recording)]
            monitor = stack.enter_context(subprocess.Popen(words, env=env, stderr=subprocess.PIPE))
            stack.callback(monitor.kill)
            assert monitor.stderr is not None and b"recording into" in monitor.stderr.readline()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        hooked = [*gpuwatch, "run"] if monitor is not None else []
        trainer = stack.enter_context(
            subprocess.Popen(
                [*hooked, sys.executable, "train.py"], env=env, cwd=folder, text=True, start_new_session=True, **pipes
            )
        )
        stack.callback(kill_group, trainer)
        yield Machine(trainer, monitor)
    wait_until(lambda: not left_behind(env))


def test_whatever_is_stopped_or_killed_the_training_is_as_without_gpuwatch(side_by_side: SideBySide) -> None:
    """Exit code, output and errors are compared with the same training, and its signals, without gpuwatch."""
    pytest.importorskip("torch")

    def check(place: Place, last: str) -> None:
        rng = random.Random(last)
        faults = [*rng.sample(SURVIVED, PAUSES - 1), last]
        with machine(place.folder, place.driver, None) as alone:
            expected = alone.train(faults)
        kept = place.folder / "a.gpuwatch"
        with machine(place.folder, place.driver, kept) as watched:
            assert watched.monitor is not None
            assert watched.train(faults) == expected, faults
            if not last.startswith("monitor"):
                assert watched.monitor.poll() is None, "the monitor has ended"
                watched.monitor.send_signal(signal.SIGINT)
            ended = {"monitor KILL": -signal.SIGKILL}.get(last, 130)
            assert watched.monitor.wait(PATIENCE_SECONDS) == ended
        with Recording(kept) as recording:
            assert recording.meta.ended == (last != "monitor KILL")
            samples = recording.samples(recording.start_ns, recording.end_ns)
            steps = [sample for sample in samples if isinstance(sample, StepEnd)]
        if last != "monitor KILL":  # a killed recorder lacks its last second, which may be all of so short a training
            assert {step.trainer.partition(".")[0] for step in steps} == {str(watched.trainer.pid)}

    side_by_side(check, {last: last for last in FATAL}, few={"trainer KILL", "worker KILL", "monitor KILL"})
