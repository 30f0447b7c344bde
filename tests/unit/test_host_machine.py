"""The machine-wide half of the host source, over recorded /proc trees and cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_proc import Clock, RecordedHost

from gpuwatch.procfs import keyed_int, rate, shown
from gpuwatch.samples import HostSample, MachineFacts
from gpuwatch.sources.host.machine import (
    Cgroups,
    CpuLimit,
    MemoryLimit,
    Throttling,
    parse_disks,
    parse_network,
    read_throttling,
    shares,
)
from gpuwatch.sources.host.source import HostSource


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


def poll_twice(host: RecordedHost, before: dict, after: dict, seconds: float = 2.0) -> HostSample:
    """The second sample of a machine that went from `before` to `after` in `seconds`."""
    clock = Clock()
    host.machine(**before)
    source = HostSource(1.0, host.proc, host.cgroup, clock)
    source.collect(clock())
    host.machine(**after)
    (sample,) = source.collect(clock.advance(seconds))
    assert isinstance(sample, HostSample)
    return sample


def test_first_poll_knows_levels_but_no_rates(host: RecordedHost) -> None:
    clock = Clock()
    host.machine()
    facts, sample = HostSource(1.0, host.proc, host.cgroup, clock).collect(clock())
    assert isinstance(facts, MachineFacts)
    assert isinstance(sample, HostSample)
    assert sample.memory_total_bytes == 16000 * 1024
    assert sample.memory_available_bytes == 8000 * 1024
    assert sample.load_1m == 1.5
    assert sample.cpu_percent is None
    assert sample.cpu_percent_by_core == ()
    assert sample.major_faults_per_second is None
    assert sample.disk_read_bytes_per_second is None


def test_cpu_shares_are_over_the_time_since_the_previous_poll(host: RecordedHost) -> None:
    idle = (100, 0, 0, 100, 0, 0, 0, 0)
    sample = poll_twice(
        host,
        {"cores": [idle, idle]},
        {"cores": [(180, 0, 0, 120, 0, 0, 0, 0), (100, 0, 0, 150, 50, 0, 0, 0)]},
    )
    assert sample.cpu_percent == 40.0
    assert sample.cpu_percent_by_core == (80.0, 0.0)
    assert sample.cpu_iowait_percent == 25.0


def test_a_core_that_came_leaves_the_per_core_list_empty_rather_than_shifted(host: RecordedHost) -> None:
    core = (10, 0, 0, 10, 0, 0, 0, 0)
    later = (20, 0, 0, 20, 0, 0, 0, 0)
    sample = poll_twice(host, {"cores": [core]}, {"cores": [later, later]})
    assert sample.cpu_percent_by_core == ()
    assert sample.cpu_percent is not None


def test_iowait_that_runs_backwards_does_not_make_a_share_negative() -> None:
    assert shares((50, 0, 0, 50, 3, 0, 0, 0), (0, 0, 0, 0, 9, 0, 0, 0)) == (50.0, 0.0)


def test_paging_is_a_rate_in_bytes_and_faults(host: RecordedHost) -> None:
    sample = poll_twice(host, {}, {"swapped_in_pages": 10, "major_faults": 600}, seconds=2.0)
    assert sample.swap_in_bytes_per_second == 5 * os.sysconf("SC_PAGE_SIZE")
    assert sample.major_faults_per_second == 300.0


def test_pressure_is_the_some_average_of_ten_seconds(host: RecordedHost) -> None:
    sample = poll_twice(host, {}, {"pressure": {"cpu": 41.5, "io": 20.0, "memory": 0.0}})
    assert (sample.pressure_cpu_percent, sample.pressure_io_percent) == (41.5, 20.0)
    assert sample.pressure_memory_percent == 0.0


def test_a_kernel_without_pressure_accounts_says_unknown_not_zero(host: RecordedHost) -> None:
    sample = poll_twice(host, {}, {})
    assert sample.pressure_cpu_percent is None
    assert sample.pressure_io_percent is None
    assert sample.pressure_memory_percent is None


def test_shared_memory_is_that_of_the_mount_below_the_root_of_the_process(host: RecordedHost) -> None:
    (host.proc / "self/root/dev/shm").mkdir(parents=True)
    sample = poll_twice(host, {}, {})
    assert sample.shm_total_bytes is not None
    assert sample.shm_used_bytes is not None
    assert 0 < sample.shm_used_bytes <= sample.shm_total_bytes


def diskstats(name: str, read_sectors: int, written_sectors: int, queue_ms: int) -> str:
    return f" 259 0 {name} 5 0 {read_sectors} 1 6 0 {written_sectors} 1 0 9 {queue_ms} 0 0 0 0\n"


def test_disk_bytes_are_counted_once_and_the_queue_is_the_worst_disks(host: RecordedHost) -> None:
    names = ("nvme0n1", "nvme0n1p1", "dm-0", "sdb")
    clock = Clock()
    host.machine()
    host.write("diskstats", "".join(diskstats(name, 0, 0, 0) for name in names))
    source = HostSource(1.0, host.proc, host.cgroup, clock)
    source.collect(clock())
    host.write(
        "diskstats",
        diskstats("nvme0n1", 2000, 400, 24000)
        + diskstats("nvme0n1p1", 2000, 400, 24000)
        + diskstats("dm-0", 2000, 400, 24000)
        + diskstats("sdb", 0, 0, 100),
    )
    (sample,) = source.collect(clock.advance(2.0))
    assert isinstance(sample, HostSample)
    assert sample.disk_read_bytes_per_second == 2000 * 512 / 2
    assert sample.disk_write_bytes_per_second == 400 * 512 / 2
    assert sample.disk_queue_length == 12.0


def test_a_lone_partition_is_a_disk_of_its_own() -> None:
    assert set(parse_disks(diskstats("xvda1", 1, 1, 1).encode())) == {"xvda1"}


def test_loopback_and_container_interfaces_are_not_counted() -> None:
    table = b"Inter-|   Receive\n face |bytes packets\n" + b"".join(
        b"%s: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n" % name
        for name in (b"    lo", b"  eth0", b"docker0", b"vethab12", b"eth0.7", b"  ibp1s0")
    )
    assert parse_network(table) == {"eth0": (100, 200), "ibp1s0": (100, 200)}


def test_facts_come_once_and_again_when_the_quota_was_changed(host: RecordedHost) -> None:
    clock = Clock()
    host.machine()
    host.mount_v2()
    host.write("self/cgroup", "0::/job\n")
    host.group("job", cpu__max="200000 100000\n")
    source = HostSource(1.0, host.proc, host.cgroup, clock)

    def facts(seconds: float) -> list[MachineFacts]:
        return [s for s in source.collect(clock.advance(seconds)) if isinstance(s, MachineFacts)]

    (first,) = facts(0.0)
    assert (first.hostname, first.kernel, first.cpu_count) == ("node07", "6.8.0-45-generic", 2)
    assert (first.cpu_quota_cores, first.container, first.wsl) == (2.0, False, False)
    assert facts(60.0) == []
    host.group("job", cpu__max="400000 100000\n")
    (changed,) = facts(60.0)
    assert changed.cpu_quota_cores == 4.0


@pytest.mark.parametrize(
    "path", ["self/root/.dockerenv", "self/root/run/.containerenv", "self/root/run/systemd/container"]
)
def test_an_engines_mark_in_the_root_folder_means_a_container(host: RecordedHost, path: str) -> None:
    host.machine()
    host.write(path, "")
    assert first_facts(host).container


def test_a_container_engines_group_means_a_container(host: RecordedHost) -> None:
    host.machine()
    host.write("self/cgroup", "0::/kubepods/burstable/pod8f/3ac1\n")
    assert first_facts(host).container


def test_wsl_is_known_by_its_kernel(host: RecordedHost) -> None:
    host.machine()
    host.write("sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
    assert first_facts(host).wsl


def test_the_model_is_the_first_processors(host: RecordedHost) -> None:
    host.machine()
    host.write("cpuinfo", "processor\t: 0\nmodel name\t: AMD  EPYC 9654\nflags\t: fpu\n\nprocessor\t: 1\n")
    assert first_facts(host).cpu_model == "AMD EPYC 9654"


def first_facts(host: RecordedHost) -> MachineFacts:
    clock = Clock()
    facts, *_ = HostSource(1.0, host.proc, host.cgroup, clock).collect(clock())
    assert isinstance(facts, MachineFacts)
    return facts


def test_without_linux_proc_the_machine_is_read_through_psutil(tmp_path: Path) -> None:
    clock = Clock()
    source = HostSource(1.0, tmp_path / "nothing", tmp_path, clock, lambda: [os.getpid()])
    facts, first = source.collect(clock())
    (second,) = source.collect(clock.advance(1.0))
    assert isinstance(facts, MachineFacts)
    assert facts.cpu_count >= 1
    assert isinstance(first, HostSample)
    assert first.cpu_percent is None
    assert first.memory_total_bytes == facts.memory_total_bytes
    assert isinstance(second, HostSample)
    assert len(second.cpu_percent_by_core) == facts.cpu_count
    assert second.pressure_cpu_percent is None


def test_polls_keep_their_beat_and_a_missed_one_is_not_made_up_for(host: RecordedHost) -> None:
    clock = Clock()
    host.machine()
    source = HostSource(1.0, host.proc, host.cgroup, clock, cpu_clock=lambda: 0)
    start = clock()
    source.collect(clock())
    source.collect(clock.advance(1.2))
    assert source.due_ns() == start + 2_000_000_000
    source.collect(clock.advance(5.0))
    assert source.due_ns() == clock() + 1_000_000_000
    assert list(source.collect(clock() + 1)) == []


def test_a_closed_source_asks_for_nothing_and_gives_nothing(host: RecordedHost) -> None:
    clock = Clock()
    host.machine()
    source = HostSource(1.0, host.proc, host.cgroup, clock)
    source.close()
    source.close()
    assert source.due_ns() is None
    assert list(source.collect(clock())) == []


def test_a_counter_that_fell_was_reset_and_has_no_rate() -> None:
    assert rate(5, 9, 1.0) is None
    assert rate(None, 9, 1.0) is None
    assert rate(9, 5, 2.0) == 2.0


def test_a_key_is_found_only_at_the_start_of_a_line() -> None:
    raw = b"voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t9\n"
    assert keyed_int(raw, b"voluntary_ctxt_switches:") == 5
    assert keyed_int(raw, b"nonvoluntary_ctxt_switches:") == 9
    assert keyed_int(raw, b"switches:") is None


def test_bytes_of_other_processes_are_shown_without_steering_the_terminal() -> None:
    assert shown(b"train\xff.py") == r"train\xff.py"
    assert shown(b"\x1b]0;owned\x07") == r"\x1b]0;owned\x07"
    assert shown("daten_\u00fc.py".encode()) == "daten_ü.py"


def limit(host: RecordedHost, pid: int = 7) -> CpuLimit:
    return Cgroups(host.proc, host.cgroup).cpu_limit(pid)


def test_v2_quota_and_throttling(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/job\n")
    host.group(
        "job",
        cpu__max="250000 100000\n",
        cpu__stat="usage_usec 1\nnr_periods 400\nnr_throttled 120\nthrottled_usec 2500000\n",
    )
    found = limit(host)
    assert (found.known, found.quota_cores) == (True, 2.5)
    assert read_throttling(found) == Throttling(400, 120, 2.5)


def test_v2_the_tightest_of_the_nested_groups_decides_and_gives_the_counters(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/kubepods/pod1/container\n")
    host.group("kubepods", cpu__max="3200000 100000\n")
    host.group("kubepods/pod1", cpu__max="300000 100000\n", cpu__stat="nr_periods 9\nnr_throttled 3\n")
    host.group("kubepods/pod1/container", cpu__max="max 100000\n", cpu__stat="nr_periods 0\n")
    found = limit(host)
    assert found.quota_cores == 3.0
    assert read_throttling(found) == Throttling(9, 3, None)


def test_v2_without_any_quota_is_known_to_have_none(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/user.slice\n")
    host.group("user.slice", cpu__max="max 100000\n")
    assert limit(host) == CpuLimit(known=True)
    assert read_throttling(limit(host)) == Throttling()


def test_a_container_sees_its_own_limit_at_the_top_of_the_mount(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/\n")
    host.group(".", cpu__max="150000 100000\n")
    assert limit(host).quota_cores == 1.5


def test_a_group_outside_our_namespace_is_unknown_not_unlimited(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/../other-container\n")
    assert limit(host) == CpuLimit(known=False)


def test_v1_quota_and_throttling_in_nanoseconds(host: RecordedHost) -> None:
    host.mount_v1()
    host.write("7/cgroup", "8:memory:/job\n4:cpu,cpuacct:/job/step\n1:name=systemd:/\n")
    host.group("cpu,cpuacct/job", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    host.group(
        "cpu,cpuacct/job/step",
        cpu__cfs_quota_us="50000\n",
        cpu__cfs_period_us="100000\n",
        cpu__stat="nr_periods 10\nnr_throttled 4\nthrottled_time 3000000000\n",
    )
    found = limit(host)
    assert found.quota_cores == 0.5
    assert read_throttling(found) == Throttling(10, 4, 3.0)


def test_v1_minus_one_means_no_quota(host: RecordedHost) -> None:
    host.mount_v1()
    host.write("7/cgroup", "4:cpu,cpuacct:/\n")
    host.group("cpu,cpuacct", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert limit(host) == CpuLimit(known=True)


def test_v1_container_whose_mount_shows_only_its_own_part(host: RecordedHost) -> None:
    host.mount_v1(shows="/docker/3ac1")
    host.write("7/cgroup", "4:cpu,cpuacct:/docker/3ac1/app\n")
    host.group("cpu,cpuacct", cpu__cfs_quota_us="200000\n", cpu__cfs_period_us="100000\n")
    host.group("cpu,cpuacct/app", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert limit(host).quota_cores == 2.0


def test_v1_another_containers_group_is_not_read_as_ours(host: RecordedHost) -> None:
    host.mount_v1(shows="/docker/3ac1")
    host.write("7/cgroup", "4:cpu,cpuacct:/docker/ffff\n")
    host.group("cpu,cpuacct", cpu__cfs_quota_us="200000\n", cpu__cfs_period_us="100000\n")
    assert limit(host) == CpuLimit(known=False)


def test_hybrid_takes_the_controller_from_where_it_is_attached(host: RecordedHost) -> None:
    host.mount_hybrid()
    host.write("7/cgroup", "4:cpu,cpuacct:/job\n0::/job\n")
    host.group("cpu,cpuacct/job", cpu__cfs_quota_us="300000\n", cpu__cfs_period_us="100000\n")
    host.group("unified/job", cpu__max="100000 100000\n", memory__max="5000\n", memory__current="900\n")
    host.group("unified/job", memory__stat="inactive_file 100\n")
    assert limit(host).quota_cores == 3.0
    assert Cgroups(host.proc, host.cgroup).memory_limit(7) == MemoryLimit(5000, 800)


def test_a_kernel_without_cgroups_limits_nobody(host: RecordedHost) -> None:
    assert limit(host) == CpuLimit(known=True)


@pytest.mark.parametrize("text", ["", "max\n", "100000\n", "many 100000\n", "100000 0\n"])
def test_a_quota_that_cannot_be_read_is_no_number(host: RecordedHost, text: str) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/job\n")
    host.group("job", cpu__max=text)
    assert limit(host).quota_cores is None


def test_memory_limit_is_the_tightest_and_leaves_out_droppable_cache(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("7/cgroup", "0::/pod/app\n")
    host.group("pod", memory__max="8000\n", memory__current="6000\n", memory__stat="anon 1\ninactive_file 1500\n")
    host.group("pod/app", memory__max="max\n", memory__current="10\n")
    assert Cgroups(host.proc, host.cgroup).memory_limit(7) == MemoryLimit(8000, 4500)


def test_v1_memory_limit_that_is_the_largest_number_is_none(host: RecordedHost) -> None:
    host.mount_v1()
    host.write("7/cgroup", "8:memory:/\n")
    host.group("memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="7\n")
    assert Cgroups(host.proc, host.cgroup).memory_limit(7) == MemoryLimit()
