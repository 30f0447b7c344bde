"""The simulated driver is believable: another NVML program reads it too, and its figures agree with each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

READ_TWICE = """
import time, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def energy():
    while True:
        before = time.monotonic()
        told = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        if time.monotonic() - before < 0.001:
            return told, before
(first, began), _ = energy(), time.sleep(0.3)
second, ended = energy()
print((second - first) / 1000 / (ended - began))
_, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
print(len(samples), samples[-1].timeStamp - samples[0].timeStamp)
"""


def run(driver: SimulatedDriver, *command: str) -> str:
    env = {**os.environ, **driver.env}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def test_nvitop_reads_it(simulated_driver: SimulatedDriver) -> None:
    nvitop = shutil.which("nvitop", path=str(Path(sys.executable).parent)) or shutil.which("nvitop")
    if nvitop is None:
        pytest.skip("nvitop is not installed (it is in the test extra)")
    simulated_driver.write("wave 1 utilization constant 37", "gpu 1 name NVIDIA H100 PCIe", gpus=2)
    screen = run(simulated_driver, nvitop, "--once")
    assert "580.95.05" in screen and "500W / 700W" in screen
    assert "H100 80GB HBM3" in screen and "H100 PCIe" in screen
    assert "90%" in screen and "37%" in screen


def test_energy_integrates_power_and_the_ring_spans_ten_seconds(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("wave 0 power phases 0.01 100 0.03 500")
    watts, ring = run(simulated_driver, sys.executable, "-c", READ_TWICE).splitlines()
    assert float(watts) == pytest.approx(400, rel=0.05)
    entries, microseconds = map(int, ring.split())
    assert entries == 72 and microseconds == pytest.approx(71 * 139_000, rel=0.001)


def test_a_misspelt_scenario_is_refused(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("wave 0 utilisation constant 5")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run(simulated_driver, sys.executable, "-c", "import pynvml; pynvml.nvmlInit()")
    assert "unknown word 'utilisation'" in failure.value.stderr
