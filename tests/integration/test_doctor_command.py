"""`gpuwatch doctor` as a whole, against a simulated NVIDIA driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.cli.doctor import doctor


@pytest.fixture
def machine(simulated_driver: SimulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """Two simulated GPUs, and a meeting folder of the test's own."""
    simulated_driver.write(gpus=2)
    for name, value in {**simulated_driver.env, "GPUWATCH_DIR": str(tmp_path / "meet")}.items():
        monkeypatch.setenv(name, value)
    return simulated_driver


def as_report(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    report = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 1
    return {check["check"]: check for check in report["checks"]}


def test_a_machine_with_gpus_is_usable_and_lists_what_each_reading_costs(
    machine: SimulatedDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.write("fault nvmlDeviceGetPerformanceState 1 error 3")
    assert doctor(Namespace(json=True)) == 0
    checks = as_report(capsys)
    assert checks["driver"]["state"] == "ok"
    assert "2 GPUs" in str(checks["driver"]["sentence"])
    _, *rows = checks["nvml-calls"]["rows"]
    by_reading = {reading: (cost, why) for cost, reading, _, why in rows}
    assert float(by_reading["utilization"][0]) > 0
    assert by_reading["performance state"][1] == "GPU 1: not supported by this GPU"
    assert checks["link"]["state"] == "ok"


def test_without_gpus_runs_can_still_be_measured(machine: SimulatedDriver, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write("fault nvmlInit* - error 9")
    assert doctor(Namespace(json=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("problem  driver") and "driver is not loaded" in line for line in lines)
    assert lines[-1].startswith("gpuwatch can measure here; ")


def test_with_neither_gpu_nor_meeting_folder_nothing_can_be_measured(
    machine: SimulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.write("fault nvmlInit* - error 9")
    monkeypatch.setenv("GPUWATCH_DIR", str(tmp_path / "none/meet"))
    assert doctor(Namespace(json=False)) == 2
    out = capsys.readouterr().out
    assert "gpuwatch can measure nothing here" in out
    assert out.count("fix: ") >= 1


def test_a_driver_that_hangs_is_named_and_the_rest_is_still_looked_at(
    machine: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuwatch.cli.doctor._SURVEY_SECONDS", 8.0)
    machine.write("fault nvmlDeviceGetPerformanceState 0 hang")
    assert doctor(Namespace(json=True)) == 0
    checks = as_report(capsys)
    assert checks["driver"]["state"] == "warning"
    assert "nvmlDeviceGetPerformanceState" in str(checks["driver"]["sentence"])
    assert checks["system"]["state"] == "ok"


def test_a_reader_that_leaves_is_no_error(machine: SimulatedDriver) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "gpuwatch", "doctor"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
