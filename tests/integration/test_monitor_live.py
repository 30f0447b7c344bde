"""The live monitor over real processes: a hooked training on the CPU, and simulated GPUs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.timeline.windows import LineShare
from tests.integration.hook_programs import PREAMBLE, rendezvous, started
from tests.integration.live_watch import Watch, needs_reading

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the monitor and the trainers of one test meet, and nobody else."""
    made = rendezvous(tmp_path)
    monkeypatch.setenv("GPUWATCH_DIR", str(made))
    return made


def test_hooked_training_is_followed_from_its_steps_to_its_end(folder: Path) -> None:
    with started(folder, SLOW_TRAINING, forked=True) as training:
        watch = Watch()
        try:
            # A machine that holds the training elsewhere for seconds outweighs the first waits, not those of a minute.
            run = watch.run_until(
                lambda run: run.state == "training" and run.steps_total >= 20 and (run.wait_share or 0.0) > 0.3
            )
            assert (run.title, run.pid, run.visibility, run.how_to_see_more) == (
                "train.py",
                training.pid,
                "exact",
                None,
            )
            training.send_signal(signal.SIGSTOP)
            watch.run_until(lambda run: run.state == "stopped")
            training.send_signal(signal.SIGCONT)
            again = watch.run_until(lambda found: found.state == "training" and found.steps_total > run.steps_total)
            training.kill()
            ended = watch.run_until(lambda run: run.state == "ended")
            assert ended.steps_total >= again.steps_total
            assert watch.monitor.final_scene(60).runs[0].critical.ended == "killed"
        finally:
            watch.monitor.stop()
    assert watch.monitor.snapshot().notices == ()


def test_starved_training_is_named_with_its_line(folder: Path) -> None:
    line = next(n for n, text in enumerate(SLOW_TRAINING.splitlines(), 1) if "DataLoader(Slow()" in text)
    with started(folder, SLOW_TRAINING, forked=True) as training:
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


def place_of(line: LineShare | None) -> tuple[str, int, str] | None:
    return None if line is None else (Path(line.file).name, line.line, line.phase)


def test_hooked_training_says_where_it_stands_and_which_line_costs(folder: Path) -> None:
    line = next(n for n, text in enumerate(SLOW_TRAINING.splitlines(), 1) if "time.sleep(0.01)" in text)
    hot = ("train.py", line, "wait")
    with started(folder, SLOW_TRAINING, forked=True) as training:
        needs_reading(training.pid)
        watch = Watch()
        try:
            run = watch.run_until(
                lambda run: run.current_line is not None and run.samples >= 100 and place_of(run.top_line) == hot
            )
        finally:
            watch.monitor.stop()
    assert run.visibility == "exact"


def test_gpus_are_polled_while_nothing_trains(
    folder: Path, simulated_driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated_driver.write("wave 0 utilization square 5 95 0.5 0.5", "wave 1 utilization constant 40", gpus=2)
    for name, value in simulated_driver.env.items():
        monkeypatch.setenv(name, value)
    watch = Watch()
    try:
        snapshot = watch.until(
            lambda snapshot: (
                snapshot.nvml is not None
                and snapshot.nvml.status == "ok"
                and [gpu.status for gpu in snapshot.gpus] == ["live", "live"]
                and (snapshot.gpus[0].utilization_sigma_percent or 0.0) > 20
            )
        )
        steady = snapshot.gpus[1]
        assert steady.utilization_mean_percent == pytest.approx(40, abs=1)
    finally:
        watch.monitor.stop()
