"""The survey for `gpuwatch doctor`: every function, its cost or its refusal, and no hang that holds it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nvml_sim import SimulatedDriver

from gpuwatch.sources.nvml.process import NvmlSurvey, survey


def ask(driver: SimulatedDriver, timeout_seconds: float = 120.0) -> NvmlSurvey:
    return survey(timeout_seconds, env={**os.environ, **driver.env})


def test_each_function_has_a_cost_or_a_refusal(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetTemperature 1 error 4", gpus=2)
    found = ask(simulated_driver)
    assert found.complete and found.reason is None
    assert (found.driver_version, found.cuda_version) == ("580.95.05", "13.0")
    assert {answer.index for answer in found.answers} == {0, 1}
    assert all((answer.microseconds is None) != (answer.error is None) for answer in found.answers)
    by_name = {(answer.index, answer.provides): answer for answer in found.answers}
    assert by_name[0, "fan"].error == "not supported by this GPU"
    assert by_name[1, "temperature"].error == "no permission"
    assert (by_name[0, "temperature"].microseconds or 0) > 0


def test_the_cost_is_the_drivers(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetMigMode 0 delay 0.2")
    costs = {answer.provides: answer.microseconds or 0 for answer in ask(simulated_driver).answers}
    assert costs["MIG"] >= 200_000 > costs["SM clock"]


def test_a_hang_keeps_what_was_answered_and_is_named(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetPerformanceState 0 hang")
    found = ask(simulated_driver, timeout_seconds=15.0)
    assert not found.complete and "nvmlDeviceGetPerformanceState" in (found.reason or "")
    assert "temperature" in {answer.provides for answer in found.answers}


def test_a_crash_is_named(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetPerformanceState 0 segv")
    found = ask(simulated_driver)
    assert not found.complete and "nvmlDeviceGetPerformanceState" in (found.reason or "")


def test_no_driver_is_one_sentence(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    found = survey(120.0, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "none")})
    assert found.answers == () and (found.reason or "").startswith("libnvidia-ml.so.1 was not found")


def test_the_module_prints_json_by_hand(simulated_driver: SimulatedDriver) -> None:
    env = {**os.environ, **simulated_driver.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "gpuwatch.sources.nvml.child", "--survey"]
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    *_, last = map(json.loads, output.splitlines())
    assert last["done"]["driver_version"] == "580.95.05"
