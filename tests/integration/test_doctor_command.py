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


def test_what_its_gpus_can_do_and_how_to_start_a_training_on_them_is_shown(
    machine: SimulatedDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.write("gpu 1 pcie_width 8", "fault nvmlDeviceGetCudaComputeCapability 1 error 3")
    assert doctor(Namespace(json=True)) == 0
    checks = as_report(capsys)
    head, first, second = checks["gpus"]["rows"]
    known, unknown = (dict(zip(head, row, strict=True)) for row in (first, second))
    assert (known["capability"], known["fp8"], known["PCIe now"]) == ("9.0", "yes", "gen 5 x16")
    assert (unknown["capability"], unknown["fp8"], unknown["PCIe now"]) == ("unknown", "unknown", "gen 5 x8")
    assert checks["gpus"]["state"] == "warning" and "GPU 1 uses 8 of 16 lanes" in str(checks["gpus"]["sentence"])
    assert [row[0] for row in checks["peak-rates"]["rows"]] == ["TFLOPS", "H100 80GB HBM3"]
    assert "torchrun --nproc-per-node=2 train.py" in str(checks["launch"]["details"])
    assert {check["section"] for check in checks.values()} == {"", "training on this machine"}


def test_without_gpus_runs_can_still_be_measured(machine: SimulatedDriver, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write("fault nvmlInit* - error 9")
    assert doctor(Namespace(json=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("problem  driver") and "driver is not loaded" in line for line in lines)
    assert lines[-1].startswith("gpuwatch can measure here; ")
    assert any(line.startswith("ok       launch") and "computes on the CPU" in line for line in lines)


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
