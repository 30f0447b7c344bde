"""What a healthy driver tells arrives whole, in the right unit, with its age and window."""

from __future__ import annotations

import os
import time

import pytest
from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuHealth, GpuSample, GpuStatus, NvmlState


def test_facts_name_the_gpu_and_its_limits(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts)
    assert facts.uuid == simulated_driver.uuid(0)
    assert (facts.name, facts.index, facts.pci_bus_id) == ("NVIDIA H100 80GB HBM3", 0, "00000000:01:00.0")
    assert facts.compute_capability == (9, 0)
    assert facts.memory_total_bytes == 80_000_000_000
    assert (facts.power_limit_watts, facts.power_limit_default_watts) == (700.0, 700.0)
    assert (facts.sm_clock_max_mhz, facts.memory_clock_max_mhz) == (1980, 2619)
    assert (facts.pcie_generation_max, facts.pcie_width_max) == (5, 16)
    assert not facts.mig and not facts.memory_unified and facts.unavailable == {}


def test_the_first_sample_already_has_every_value_but_gpm(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample)
        state = reader.until(NvmlState)
    assert sample.utilization_percent == 90.0
    assert sample.memory_utilization_percent == 40
    assert (sample.power_watts, sample.power_window_seconds) == (500.0, 0.0)
    assert sample.memory_used_bytes == 40_000_000_000
    assert (sample.temperature_celsius, sample.memory_temperature_celsius) == (61, 72)
    assert (sample.sm_clock_mhz, sample.event_reasons) == (1755, 0)
    assert sample.throttled_power_ns == sample.throttled_hw_thermal_ns == 0
    assert sample.utilization_ring and sample.power_ring
    assert sample.sm_activity_percent is None
    assert sample.unavailable["sm_activity_percent"] == "needs a second reading"
    assert (state.status, state.driver_version, state.cuda_version, state.gpu_count) == ("ok", "580.95.05", "13.0", 1)


def test_gpm_follows_with_the_second_reading(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample, lambda sample: sample.sm_activity_percent is not None)
    activities = (sample.sm_activity_percent, sample.tensor_activity_percent, sample.dram_activity_percent)
    assert activities == (80.0, 40.0, 35.0)


