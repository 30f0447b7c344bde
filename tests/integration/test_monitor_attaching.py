"""The live monitor attached to real trainings that know nothing of gpuwatch, and turned while it runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuwatch.monitor.snapshot import RunNow
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.sources.stacks import workers
from tests.integration.hook_programs import PREAMBLE, rendezvous, started
from tests.integration.live_watch import Watch, needs_reading

TRAINING = (
    PREAMBLE
    + """
import time

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return data[index % 32]

train_on(data[:4])  # what the first step of all imports is no part of the loop
print("ready", flush=True)
for batch in DataLoader(Slow(), batch_size=4):
    train_on(batch)
    time.sleep(0.01)
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the monitor would meet trainers that are hooked."""
    made = rendezvous(tmp_path)
    monkeypatch.setenv("GPUWATCH_DIR", str(made))
    return made


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TRAINING.splitlines(), 1) if text in line)


def waits_most(run: RunNow) -> bool:
    """What the script does, once any moment in which the machine held it elsewhere is a small part of the window."""
    if run.wait_share is None or run.step_seconds is None or run.top_line is None:
        return False
    hot = Path(run.top_line.file).name, run.top_line.line
    return run.wait_share > 0.3 and run.step_seconds > 0.04 and hot == ("train.py", line_of("time.sleep(0.01)"))


def test_training_without_a_hook_is_followed_from_attaching_to_its_end(folder: Path) -> None:
    with started(folder, TRAINING, hooked=False) as training:
        assert training.stdout is not None and training.stdout.readline() == "ready\n"
        needs_reading(training.pid)
        watch = Watch()
        try:
            listed = watch.until(lambda snapshot: training.pid in {each.pid for each in snapshot.candidates})
            assert (listed.attached_pid, listed.runs) == (None, ())
            watch.monitor.attach(training.pid)
            run = watch.run_until(lambda run: run.state == "training" and run.samples >= 300 and waits_most(run))
            assert watch.monitor.snapshot().attached_pid == training.pid
            assert (run.visibility, run.title, run.pid) == ("sampled", "train.py", training.pid)
            assert run.steps_total >= 10 and run.batches_exact
            assert run.samples_per_second is not None and run.batches_per_second is not None
            assert run.samples_per_second == pytest.approx(4 * run.batches_per_second)
            assert run.current_line is not None and run.how_to_see_more is not None
            window = watch.monitor.final_scene(60).runs[0].critical
            assert window.stacks is not None and window.stacks.cpu_share is not None
            assert window.process is not None and window.process.latest.pid == training.pid
            assert window.wait_share == window.stacks.train_phases["wait"].value

            watch.monitor.attach(None)
            watch.until(lambda snapshot: snapshot.attached_pid is None and snapshot.runs == ())
            watch.monitor.attach(training.pid)
            again = watch.run_until(lambda found: found.steps_total > run.steps_total)
            assert again.id == run.id

            training.send_signal(signal.SIGSTOP)
            watch.run_until(lambda run: run.state == "stopped")
            training.send_signal(signal.SIGCONT)
            watch.run_until(lambda run: run.state == "training")
            training.kill()
            training.wait()
            watch.run_until(lambda run: run.state == "ended")
        finally:
            watch.monitor.stop()
    assert watch.monitor.snapshot().notices == ()


def test_training_whose_memory_is_denied_is_watched_in_proc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int, **_: object) -> None:
        raise CannotReadError(Reason.PERMISSION, f"process {pid} may not be read", "run gpuwatch as root")

    monkeypatch.setattr(workers, "attach_to", denied)
    with started(folder, TRAINING, hooked=False) as training:
        watch = Watch(training.pid)
        try:
            run = watch.run_until(
                lambda run: run.visibility == "process" and run.how_to_see_more == "run gpuwatch as root"
            )
            scene = watch.monitor.final_scene(60)
        finally:
            watch.monitor.stop()
    assert (run.pid, run.title, run.state, run.steps_total) == (training.pid, "train.py", "not hooked", 0)
    assert (run.wait_share, run.samples, run.current_line) == (None, 0, None)
    assert scene.runs[0].critical.process is not None
