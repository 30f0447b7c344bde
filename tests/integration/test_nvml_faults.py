"""Losses, hangs, crashes, error codes, reloads, restarts: the source says so, and the rest goes on."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import nvml_sim
import pytest
from nvml_reader import BRISK, DEADLINE_SECONDS, HASTY, Reader, SilentChild, child_pids, launching, reading, wait_until
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, GpuStatus, NvmlState
from gpuwatch.sources.nvml.source import MOST_OUTSTANDING, Activity, NvmlSource


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


CODES = [*range(1, 31), 999]
LOST = 15

CALLS = {
    "nvmlDeviceGetFieldValues": ("GpuSample", ("energy_joules", "pcie_tx_bytes", "throttled_power_ns")),
    "nvmlDeviceGetMemoryInfo*": ("GpuSample", ("memory_used_bytes",)),
    "nvmlDeviceGetClockInfo": ("GpuSample", ("sm_clock_mhz",)),
    "nvmlDeviceGetTemperature*": ("GpuSample", ("temperature_celsius",)),
    "nvmlDeviceGetCurrentClocks*": ("GpuSample", ("event_reasons",)),
    "nvmlDeviceGetUtilizationRates": ("GpuSample", ("memory_utilization_percent",)),
    "nvmlGpmSampleGet": ("GpuSample", ("sm_activity_percent", "tensor_activity_percent")),
    "nvmlGpmMetricsGet": ("GpuSample", ("dram_activity_percent",)),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("GpuStatus", ("processes",)),
    "nvmlDeviceGetFanSpeed": ("GpuStatus", ("fan_percent",)),
    "nvmlDeviceGetPerformanceState": ("GpuStatus", ("performance_state",)),
    "nvmlDeviceGetCurrPcieLink*": ("GpuStatus", ("pcie_generation", "pcie_width")),
    "nvmlDeviceGetEnforcedPowerLimit": ("GpuHealth", ("power_limit_watts",)),
}
DECIDES_LOSS = ("FieldValues", "MemoryInfo", "ClockInfo", "Temperature", "CurrentClocks", "UtilizationRates")
"""Calls of every poll; error 15 from one of the slower ones alone does not make a GPU lost."""


@pytest.mark.parametrize("function", CALLS)
def test_a_failing_call_gives_a_reason_and_leaves_the_rest(simulated_driver: SimulatedDriver, function: str) -> None:
    """One GPU for each code, so that one child goes through all of them."""
    kind, names = CALLS[function]
    faults = [f"fault {function} {gpu + 1} error {code}" for gpu, code in enumerate(CODES)]
    if function == "nvmlGpmMetricsGet":  # it has no device
        faults = ["fault nvmlGpmMetricsGet - error 999"]
    simulated_driver.write("gpu * has_fan 1", "gpu * ring 0", *faults, gpus=1 + len(CODES))
    with reading(simulated_driver) as reader:
        reader.until(NvmlState, lambda state: state.status == "ok")
        reader.until(GpuSample, lambda sample: sample.uuid == simulated_driver.uuid(len(CODES)))
        lost = {sample.uuid for sample in reader.each(GpuLost)}
        for gpu, code in enumerate(CODES):
            uuid = simulated_driver.uuid(gpu + 1)
            if code == LOST and any(word in function for word in DECIDES_LOSS):
                assert uuid in lost
                continue
            assert uuid not in lost
            samples = [s for s in reader.seen if type(s).__name__ == kind and getattr(s, "uuid", "") == uuid]
            assert samples
            for name in names:
                assert getattr(samples[0], name) is None
                assert samples[0].unavailable[name]  # type: ignore[attr-defined]
            power = reader.each(GpuSample)
            assert all(s.power_watts == 500.0 for s in power if s.uuid == uuid)


def test_the_words_of_a_code_are_the_drivers_meaning(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetTemperature* 0 error 4")
    with reading(simulated_driver) as reader:
        assert reader.until(GpuSample).unavailable["temperature_celsius"] == "no permission"


@pytest.mark.parametrize("code", CODES)
def test_a_gpu_on_which_everything_fails_is_named_and_the_other_goes_on(
    simulated_driver: SimulatedDriver, code: int
) -> None:
    simulated_driver.write(gpus=2)
    with reading(simulated_driver) as reader:
        reader.sample(simulated_driver.uuid(1))
        simulated_driver.write(f"fault nvmlDevice* 1 error {code}")
        if code in (3, 13, 22, 25, 26):  # nothing is supported: an odd GPU, not a lost one
            values = {"power_watts": None, "memory_used_bytes": None, "temperature_celsius": None}
            sample = reader.sample(simulated_driver.uuid(1), **values)
            assert set(values) <= sample.unavailable.keys()
        else:
            assert reader.until(GpuLost).uuid == simulated_driver.uuid(1)
        reader.sample(simulated_driver.uuid(0), power_watts=500.0)
        assert all(state.status == "ok" for state in reader.each(NvmlState))


@pytest.mark.parametrize("code", CODES)
def test_a_failing_init_is_one_sentence(simulated_driver: SimulatedDriver, code: int) -> None:
    simulated_driver.write(f"fault nvmlInit* * error {code}")
    with reading(simulated_driver) as reader:
        state = reader.until(NvmlState)
        assert state.status == ("absent" if code in (9, 12) else "failing")
        assert state.reason and state.reason.endswith((".", ")")) and "\n" not in state.reason


@pytest.mark.parametrize(
    ("code", "cause", "cure"),
    [
        (9, "kernel driver is not loaded", "modprobe nvidia"),
        (18, "different versions", "reboot"),
        (4, "No permission", "/dev/nvidia"),
        (999, "'Unknown Error'", "restart the container"),
    ],
)
def test_a_failing_init_says_cause_and_cure_and_ends_when_it_is_cured(
    simulated_driver: SimulatedDriver, code: int, cause: str, cure: str
) -> None:
    simulated_driver.write(f"fault nvmlInit* * error {code}")
    with reading(simulated_driver) as reader:
        reason = reader.until(NvmlState).reason or ""
        assert cause in reason and cure in reason
        simulated_driver.write()
        assert reader.until(NvmlState, lambda state: state.status == "ok").restarts == 0
        reader.until(GpuSample)


def test_no_library_is_told_until_it_is_installed(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with reading(simulated_driver, env={"LD_LIBRARY_PATH": str(folder)}) as reader:
        state = reader.until(NvmlState)
        assert state.status == "absent"
        assert (state.reason or "").startswith("libnvidia-ml.so.1 was not found")
        shutil.copy(simulated_driver.library / nvml_sim.LIBRARY, folder)
        reader.until(NvmlState, lambda state: state.status == "ok")
        reader.until(GpuSample)


def test_no_gpu_is_absence_and_ends_when_one_appears(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=0)
    with reading(simulated_driver) as reader:
        state = reader.until(NvmlState)
        assert (state.status, state.gpu_count, state.driver_version) == ("absent", 0, "580.95.05")
        assert "shows no GPU" in (state.reason or "")
        simulated_driver.write(gpus=1)
        reader.sample(simulated_driver.uuid(0))


def test_a_missing_python_package_is_named(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('not here')\n")
    with reading(simulated_driver, env={"PYTHONPATH": str(tmp_path)}) as reader:
        assert reader.until(NvmlState).reason == "The Python package nvidia-ml-py is missing: pip install nvidia-ml-py."


def test_a_foreign_pynvml_is_named(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("class NVMLError(Exception): pass\n")
    with reading(simulated_driver, env={"PYTHONPATH": str(tmp_path)}) as reader:
        assert "pip uninstall pynvml" in (reader.until(NvmlState).reason or "")


def test_an_old_driver_is_asked_in_its_own_words(tmp_path: Path) -> None:
    newer = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSamples",
             "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues")  # fmt: skip
    driver = SimulatedDriver(tmp_path, nvml_sim.build(tmp_path / "old", without=newer))
    driver.write("gpu 0 reasons 32", "gpu 0 capability_major 7")
    with reading(driver) as reader:
        sample = reader.until(GpuSample)
    assert (sample.memory_used_bytes, sample.event_reasons, sample.temperature_celsius) == (40_000_000_000, 32, 61)
    assert (sample.utilization_percent, sample.power_watts, sample.power_window_seconds) == (90.0, 500.0, 0.0)
    assert sample.unavailable["sm_activity_percent"] == "this driver is too old for it"
    assert sample.unavailable["energy_joules"] == "this driver is too old for it"


def test_a_batch_with_unknown_fields_is_asked_for_the_old_ones(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fields_up_to 100")
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample)
    assert sample.energy_joules and sample.memory_temperature_celsius == 72
    assert sample.pcie_tx_bytes is None
    assert sample.power_watts == 500.0, "from nvmlDeviceGetPowerUsage"


def test_what_is_not_supported_is_asked_once(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu * gpm 0", "fault nvmlDeviceGetCurrentClocks* * error 3")
    with reading(simulated_driver) as reader:
        reader.until(GpuStatus)
        reader.until(GpuStatus)
        reader.until(GpuStatus)
    assert simulated_driver.calls("nvmlDeviceGetClockInfo") > 3
    for function in ("nvmlDeviceGetFanSpeed", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetCurrentClocksEventReasons"):
        assert simulated_driver.calls(function) == 1, function


def test_a_driver_that_hides_the_uuid_still_has_a_row(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetUUID * error 3")
    with reading(simulated_driver) as reader:
        assert reader.until(GpuFacts).uuid == "GPU-index-0"
        reader.sample("GPU-index-0")


def test_facts_that_failed_at_first_are_reported_later(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetMaxClockInfo * error 27")
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts)
        assert facts.sm_clock_max_mhz is None and facts.unavailable["sm_clock_max_mhz"] == "the GPU is not ready"
        simulated_driver.write()
        assert reader.until(GpuFacts).sm_clock_max_mhz == 1980


def test_the_users_folder_and_its_modules_do_not_matter(
    simulated_driver: SimulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "select", "ctypes", "pynvml"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the training script has a module of this name')\n")
    monkeypatch.chdir(tmp_path)
    with reading(simulated_driver) as reader:
        assert reader.until(GpuSample).uuid == simulated_driver.uuid(0)


def test_a_child_that_cannot_be_started_is_named(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    with reading(simulated_driver, command=[str(tmp_path / "python")]) as reader:
        state = reader.until(NvmlState)
    assert state.status == "failing" and "cannot be started" in (state.reason or "")


def read_until_ok(reader: Reader) -> NvmlState:
    return reader.until(NvmlState, lambda state: state.status == "ok")


def test_a_cuda_visible_subset_does_not_narrow_what_is_shown(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    with reading(simulated_driver, env={**os.environ, "CUDA_VISIBLE_DEVICES": "1", **simulated_driver.env}) as reader:
        assert read_until_ok(reader).gpu_count == 2


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