def test_energy_and_counters_grow_with_their_signal(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("wave 0 throttle_power constant 0.25", "wave 0 pcie_rx constant 2000000000")
    with reading(simulated_driver) as reader:
        first = reader.until(GpuSample)

        def grown_as_told(last: GpuSample) -> bool:
            """The longer it is, the less it counts that a machine may hold a child between a clock and a counter."""
            seconds = (last.time_ns - first.time_ns) / 1e9
            return seconds > 1.0 and (
                last.energy_joules - first.energy_joules,
                last.throttled_power_ns - first.throttled_power_ns,
                last.pcie_rx_bytes - first.pcie_rx_bytes,
            ) == pytest.approx((500 * seconds, 0.25e9 * seconds, 2e9 * seconds), rel=0.1)

        last = reader.until(GpuSample, grown_as_told)
    assert last.event_reasons == 0x4


@pytest.mark.parametrize("stamps", ["boot", "epoch"])
def test_the_ring_shows_swings_that_a_poll_cannot(simulated_driver: SimulatedDriver, stamps: str) -> None:
    simulated_driver.write(f"stamps {stamps}", "wave 0 utilization square 5 95 0.5 0.5")
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        reader.until(GpuSample, lambda sample: len(reader.each(GpuSample)) >= 10 and bool(sample.utilization_ring))
        samples = reader.each(GpuSample)
    ring = [entry for sample in samples for entry in sample.utilization_ring]
    values = [value for _, value in ring]
    assert min(values) < 30 and max(values) > 70
    times = [time_ns for time_ns, _ in ring]
    assert times == sorted(set(times)), "each entry comes once, in order"
    assert samples[0].time_ns - 11_000_000_000 < times[0] and times[-1] <= time.monotonic_ns()
    assert len(samples[0].utilization_ring) >= 70, "the first drain holds the last ten seconds"


def test_utilization_is_the_rings_mean_over_the_last_interval(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("wave 0 utilization square 0 100 0.5 0.5")
    with reading(simulated_driver, interval_seconds=1.0) as reader:
        sample = reader.until(GpuSample)
    assert sample.utilization_percent == pytest.approx(50, abs=20)


def test_a_driver_that_wants_the_exact_room_for_its_ring_gets_it(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("exact_room 1", "ring_entries 50")
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample)
        reader.until(GpuSample, lambda sample: bool(sample.utilization_ring))
    assert len(sample.utilization_ring) == len(sample.power_ring) == 50


@pytest.mark.parametrize("ring", [0, 2])
def test_without_a_ring_the_sensor_is_read(simulated_driver: SimulatedDriver, ring: int) -> None:
    simulated_driver.write(f"gpu 0 ring {ring}")
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        sample = reader.until(GpuSample)
    assert sample.utilization_percent == 90.0
    assert sample.utilization_ring == sample.power_ring == ()


def test_average_power_says_that_it_is_one(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 has_instant_power 0", "wave 0 power constant 321")
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample)
    assert (sample.power_watts, sample.power_window_seconds) == (321.0, 1.0)


@pytest.mark.parametrize(("major", "minor", "window"), [(7, 5, 0.0), (8, 0, 0.0), (8, 6, 1.0)])
def test_power_without_fields_has_the_window_of_its_generation(
    simulated_driver: SimulatedDriver, major: int, minor: int, window: float
) -> None:
    simulated_driver.write(
        "field 0 185 0 3", "field 0 186 0 3", f"gpu 0 capability_major {major}", f"gpu 0 capability_minor {minor}"
    )
    with reading(simulated_driver) as reader:
        sample = reader.until(GpuSample)
    assert (sample.power_watts, sample.power_window_seconds) == (500.0, window)


def test_the_slow_lane_tells_link_fan_and_clocks(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(
        "gpu 0 has_fan 1", "gpu 0 pcie_generation 4", "gpu 0 pcie_width 8", "gpu 0 performance_state 2"
    )
    with reading(simulated_driver) as reader:
        status = reader.until(GpuStatus)
    assert (status.fan_percent, status.memory_clock_mhz, status.performance_state) == (45, 2619, 2)
    assert (status.pcie_generation, status.pcie_width) == (4, 8)
    assert status.unavailable == {}


def test_the_rare_lane_tells_memory_health(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(
        "gpu 0 ecc_uncorrected 2",
        "gpu 0 ecc_corrected 31",
        "gpu 0 remapped_rows 3",
        "gpu 0 remap_pending 1",
        "gpu 0 retired_pages 4",
        "gpu 0 recovery_action 1",
        "gpu 0 pcie_replays 12",
        "gpu 0 power_limit 350",
    )
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
    assert (health.ecc_uncorrected_volatile, health.ecc_corrected_volatile) == (2, 31)
    assert (health.remapped_rows_uncorrectable, health.remap_pending, health.remap_failed) == (3, True, False)
    assert (health.retired_pages, health.recovery_action, health.pcie_replays) == (4, "reset the GPU", 12)
    assert health.power_limit_watts == 350.0


def test_a_sum_of_which_a_part_is_missing_is_unknown(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("field 0 29 0 3", "field 0 30 2 0")
    with reading(simulated_driver) as reader:
        health = reader.until(GpuHealth)
    assert health.retired_pages is None
    assert health.unavailable["retired_pages"] == "not supported by this GPU"


def test_a_gaming_gpu_says_what_it_does_not_have(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(
        "gpu 0 name NVIDIA GeForce RTX 4090",
        "gpu 0 capability_major 8",
        "gpu 0 capability_minor 9",
        "gpu 0 gpm 0",
        "gpu 0 has_ecc 0",
        "gpu 0 has_memory_temperature 0",
    )
    with reading(simulated_driver) as reader:
        sample, health = reader.until(GpuSample), reader.until(GpuHealth)
    unsupported = "not supported by this GPU"
    for name in ("sm_activity_percent", "tensor_activity_percent", "memory_temperature_celsius"):
        assert getattr(sample, name) is None and sample.unavailable[name] == unsupported
    for name in ("ecc_uncorrected_volatile", "remap_pending", "retired_pages"):
        assert getattr(health, name) is None and health.unavailable[name] == unsupported


def test_unified_memory_is_the_hosts_and_the_processes_sum(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(
        "gpu 0 name NVIDIA GB10",
        "gpu 0 capability_major 12",
        "gpu 0 capability_minor 1",
        "gpu 0 unified 1",
        f"process 0 {os.getpid()} 3000 10",
        "process 0 1 4000 10",
    )
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts)
        sample = reader.until(GpuSample, lambda sample: sample.memory_used_bytes is not None)
    page_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts.memory_unified and facts.memory_total_bytes == pytest.approx(page_bytes, rel=0.01)
    assert sample.memory_used_bytes == 7000


def test_a_failing_memory_call_on_a_server_gpu_is_not_called_unified(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 unified 1")
    with reading(simulated_driver) as reader:
        facts, sample = reader.until(GpuFacts), reader.until(GpuSample)
    assert not facts.memory_unified and facts.memory_total_bytes is None
    assert sample.memory_used_bytes is None
    assert sample.unavailable["memory_used_bytes"] == "not supported by this GPU"


def test_sixty_four_gpus_are_all_read(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(*(f"wave {gpu} power constant {100 + gpu}" for gpu in range(64)), gpus=64)
    with reading(simulated_driver, interval_seconds=1.0) as reader:
        for gpu in range(64):
            reader.sample(simulated_driver.uuid(gpu), power_watts=100.0 + gpu)
        assert reader.until(NvmlState).gpu_count == 64


def test_repeated_values_tell_their_age(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver, interval_seconds=0.2) as reader:
        reader.until(GpuSample)
        sample = reader.until(
            GpuSample,
            lambda sample: "temperature_celsius" in sample.ages_seconds and "power_watts" not in sample.ages_seconds,
        )
    assert sample.temperature_celsius == 61
    assert sample.ages_seconds["temperature_celsius"] > 0.1


def test_a_driver_that_writes_impossible_values_is_not_believed(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(
        "field 0 82 9223372036854775794",
        "field 0 83 18446744073709551615",
        "field 0 186 4294967295000",
        "wave 0 memory constant 90000000000",
        "wave 0 sm_clock constant 4294967295",
    )
    with reading(simulated_driver) as reader:
        sample, state = reader.until(GpuSample), reader.until(NvmlState)
    for name in ("memory_temperature_celsius", "energy_joules", "power_watts", "memory_used_bytes", "sm_clock_mhz"):
        assert getattr(sample, name) is None
        assert sample.unavailable[name] == "the driver gave an impossible value"
    assert state.dropped_values >= 5
