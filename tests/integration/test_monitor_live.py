"""The live monitor over real processes: a hooked training on the CPU, one without a hook, and simulated GPUs."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.monitor.wiring import live_monitor
from tests.integration.hook_programs import PREAMBLE, rendezvous, started

SLOW_TRAINING = (
    PREAMBLE
    + """
import time

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return data[index % 32]

for batch in DataLoader(Slow(), batch_size=4):
    train_on(batch)
    time.sleep(0.01)
"""
)


class Watch:
    """A live monitor whose snapshots a test waits for."""

    def __init__(self, attach_pid: int | None = None) -> None:
        self.monitor: Monitor = live_monitor(attach_pid=attach_pid)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self.monitor.subscribe(self._snapshots.put)
        self.monitor.start()

    def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """The next snapshot that fulfils the condition."""
        deadline = time.monotonic() + 60
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                snapshot = self._snapshots.get(timeout=left)
                if condition(snapshot):
                    return snapshot
        raise AssertionError(f"it never came; the last snapshot is {self.monitor.snapshot()}")

    def run_until(self, condition: Callable[[RunNow], bool]) -> RunNow:
        """The only run, once it fulfils the condition."""
        return self.until(lambda snapshot: len(snapshot.runs) == 1 and condition(snapshot.runs[0])).runs[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the monitor and the trainers of one test meet, and nobody else."""
    made = rendezvous(tmp_path)
    monkeypatch.setenv("GPUWATCH_DIR", str(made))
    return made


def test_hooked_training_is_followed_from_its_steps_to_its_end(folder: Path) -> None:
    with started(folder, SLOW_TRAINING) as training:
        watch = Watch()
        try:
            run = watch.run_until(lambda run: run.state == "training" and run.steps_total >= 20)
            assert (run.title, run.pid, run.rung, run.how_to_climb) == ("train.py", training.pid, "exact", None)
            assert run.wait_share is not None and run.wait_share > 0.5
            training.send_signal(signal.SIGSTOP)
            watch.run_until(lambda run: run.state == "stopped")
            training.send_signal(signal.SIGCONT)
            watch.run_until(lambda run: run.state == "training")
            training.kill()
            ended = watch.run_until(lambda run: run.state == "ended")
            assert ended.steps_total > run.steps_total
            assert watch.monitor.final_scene(60).runs[0].critical.ended == "killed"
        finally:
            watch.monitor.stop()
    assert watch.monitor.snapshot().notices == ()


def test_starved_training_is_named_with_its_line(folder: Path) -> None:
    line = next(n for n, text in enumerate(SLOW_TRAINING.splitlines(), 1) if "DataLoader(Slow()" in text)
    with started(folder, SLOW_TRAINING) as training:
        watch = Watch(training.pid)
        try:
            snapshot = watch.until(lambda snapshot: any(each.rule == "workers-zero" for each in snapshot.findings))
        finally:
            watch.monitor.stop()
    finding = next(each for each in snapshot.findings if each.rule == "workers-zero")
    assert finding.run == snapshot.runs[0].id
    assert finding.fix is not None
    assert (Path(finding.fix.file or "").name, finding.fix.line) == ("train.py", line)
    assert snapshot.scene is not None
    assert snapshot.scene.quality.own_cpu_share is not None


def test_training_without_a_hook_is_watched_from_outside(folder: Path) -> None:
    with started(folder, SLOW_TRAINING, hooked=False) as training:
        watch = Watch(training.pid)
        try:
            run = watch.run_until(lambda run: run.title == "train.py")
            scene = watch.monitor.final_scene(60)
        finally:
            watch.monitor.stop()
    assert (run.pid, run.rung, run.state, run.steps_total) == (training.pid, "proc", "not hooked", 0)
    assert run.how_to_climb is not None and "gpuwatch run" in run.how_to_climb
    assert scene.runs[0].critical.process is not None


def test_gpus_are_polled_while_nothing_trains(
    folder: Path, simulated_driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated_driver.write("wave 0 utilization square 5 95 0.5 0.5", "wave 1 utilization constant 40", gpus=2)
    for name, value in simulated_driver.env.items():
        monkeypatch.setenv(name, value)
    watch = Watch()
    try:
        snapshot = watch.until(lambda snapshot: [gpu.status for gpu in snapshot.gpus] == ["live", "live"])
        swinging, steady = snapshot.gpus
        assert swinging.utilization_sigma_percent is not None and swinging.utilization_sigma_percent > 20
        assert steady.utilization_mean_percent == pytest.approx(40, abs=1)
        assert snapshot.nvml is not None and snapshot.nvml.status == "ok"
    finally:
        watch.monitor.stop()
