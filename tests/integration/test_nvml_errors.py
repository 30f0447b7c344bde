"""Every NVML error code, in every kind of call: a reason and no value, never an exception and never a zero."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nvml_sim
import pytest
from nvml_reader import Reader, reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, GpuStatus, NvmlState

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
