"""`--attach PID` on a training that was started by plain `python train.py`, with no gpuwatch anywhere in it."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, gpuwatch, lonely_environment
from tests.integration.forked_python import ForkedPython
from tests.integration.live_watch import needs_reading
from tests.integration.process_groups import killed_after

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process be read from outside"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="the training under test needs torch: pip install torch"
    ),
]

TRAINING = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(8)


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
started = False
while True:
    for batch in DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if not started:
            print("ready", flush=True)
            started = True
"""

DENIED = """\
import sys
from gpuwatch.reader import attach as reader
from gpuwatch.reader.refusals import CannotReadError, Reason
def denied(pid, **_):
    raise CannotReadError(Reason.PERMISSION, "only root may read other processes here", "use sudo")
reader.attach = denied
from gpuwatch.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""The command on a machine whose kernel denies the memory of other processes."""


@contextmanager
def training(folder: Path) -> Iterator[int]:
    """A training that waits for its data most of the time, after its first step."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    process = ForkedPython([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    with killed_after(process):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid


def only_run(document: str) -> dict[str, Any]:
    (run,) = json.loads(document)["runs"]
    assert isinstance(run, dict)
    return run


def test_plain_training_is_listed_and_then_reported_as_sampled(tmp_path: Path) -> None:
    with training(tmp_path) as pid:
        needs_reading(pid)
        listed = gpuwatch(tmp_path, "--attach")
        reported = gpuwatch(tmp_path, "report", "--attach", str(pid), "--duration", "8", "--format", "json")
    (row,) = (line.split() for line in listed.stdout.splitlines() if line.split()[0] == str(pid))
    assert "sampled" in row
    assert reported.returncode == 0, reported.stderr
    run = only_run(reported.stdout)
    assert (run["pid"], run["visibility"]) == (pid, "sampled")
    assert run["how_to_see_more"]
    assert run["data_wait_share"] > 0.5
    assert run["steps_per_second"] > 0


def test_training_whose_memory_is_denied_is_shown_by_proc_alone_with_the_cure(tmp_path: Path) -> None:
    with training(tmp_path) as pid:
        done = subprocess.run(
            [sys.executable, "-c", DENIED, "report", "--attach", str(pid), "--duration", "3", "--format", "json"],
            env=lonely_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    run = only_run(done.stdout)
    assert (run["pid"], run["visibility"]) == (pid, "process")
    assert "sudo" in run["how_to_see_more"]
    assert run["data_wait_share"] is None


def test_lines_of_watch_say_that_the_run_is_sampled_and_how_to_see_more(tmp_path: Path) -> None:
    with training(tmp_path) as pid:
        needs_reading(pid)
        monitor = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch", "watch", "--attach", str(pid)],
            env=lonely_environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert monitor.stdout is not None
        line = next(line for line in monitor.stdout if "batches/s" in line)
        monitor.send_signal(signal.SIGINT)
        _, told = monitor.communicate(timeout=PATIENCE_SECONDS)
    assert "| sampled" in line
    # Where the first line comes before the first look, the run has visibility "process" until then.
    hints = [line for line in told.splitlines() if line.startswith(f"gpuwatch: train.py ({pid}): ")]
    assert len(hints) == len(set(hints))
    assert "estimated from stacks; `gpuwatch run COMMAND`" in hints[-1]
