"""A report about a training that is stopped, killed or over while it is read says so, and blames no data for it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.attached import (
    held,
    needs_training,
    reporting,
    training,
    wait_until_attached,
)
from tests.integration.command_line import PATIENCE_SECONDS, gpuwatch

pytestmark = needs_training

BLAMES = {"data-starvation", "workers-zero", "workers-too-few", "worker-cpu-bound", "io-bound", "sync-per-step"}


def report_of(monitor: subprocess.Popen[str]) -> dict[str, Any]:
    out, complaint = monitor.communicate(timeout=PATIENCE_SECONDS)
    assert monitor.returncode == 0, complaint
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("workers", [0, 2])
def test_training_killed_while_it_is_read_is_reported_as_ended(tmp_path: Path, workers: int) -> None:
    with training(tmp_path, "--workers", str(workers)) as target, reporting(tmp_path, target.pid) as monitor:
        wait_until_attached(monitor, target.pid)
        target.kill()
        target.wait()
        report = report_of(monitor)
    (run,) = report["runs"]
    assert (run["pid"], run["visibility"]) == (target.pid, "sampled")
    assert run["ended"] in ("killed", "exited", "lost")
    assert any("ended" in note for note in report["gpuwatch"]["notes"])


def test_training_that_comes_to_its_end_while_it_is_read_is_reported_as_ended(tmp_path: Path) -> None:
    with (
        training(tmp_path, "--epochs", "8", stops_itself=True) as target,
        reporting(tmp_path, target.pid) as monitor,
    ):
        wait_until_attached(monitor, target.pid)
        target.send_signal(signal.SIGCONT)
        assert target.stdout is not None
        out = target.stdout.read()
        _, complaint = target.communicate(timeout=PATIENCE_SECONDS)
        report = report_of(monitor)
    assert (target.returncode, len(out.splitlines()), complaint) == (0, 7, "")
    assert report["gpuwatch"]["notes"]


def test_stopped_training_is_not_taken_for_one_that_waits_for_data(tmp_path: Path) -> None:
    with training(tmp_path, "--noise", "8") as target, held(target):
        done = gpuwatch(tmp_path, "report", "--attach", str(target.pid), "--duration", "4", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert BLAMES.isdisjoint(finding["rule"] for finding in report["findings"])
    (run,) = report["runs"]
    assert run["data_wait_share"] is None
