"""`gpuwatch --once` against the simulated driver, with real processes on its GPUs."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.nvml_sim import SimulatedDriver

GIB = 2**30


@pytest.fixture
def pids() -> Iterator[list[int]]:
    command = [sys.executable, "-c", "input()", "train.py"]
    holders = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    yield [holder.pid for holder in holders]
    for holder in holders:
        holder.communicate(b"\n")


def once(driver: SimulatedDriver, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuwatch", "--once", *options],
        env={**os.environ, **driver.env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_table_has_a_line_per_gpu_with_its_largest_process_and_one_for_all(
    simulated_driver: SimulatedDriver, pids: list[int]
) -> None:
    first, second = pids
    simulated_driver.write(
        f"process 0 {first} {40 * GIB} 60", f"process 0 {second} {2 * GIB} 5", "wave 1 utilization constant 0", gpus=2
    )
    done = once(simulated_driver)
    assert done.returncode == 0 and not done.stderr
    heads, busy, free, total, _, _, other = done.stdout.splitlines()
    assert heads.split()[:4] == ["GPU", "NAME", "UTIL", "POWER"] and heads.split()[-2:] == ["TIME", "COMMAND"]
    assert busy.startswith("0  ") and f" {first} " in busy and getpass.getuser() in busy and busy.endswith(" +1")
    assert "train.py" in busy and free.endswith("free")
    assert total.startswith("2 GPUs: ") and "kW" in total
    assert other.split()[:3] == ["0", str(second), getpass.getuser()] and "2.0 GiB" in other


def test_the_same_as_json_with_null_for_what_is_unknown(simulated_driver: SimulatedDriver, pids: list[int]) -> None:
    simulated_driver.write(f"process 0 {pids[0]} {GIB} 60", "gpu 0 mig 1")
    done = once(simulated_driver, "--json")
    data = json.loads(done.stdout)
    whole, instance = data["gpus"]
    assert whole["utilization_percent"] is None and whole["power_watts"] == 500.0
    assert (instance["gpu"], instance["mig_parent"]) == ("0:0", whole["uuid"])
    assert data["total"]["gpus"] == 1 and data["total"]["memory_total_bytes"] == whole["memory_total_bytes"]


def test_without_a_gpu_it_says_why(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "-1"],
        env={**os.environ, "LD_LIBRARY_PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("gpuwatch: no GPU: ") and done.stderr.count("\n") == 1


def test_it_imports_no_textual(simulated_driver: SimulatedDriver) -> None:
    code = (
        "import sys; from gpuwatch.__main__ import main; main(['-1']); "
        "sys.exit('textual' in sys.modules or 'rich.console' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **simulated_driver.env}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
