"""NVLink and clock settings arrive from each generation of GPU, at a few calls a minute."""

from __future__ import annotations

import pytest
from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuHealth

ERRORS = ("gpu 0 nvlink_crc 700", "gpu 0 nvlink_replays 3", "gpu 0 nvlink_recoveries 2", "gpu 0 nvlinks_active 17")


def test_hopper_tells_its_links_one_by_one_in_one_call(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(*ERRORS)
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
        assert simulated_driver.calls("nvmlDeviceGetNvLinkState") == 0
    assert (health.nvlink_count, health.nvlink_active) == (18, 17)
    assert (health.nvlink_crc_errors, health.nvlink_replays, health.nvlink_recoveries) == (700, 3, 2)


def test_ampere_tells_totals_and_each_links_state(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(*ERRORS, "gpu 0 capability_major 8", "gpu 0 nvlinks 12", "gpu 0 nvlinks_active 11")
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
        assert simulated_driver.calls("nvmlDeviceGetNvLinkState") == 12
    assert (health.nvlink_count, health.nvlink_active) == (12, 11)
    assert (health.nvlink_crc_errors, health.nvlink_replays, health.nvlink_recoveries) == (700, 3, 2)


def test_blackwell_counts_recoveries_elsewhere(simulated_driver: SimulatedDriver) -> None:
    refused = [f"field 0 {number} 0 3" for number in (161, 162, 163)]
    simulated_driver.write("gpu 0 capability_major 10", "gpu 0 nvlinks 1", "gpu 0 nvlinks_active 1", *refused,
                           "field 0 215 5 0")  # fmt: skip
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
    assert health.nvlink_recoveries == 5
    assert health.nvlink_crc_errors is None and health.nvlink_replays is None
    assert health.unavailable["nvlink_replays"] == "not supported by this GPU"


@pytest.mark.parametrize("lines", [["gpu 0 nvlinks 0"], ["field 0 91 0 3"]])
def test_a_gpu_without_links_is_asked_once(simulated_driver: SimulatedDriver, lines: list[str]) -> None:
    simulated_driver.write("gpu 0 capability_major 8", *lines)
    with reading(simulated_driver) as reader:
        healths = [reader.until(GpuHealth) for _ in range(3)]
        assert simulated_driver.calls("nvmlDeviceGetNvLinkState") == 0
    for health in healths:
        assert health.nvlink_count is None and health.nvlink_crc_errors is None
        assert health.unavailable["nvlink_count"] == "not supported by this GPU"


def test_a_link_that_goes_down_is_seen_in_the_next_reading(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        assert reader.until(GpuHealth).nvlink_active == 18
        simulated_driver.write("gpu 0 nvlinks_active 16")
        health = reader.until(GpuHealth, lambda health: health.nvlink_active != 18)
    assert (health.nvlink_count, health.nvlink_active) == (18, 16)


def test_the_clock_that_applications_are_set_to(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 application_clock 1005")
    with reading(simulated_driver) as reader:
        assert reader.until(GpuHealth).application_clock_mhz == 1005
    simulated_driver.write("gpu 0 application_clock 0")
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
    assert health.application_clock_mhz is None
    assert health.unavailable["application_clock_mhz"] == "not supported by this GPU"
