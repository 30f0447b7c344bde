"""The machine-wide half of the host source, over recorded /proc trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_proc import Clock, RecordedHost

from gpuwatch.procfs import keyed_int, rate, shown
from gpuwatch.samples import HostSample, MachineFacts
from gpuwatch.sources.host.machine import parse_disks, parse_network, shares
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
