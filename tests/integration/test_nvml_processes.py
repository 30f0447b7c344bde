"""Processes on a GPU: memory, SM share, and pids that mean something here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuProcess, GpuStatus


@pytest.fixture
def host_proc(tmp_path: Path) -> Path:
    """A /proc as the host has it: this reader is in the first pid namespace."""
    root = tmp_path / "proc"
    (root / "self" / "ns").mkdir(parents=True)
    (root / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    (root / "self" / "status").write_text("Name:\tgpuwatch\nNSpid:\t77\n")
    (root / "4711").mkdir()
    (root / "4711" / "status").write_text("Name:\tpython\nNSpid:\t4711\t12\n")
    (root / "4711" / "cmdline").write_bytes(b"python\0train.py\0--name\0\xff\0")
    return root


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def first_process(driver: SimulatedDriver, proc_root: Path) -> tuple[GpuStatus, GpuProcess]:
    with reading(driver, proc_root=proc_root) as reader:
        status = reader.until(GpuStatus, lambda status: bool(status.processes))
    assert status.processes is not None
    return status, status.processes[0]


def test_a_process_has_its_memory_share_and_command(simulated_driver: SimulatedDriver, host_proc: Path) -> None:
    simulated_driver.write("process 0 4711 1500000000 70")
    status, process = first_process(simulated_driver, host_proc)
    assert process == GpuProcess(4711, 4711, 1_500_000_000, 70.0, "python train.py --name \udcff")
    assert "pid" not in status.unavailable


def test_a_real_process_is_found_by_its_pid(
    simulated_driver: SimulatedDriver, trainer: subprocess.Popen[bytes]
) -> None:
    if str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]":
        pytest.skip("in a container the host's pids, which NVML gives, cannot be mapped")
    simulated_driver.write(f"process 0 {trainer.pid} 1500000000 70")
    _, process = first_process(simulated_driver, Path("/proc"))
    assert process.pid == trainer.pid
    assert process.command is not None and process.command.endswith("-c input()")


def test_a_container_says_that_it_cannot_map_host_pids(simulated_driver: SimulatedDriver, host_proc: Path) -> None:
    (host_proc / "self" / "ns" / "pid").unlink()
    (host_proc / "self" / "ns" / "pid").symlink_to("pid:[4026539999]")
    simulated_driver.write("process 0 4711 1500000000 70")
    status, process = first_process(simulated_driver, host_proc)
    assert (process.host_pid, process.pid, process.command) == (4711, None, None)
    assert "--pid=host" in status.unavailable["pid"]


def test_the_hosts_proc_in_a_container_maps_pids(simulated_driver: SimulatedDriver, host_proc: Path) -> None:
    (host_proc / "self" / "ns" / "pid").unlink()
    (host_proc / "self" / "ns" / "pid").symlink_to("pid:[4026539999]")
    (host_proc / "self" / "status").write_text("Name:\tgpuwatch\nNSpid:\t9000\t5\n")
    simulated_driver.write("process 0 4711 1500000000 70")
    _, process = first_process(simulated_driver, host_proc)
    assert (process.host_pid, process.pid) == (4711, 12)


def test_an_ended_process_has_no_pid_here(simulated_driver: SimulatedDriver, host_proc: Path) -> None:
    simulated_driver.write("process 0 31337 1000 5")
    _, process = first_process(simulated_driver, host_proc)
    assert (process.host_pid, process.pid, process.command) == (31337, None, None)


def test_shares_over_a_hundred_are_cut_and_stale_ones_left_out(
    simulated_driver: SimulatedDriver, host_proc: Path
) -> None:
    simulated_driver.write("process 0 4711 1000 163", "process 0 4712 1000 88 -1 stale")
    with reading(simulated_driver, proc_root=host_proc) as reader:
        status = reader.until(GpuStatus, lambda status: bool(status.processes))
    assert [process.sm_percent for process in status.processes or ()] == [100.0, None]


def test_memory_that_the_driver_does_not_count_is_unknown(simulated_driver: SimulatedDriver, host_proc: Path) -> None:
    simulated_driver.write("process 0 4711 18446744073709551615 10")
    _, process = first_process(simulated_driver, host_proc)
    assert process.memory_bytes is None


@pytest.mark.parametrize("record_bytes", [24, 32])
def test_both_record_sizes_of_drivers_are_read(
    simulated_driver: SimulatedDriver, host_proc: Path, record_bytes: int
) -> None:
    processes = [f"process 0 {1000 + number} {number + 1}000 5" for number in range(100)]
    simulated_driver.write(f"record_bytes {record_bytes}", *processes)
    with reading(simulated_driver, proc_root=host_proc) as reader:
        status = reader.until(GpuStatus, lambda status: bool(status.processes))
    found = [(process.host_pid, process.memory_bytes) for process in status.processes or ()]
    assert found == [(1000 + number, (number + 1) * 1000) for number in range(100)]


def test_no_process_is_an_empty_list_and_no_answer_is_none(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 1 has_processes 0", gpus=2)
    with reading(simulated_driver) as reader:
        empty, silent = reader.until(GpuStatus), reader.until(GpuStatus)
    assert empty.processes == ()
    assert silent.processes is None and silent.unavailable["processes"] == "not supported by this GPU"
