"""What a healthy driver reports arrives whole, in the right unit, with its age: GPUs, MIG, links, processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuHealth, GpuProcess, GpuSample, GpuStatus, NvmlState, XidEvent
from gpuwatch.sources.nvml.source import NvmlSurvey, survey


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


def test_instances_are_listed_under_their_gpu(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 2", gpus=2)
    with reading(simulated_driver) as reader:
        whole, first, second, other = (reader.until(GpuFacts) for _ in range(4))
    assert whole.mig and whole.mig_parent is None
    assert [facts.mig_parent for facts in (first, second)] == [whole.uuid, whole.uuid]
    assert first.uuid.startswith("MIG-") and first.uuid != second.uuid
    assert [facts.label for facts in (whole, first, second, other)] == ["0", "0:0", "0:1", "1"]
    assert first.mig_gpu_instance is not None and first.mig_profile == "1g.10gb" and whole.mig_profile is None
    assert first.name.endswith("MIG 1g.10gb") and first.memory_total_bytes == 10_000_000_000
    assert other.uuid == simulated_driver.uuid(1) and not other.mig


def test_the_whole_gpu_says_where_its_utilization_went(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 1")
    with reading(simulated_driver) as reader:
        sample = reader.sample(simulated_driver.uuid(0))
    assert sample.utilization_percent is None
    assert sample.unavailable["utilization_percent"] == "MIG is on: only its instances report it"
    assert sample.power_watts == 500.0 and sample.temperature_celsius == 61


def test_an_instance_has_memory_processes_and_gpm(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 2", "process 0 4711 1000 50 1", "process 0 4712 2000 50 0")
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts, lambda facts: facts.uuid.endswith("-1"))
        sample = reader.until(GpuSample, lambda s: s.uuid == facts.uuid and s.sm_activity_percent is not None)
        status = reader.until(GpuStatus, lambda status: status.uuid == facts.uuid)
    assert sample.memory_used_bytes == 5_000_000_000
    assert (sample.sm_activity_percent, sample.tensor_activity_percent) == (80.0, 40.0)
    assert sample.power_watts is None and sample.unavailable["power_watts"] == "a MIG instance has none of its own"
    assert [process.host_pid for process in status.processes or ()] == [4711]


def test_a_container_that_owns_a_slice_may_not_read_the_gpus_memory(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 1", "fault nvmlDeviceGetMemoryInfo* 0 error 4")
    with reading(simulated_driver) as reader:
        sample = reader.sample(simulated_driver.uuid(0))
    assert sample.memory_used_bytes is None and sample.unavailable["memory_used_bytes"] == "no permission"


def test_switching_mig_brings_the_instances_up(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("gpu 0 mig 1")
        assert "MIG was switched on" in (reader.until(NvmlState, lambda s: s.status == "restarting").reason or "")
        instance = reader.until(GpuFacts, lambda facts: facts.mig_parent is not None)
        assert reader.sample(instance.uuid).memory_used_bytes == 5_000_000_000


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


def test_an_xid_of_the_driver_names_its_gpu(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    with reading(simulated_driver) as reader:
        before = reader.until(GpuSample)
        simulated_driver.write("event 1 1 94")
        event = reader.until(XidEvent)
        reader.until(GpuSample)
        after = reader.until(GpuSample)
    assert (event.uuid, event.xid) == (simulated_driver.uuid(1), 94)
    assert before.time_ns < event.time_ns < after.time_ns
    assert len(reader.each(XidEvent)) == 1


def test_old_events_are_not_reported_again_to_a_new_monitor(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("event 1 0 79")
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("event 1 0 79", "event 2 0 31")
        assert reader.until(XidEvent).xid == 31
    assert len(reader.each(XidEvent)) == 1


def test_the_kernel_log_tells_what_the_driver_does_not(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, an old one\n")
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("6,2,2,-;usb 1-1: new device\n")
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.\n")
        event = reader.until(XidEvent)
    assert (event.uuid, event.xid) == (simulated_driver.uuid(0), 79)
    assert event.text == "pid=4711, GPU has fallen off the bus."


def test_the_same_error_from_both_is_one_event(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 94, contained\n")
        simulated_driver.write("event 1 0 94")
        reader.until(XidEvent)
        simulated_driver.write("event 1 0 94", "event 2 0 45")
        reader.until(XidEvent, lambda event: event.xid == 45)
    assert [event.xid for event in reader.each(XidEvent)] == [94, 45]


def test_an_unknown_bus_address_is_an_event_without_a_gpu(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:99:00): 79, pid=1\n")
        assert reader.until(XidEvent).uuid is None


def test_without_events_and_log_the_samples_come_all_the_same(
    simulated_driver: SimulatedDriver, tmp_path: Path
) -> None:
    simulated_driver.write("fault nvmlEventSetCreate * error 3")
    with reading(simulated_driver, kernel_log=tmp_path / "none") as reader:
        first, second = reader.until(GpuSample), reader.until(GpuSample)
    assert first.time_ns < second.time_ns
    assert reader.each(XidEvent) == []


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


def modules_after(statement: str) -> set[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split())


def test_the_monitor_never_loads_nvml() -> None:
    assert not {"pynvml", "ctypes"} & modules_after("import gpuwatch.sources.nvml.source")


def test_the_child_loads_only_the_standard_library_and_pynvml() -> None:
    loaded = modules_after("import gpuwatch.sources.nvml.child, gpuwatch.sources.nvml.machine")
    names = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert names - {"__main__", "sitecustomize", "_distutils_hack"} <= {"gpuwatch", "pynvml"}
    heavy = {"argparse", "asyncio", "dataclasses", "inspect", "logging", "multiprocessing", "statistics", "unittest"}
    assert not heavy & loaded
    assert not {name for name in loaded if name.startswith("gpuwatch.") and "sources" not in name} - {
        "gpuwatch._version",
        "gpuwatch.metrics",
    }


def test_the_child_does_without_what_costs_it_megabytes() -> None:
    """typing, pathlib, and what ctypes.util brings along, which pynvml asks on Windows only."""
    statement = (
        "from gpuwatch.sources.nvml import child\nchild._import_pynvml()\nfrom gpuwatch.sources.nvml import machine"
    )
    loaded = modules_after(statement)
    assert "pynvml" in loaded
    assert not {"typing", "pathlib", "urllib.parse", "ctypes.util", "subprocess", "tempfile", "shutil"} & loaded


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
