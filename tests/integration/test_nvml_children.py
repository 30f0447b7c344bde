"""The child as a process: it ends with its parent, never piles up, and may say anything."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
from nvml_reader import BRISK, DEADLINE_SECONDS, SilentChild, launching, reading, wait_until
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuLost, NvmlState
from gpuwatch.sources.nvml.process import Activity
from gpuwatch.sources.nvml.source import MOST_OUTSTANDING, NvmlSource

PARENT = """
import os, sys, time
from gpuwatch.samples import GpuSample
from gpuwatch.sources.nvml.source import NvmlSource
source = NvmlSource(0.1, kernel_log=None)
while not any(isinstance(sample, GpuSample) for sample in source.collect(time.monotonic_ns())):
    time.sleep(0.01)
children = open(f"/proc/self/task/{os.getpid()}/children").read()
print(children, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("fault", ["", "fault nvmlDevice* * hang"])
def test_the_child_ends_with_its_parent(simulated_driver: SimulatedDriver, fault: str) -> None:
    env = {**os.environ, **simulated_driver.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        before = simulated_driver.calls("nvmlDeviceGetFieldValues")
        simulated_driver.write(fault)
        wait_until(lambda: simulated_driver.calls("nvmlDeviceGetFieldValues") > before)
        parent.kill()
        ready, _, _ = select.select([child], [], [], DEADLINE_SECONDS)
        os.close(child)
    assert ready, "the child outlived its parent"


STATE_D = Activity("D", 0.0)


def test_children_that_cannot_be_killed_never_pile_up() -> None:
    started: list[SilentChild] = []
    source = NvmlSource(1.0, launch=launching(started, STATE_D), plan=BRISK, kernel_log=None)
    states: list[NvmlState] = []
    for second in range(600):
        states += [s for s in source.collect(second * 10**9) if isinstance(s, NvmlState)]
    assert len(started) == MOST_OUTSTANDING
    assert all(child.killed for child in started)
    assert [state.reason for state in states if "state D" in (state.reason or "")], "told, and told once"
    assert sum("state D" in (state.reason or "") for state in states) == 1
    assert started[1].options["avoid"]["GPU-a"].keys() == {"nvmlDeviceGetFanSpeed"}
    source.close()


def test_a_child_in_state_d_that_is_let_go_makes_room_again() -> None:
    started: list[SilentChild] = []
    source = NvmlSource(1.0, launch=launching(started, STATE_D), plan=BRISK, kernel_log=None)
    for second in range(150):
        source.collect(second * 10**9)
    started[0].exit_code = lambda: -9  # type: ignore[method-assign]
    for second in range(150, 350):
        source.collect(second * 10**9)
    assert len(started) == MOST_OUTSTANDING + 1
    source.close()


CHATTERER = """
import json, sys, time
print("not json")
print(json.dumps({"samples": 3}))
print(json.dumps({"next": 60, "samples": [["NoSuchSample", {}]]}))
print(json.dumps({"next": 60, "samples": [["GpuLost", {"time_ns": 1, "uuid": "GPU-a", "reason": "x", "new": 1}]]}))
sys.stdout.write('{"next": 60, "sam')
sys.stdout.flush()
time.sleep(60)
"""


def test_lines_that_are_not_ours_are_skipped(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver, command=[sys.executable, "-c", CHATTERER]) as reader:
        assert reader.until(GpuLost).reason == "x"
        assert len(reader.seen) == 1


def test_a_child_that_ends_with_an_error_is_quoted(simulated_driver: SimulatedDriver) -> None:
    command = [sys.executable, "-c", "raise SystemExit('the disk is on fire')"]
    with reading(simulated_driver, command=command) as reader:
        state = reader.until(NvmlState, lambda state: state.status == "restarting")
    assert "ended with code 1: the disk is on fire" in (state.reason or "")


def test_polls_come_never_faster_than_ten_a_second() -> None:
    started: list[SilentChild] = []
    source = NvmlSource(0.001, launch=launching(started, STATE_D), kernel_log=None)
    source.collect(0)
    assert started[0].options["interval_seconds"] == 0.1
    source.close()
