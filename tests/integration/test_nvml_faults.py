"""Lost GPUs, hung calls, crashes, reloads: the source says so, and the rest goes on."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvml_reader import BRISK, HASTY, Reader, child_pids, reading, wait_until
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, NvmlState
from gpuwatch.sources.nvml.source import MOST_OUTSTANDING


def until_status(reader: Reader, status: str) -> NvmlState:
    return reader.until(NvmlState, lambda state: state.status == status)


def test_a_lost_gpu_is_told_once_and_comes_back_with_a_sample(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    broken, healthy = simulated_driver.uuid(1), simulated_driver.uuid(0)
    with reading(simulated_driver) as reader:
        reader.sample(broken)
        simulated_driver.write("fault nvmlDevice* 1 error 15")
        lost = reader.until(GpuLost)
        assert (lost.uuid, lost.reason) == (broken, "the GPU is lost (fallen off the bus or reset)")
        for _ in range(8):  # longer than the slow lane, in which a lost GPU is asked again
            reader.sample(healthy, power_watts=500.0)
        assert len(reader.each(GpuLost)) == 1
        assert not [sample for sample in reader.each(GpuSample) if sample.uuid == broken and not sample.power_watts]
        simulated_driver.write()
        reader.sample(broken, power_watts=500.0)


def test_a_gpu_lost_before_the_start_has_a_row_that_says_so(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDevice* 1 error 15", gpus=2)
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts, lambda facts: facts.index == 1)
        lost = reader.until(GpuLost)
        assert lost.uuid == facts.uuid and "cannot be opened: the GPU is lost" in lost.reason
        state = until_status(reader, "ok")
        assert (state.gpu_count, state.reason) == (2, "GPU 1: the GPU is lost (fallen off the bus or reset)")
        reader.sample(simulated_driver.uuid(0))


def test_all_gpus_failing_is_a_failing_driver_with_a_hint(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("fault * * error 999")
        state = until_status(reader, "failing")
        assert "'Unknown Error'" in (state.reason or "") and "daemon-reload" in (state.reason or "")
        simulated_driver.write()
        until_status(reader, "ok")
        reader.sample(simulated_driver.uuid(1), power_watts=500.0)


def test_after_a_driver_reload_gpus_are_known_by_uuid(simulated_driver: SimulatedDriver) -> None:
    """The indices swap and one GPU is new: no history may be mixed."""
    first, second = simulated_driver.uuid(0), simulated_driver.uuid(1)
    simulated_driver.write("wave 0 power constant 111", "wave 1 power constant 222", gpus=2)
    with reading(simulated_driver) as reader:
        reader.sample(second, power_watts=222.0)
        simulated_driver.write("fault * * error 9")
        assert "modprobe" in (until_status(reader, "absent").reason or "")
        simulated_driver.write(f"gpu 0 uuid {second}", "gpu 1 uuid GPU-new", "wave 0 power constant 222")
        assert reader.until(GpuFacts, lambda facts: facts.uuid == second).index == 0
        reader.sample(second, power_watts=222.0)
        since_ns = reader.sample("GPU-new", power_watts=500.0).time_ns
        reader.sample("GPU-new")
        assert first in {lost.uuid for lost in reader.each(GpuLost)}
        assert first not in {sample.uuid for sample in reader.each(GpuSample) if sample.time_ns > since_ns}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_changed_number_of_gpus_is_noticed(simulated_driver: SimulatedDriver, before: int, after: int) -> None:
    simulated_driver.write(gpus=before)
    with reading(simulated_driver) as reader:
        reader.sample(simulated_driver.uuid(before - 1))
        simulated_driver.write(gpus=after)
        assert f"changed from {before} to {after}" in (until_status(reader, "restarting").reason or "")
        assert until_status(reader, "ok").gpu_count == after
        reader.sample(simulated_driver.uuid(after - 1))
        gone = {lost.uuid for lost in reader.each(GpuLost)}
        assert gone == {simulated_driver.uuid(gpu) for gpu in range(after, before)}


def test_a_gpu_that_is_missing_after_a_restart_is_lost(simulated_driver: SimulatedDriver) -> None:
    before = child_pids(os.getpid())
    simulated_driver.write(gpus=2)
    with reading(simulated_driver, plan=HASTY) as reader:
        reader.sample(simulated_driver.uuid(1))
        (child,) = child_pids(os.getpid()) - before
        os.kill(child, signal.SIGSTOP)  # so that it cannot see the change itself
        simulated_driver.write(gpus=1)
        until_status(reader, "stale")
        lost = reader.until(GpuLost)
    assert (lost.uuid, lost.reason) == (simulated_driver.uuid(1), "the driver no longer lists it")


def test_a_hung_call_is_named_left_out_and_all_else_goes_on(simulated_driver: SimulatedDriver) -> None:
    before = child_pids(os.getpid())
    simulated_driver.write(gpus=2)
    with reading(simulated_driver, plan=HASTY) as reader:
        reader.sample(simulated_driver.uuid(1))
        simulated_driver.write("fault nvmlDeviceGetMemoryInfo* 1 hang")
        stale = until_status(reader, "stale")
        assert "has not answered in nvmlDeviceGetMemoryInfo on GPU 1" in (stale.reason or "")
        assert stale.missed_polls > 0 and stale.calls > 0
        assert len(child_pids(os.getpid()) - before) <= MOST_OUTSTANDING
        assert until_status(reader, "ok").restarts == 1
        sample = reader.sample(simulated_driver.uuid(1), power_watts=500.0)
        assert sample.memory_used_bytes is None
        assert "hung or crashed" in sample.unavailable["memory_used_bytes"]
        assert reader.sample(simulated_driver.uuid(0)).memory_used_bytes == 40_000_000_000


def test_a_gpu_on_which_every_call_hangs_is_given_up_and_the_other_shown(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDevice* 1 hang", gpus=2)
    with reading(simulated_driver, plan=quick_to_give_up()) as reader:
        state = until_status(reader, "ok")
        assert state.restarts >= 1 and "GPU 1" in (state.reason or "")
        reader.sample(simulated_driver.uuid(0), power_watts=500.0)
        assert simulated_driver.uuid(1) not in {sample.uuid for sample in reader.each(GpuSample)}
        assert [lost for lost in reader.each(GpuLost) if lost.uuid == "GPU-index-1"]


def test_a_gpu_that_hangs_in_several_calls_is_given_up_with_its_name_kept(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    sensors = ("nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature")
    with reading(simulated_driver, plan=HASTY) as reader:
        reader.sample(simulated_driver.uuid(1))
        simulated_driver.write(*(f"fault {function} 1 hang" for function in sensors))
        lost = reader.until(GpuLost)
        assert lost.uuid == simulated_driver.uuid(1) and "hung or crashed" in lost.reason
        reader.sample(simulated_driver.uuid(0), power_watts=500.0)
    names = {facts.name for facts in reader.each(GpuFacts) if facts.uuid == simulated_driver.uuid(1)}
    assert names == {"NVIDIA H100 80GB HBM3"}


def quick_to_give_up() -> Any:
    return replace(BRISK, init_seconds=6.0, silence_seconds=2.0, starting_seconds=2.0)


def test_a_hanging_init_says_that_the_driver_is_starting(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlInit* * hang")
    with reading(simulated_driver, plan=quick_to_give_up()) as reader:
        assert "has been starting for over 2 s" in (until_status(reader, "stale").reason or "")
        assert "in nvmlInit" in (until_status(reader, "stale").reason or "")
        simulated_driver.write()
        until_status(reader, "ok")


def test_a_crash_in_the_driver_is_named_and_its_call_left_out(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("fault nvmlDeviceGetClockInfo 0 segv")
        state = until_status(reader, "restarting")
        assert "SIGSEGV in nvmlDeviceGetClockInfo on GPU 0" in (state.reason or "")
        sample = reader.sample(simulated_driver.uuid(0), sm_clock_mhz=None)
        assert sample.power_watts == 500.0


def test_a_crash_in_the_event_thread_costs_only_the_events(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlEventSetWait* * segv")
    with reading(simulated_driver) as reader:
        state = until_status(reader, "restarting")
        assert "SIGSEGV in nvmlEventSetWait, which is left out" in (state.reason or "")
        sample = reader.until(GpuSample, lambda sample: sample.time_ns > state.time_ns)
        assert "left out" not in str(sample.unavailable)
        for _ in range(5):
            reader.until(GpuSample)
        assert until_status(reader, "ok").restarts == 1


def test_a_child_killed_from_outside_is_replaced(simulated_driver: SimulatedDriver) -> None:
    before = child_pids(os.getpid())
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        (child,) = child_pids(os.getpid()) - before
        os.kill(child, signal.SIGKILL)
        reason = until_status(reader, "restarting").reason or ""
        assert "SIGKILL" in reason and "left out" not in reason, "it is not the driver's doing"
        assert until_status(reader, "ok").restarts == 1


def test_totals_go_on_over_restarts(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        first = until_status(reader, "ok")
        simulated_driver.write("fault nvmlDeviceGetClockInfo 0 segv")
        until_status(reader, "restarting")
        simulated_driver.write()
        until_status(reader, "ok")
        states = reader.each(NvmlState)
    assert first.calls > 0
    assert [state.calls for state in states] == sorted(state.calls for state in states)
    assert [state.call_seconds for state in states] == sorted(state.call_seconds for state in states)


def test_close_returns_although_a_call_hangs(simulated_driver: SimulatedDriver) -> None:
    before = child_pids(os.getpid())
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("fault nvmlDevice* * hang")
        reader.source.collect(time.monotonic_ns())
        children = child_pids(os.getpid()) - before
        reader.source.close()
        reader.source.close()
        assert reader.source.due_ns() is None and list(reader.source.collect(time.monotonic_ns())) == []
    for child in children:
        with suppress(ChildProcessError):  # gone already, as it is unless the kernel takes longer than `close` waits
            os.waitpid(child, 0)
    assert not child_pids(os.getpid()) - before


def test_a_slow_call_moves_to_the_slow_lane_and_tells_its_age(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetClockInfo 0 delay 0.03")
    with reading(simulated_driver, plan=replace(BRISK, slow_seconds=60.0)) as reader:
        sample = reader.until(GpuSample, lambda sample: sample.ages_seconds.get("sm_clock_mhz", 0) > 0.3)
    assert sample.sm_clock_mhz == 1755
    assert simulated_driver.calls("nvmlDeviceGetMemoryInfo_v2") > simulated_driver.calls("nvmlDeviceGetClockInfo")


def test_a_driver_that_is_slow_in_everything_is_asked_less_often(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetMemoryInfo* * delay 0.004")
    with reading(simulated_driver) as reader:
        state = reader.until(NvmlState, lambda state: state.reason is not None)
    assert state.status == "ok" and "answers slowly" in (state.reason or "")


def test_reading_late_is_not_silence(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    """A monitor that was stopped finds old lines, not a dead child."""
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        written = simulated_driver.calls("nvmlDeviceGetFieldValues")
        wait_until(lambda: simulated_driver.calls("nvmlDeviceGetFieldValues") > written + 2)
        late_ns = time.monotonic_ns() + 3600 * 10**9
        samples = list(reader.source.collect(late_ns))
    assert any(isinstance(sample, GpuSample) for sample in samples)
    assert not any(isinstance(sample, NvmlState) and sample.status == "stale" for sample in samples)
