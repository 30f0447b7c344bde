"""Quotas, throttling and memory limits over recorded cgroup trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_proc import RecordedHost

from gpuwatch.sources.host.machine import Cgroups, CpuLimit, MemoryLimit, Throttling, read_throttling


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


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
