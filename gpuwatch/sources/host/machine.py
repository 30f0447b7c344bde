"""The whole machine, from /proc and /sys: its facts, cores, memory, pressure (PSI), disks, network, NUMA nodes.

With CPU quota, throttling and memory limit of a process, from cgroup v1, v2 or both side by side. Limits nest: a
container without a limit inside a pod that has one is held by the pod's, so every ancestor counts and the tightest one
decides.

On systems without Linux's /proc psutil gives what it can: no pressure, cgroups or workers there.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gpuwatch.foreign import in_time
from gpuwatch.procfs import keyed_int, listed, rate, read_all, read_int, read_once, shown
from gpuwatch.samples import HostSample, MachineFacts

_MOUNTED_AT = PurePosixPath("/sys/fs/cgroup")
_UNLIMITED_V1_BYTES = 1 << 60  # v1 says "no limit" as a page-rounded 2**63


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """The tightest CPU quota above a process.

    `known` is False when the process's group cannot be looked up from here (it lies outside our cgroup
    namespace), which is not the same as having no quota.
    """

    known: bool
    quota_cores: float | None = None
    group: Path | None = None  # the folder that holds the quota and its cpu.stat


@dataclass(frozen=True, slots=True)
class Throttling:
    """Growing counters of the group that holds the quota."""

    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest memory limit above a process. `used_bytes` leaves out the file cache that can be dropped."""

    limit_bytes: int | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: `shows` is the part of it that is visible at `folder`."""

    folder: Path
    shows: PurePosixPath
    controllers: frozenset[str]  # empty for v2


class Cgroups:
    """The cgroup hierarchies as this process sees them mounted."""

    def __init__(self, proc_root: Path, cgroup_root: Path) -> None:
        self._proc_root = proc_root
        self._mounts = list(_read_mounts(proc_root, cgroup_root))

    def cpu_limit(self, pid: int | str) -> CpuLimit:
        """The tightest quota between the group of `pid` and the top of what is mounted here."""
        group = self._group(pid, "cpu")
        if group is None:
            return CpuLimit(known=not self._memberships(pid))  # a kernel without cgroups has no limits
        folders, version = group
        tightest = CpuLimit(known=True)
        for folder in folders:
            quota = _quota_v2(folder) if version == 2 else _quota_v1(folder)
            if quota is not None and (tightest.quota_cores is None or quota < tightest.quota_cores):
                tightest = CpuLimit(True, quota, folder)
        return tightest

    def memory_limit(self, pid: int | str) -> MemoryLimit:
        """The tightest memory limit between the group of `pid` and the top of what is mounted here."""
        group = self._group(pid, "memory")
        if group is None:
            return MemoryLimit()
        folders, version = group
        limit_file, usage_file, cache_key = (
            ("memory.max", "memory.current", b"inactive_file ")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file ")
        )
        tightest: tuple[int, Path] | None = None
        for folder in folders:
            limit = read_int(f"{folder}/{limit_file}")
            if limit is not None and limit < _UNLIMITED_V1_BYTES and (not tightest or limit < tightest[0]):
                tightest = (limit, folder)
        if tightest is None:
            return MemoryLimit()
        usage = read_int(f"{tightest[1]}/{usage_file}")
        cache = keyed_int(read_all(f"{tightest[1]}/memory.stat") or b"", cache_key)
        used = None if usage is None or cache is None else max(0, usage - cache)
        return MemoryLimit(tightest[0], used)

    def _group(self, pid: int | str, controller: str) -> tuple[list[Path], int] | None:
        """The folders of the group that holds `controller` for `pid`, leaf first, and the version."""
        memberships = self._memberships(pid)
        for controllers, path in memberships:
            if controller in controllers:
                return self._folders(path, controller, 1)
        for controllers, path in memberships:
            if not controllers:
                return self._folders(path, controller, 2)
        return None

    def _memberships(self, pid: int | str) -> list[tuple[frozenset[str], PurePosixPath]]:
        raw = read_all(f"{self._proc_root}/{pid}/cgroup") or b""
        memberships = []
        for line in raw.decode("utf-8", "surrogateescape").split("\n"):
            _, separator, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if separator:
                memberships.append((frozenset(controllers.split(",")) - {""}, PurePosixPath(path)))
        return memberships

    def _folders(self, path: PurePosixPath, controller: str, version: int) -> tuple[list[Path], int] | None:
        for mount in self._mounts:
            mine = controller in mount.controllers if version == 1 else not mount.controllers
            if not mine or not path.is_relative_to(mount.shows):
                continue
            inside = path.relative_to(mount.shows)
            leaf = mount.folder / inside
            if ".." not in inside.parts and os.access(leaf, os.X_OK):
                return [leaf, *leaf.parents][: len(inside.parts) + 1], version
        return None


def read_throttling(limit: CpuLimit) -> Throttling:
    """How often and how long the group of `limit` was stopped for having used up its quota."""
    raw = read_once(f"{limit.group}/cpu.stat", 4096) if limit.group else None
    if raw is None:
        return Throttling()
    microseconds = keyed_int(raw, b"throttled_usec ")  # v2
    nanoseconds = keyed_int(raw, b"throttled_time ")  # v1
    seconds = None
    if microseconds is not None:
        seconds = microseconds / 1e6
    elif nanoseconds is not None:
        seconds = nanoseconds / 1e9
    return Throttling(keyed_int(raw, b"nr_periods "), keyed_int(raw, b"nr_throttled "), seconds)


def _quota_v2(folder: Path) -> float | None:
    words = (read_once(f"{folder}/cpu.max", 64) or b"").split()
    try:
        return int(words[0]) / int(words[1]) if words and words[0] != b"max" else None
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    quota = read_int(f"{folder}/cpu.cfs_quota_us")
    period = read_int(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _read_mounts(proc_root: Path, cgroup_root: Path) -> Iterator[_Mount]:
    """The hierarchies of /proc/self/mountinfo; `cgroup_root` stands for /sys/fs/cgroup."""
    raw = read_all(f"{proc_root}/self/mountinfo") or b""
    for line in raw.decode("utf-8", "surrogateescape").split("\n"):
        before, _, after = line.partition(" - ")
        # The kernel escapes blank, tab, line feed and backslash in names, and nothing else that `split` cuts at.
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mounted_at = PurePosixPath(fields[4])
        folder = (
            cgroup_root / mounted_at.relative_to(_MOUNTED_AT)
            if mounted_at.is_relative_to(_MOUNTED_AT)
            else Path(mounted_at)
        )
        controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
        yield _Mount(folder, PurePosixPath(fields[3]), controllers)


_IDLE, _IOWAIT = 3, 4
_COUNTED = 8  # user nice system idle iowait irq softirq steal; guest time is already inside user and nice

CoreTicks = tuple[int, ...]


def parse_cpu_ticks(raw: bytes) -> dict[str, CoreTicks]:
    """Ticks by kind of time, by line name: "cpu" is the whole machine, "cpu0" a core."""
    lines: dict[str, CoreTicks] = {}
    for line in raw.split(b"\n"):
        if not line.startswith(b"cpu"):
            break  # the cpu lines come first; the interrupt lines behind them are long
        name, *fields = line.split()
        try:
            ticks = tuple(int(field) for field in fields[:_COUNTED])
        except ValueError:
            continue
        if len(ticks) > _IDLE:
            lines[name.decode("ascii", "replace")] = ticks
    return lines


def shares(current: CoreTicks, previous: CoreTicks) -> tuple[float, float] | None:
    """(busy, iowait) percent between two reads, None when no time passed.

    idle and iowait may run backwards (proc(5) calls iowait unreliable), so no difference goes below zero.
    """
    spent = [max(0, now - before) for now, before in zip(current, previous, strict=False)]
    total = sum(spent)
    if total == 0:
        return None
    iowait = spent[_IOWAIT] if len(spent) > _IOWAIT else 0
    return 100.0 * (total - spent[_IDLE] - iowait) / total, 100.0 * iowait / total


def _by_core(current: dict[str, CoreTicks], previous: dict[str, CoreTicks]) -> tuple[float, ...]:
    if current.keys() != previous.keys():  # a core came or went: positions would name other cores
        return ()
    busy = []
    for name, ticks in current.items():
        if name != "cpu":
            share = shares(ticks, previous[name])
            busy.append(share[0] if share else 0.0)
    return tuple(busy)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Size and use of one /dev/shm."""

    total_bytes: int | None = None
    used_bytes: int | None = None


def meminfo_bytes(raw: bytes | None, key: bytes) -> int | None:
    """One line of /proc/meminfo, which counts in KiB."""
    kibibytes = keyed_int(raw, key + b":") if raw else None
    return None if kibibytes is None else kibibytes * 1024


def read_shared_memory(proc_root: Path, pid: int | str) -> SharedMemory:
    """/dev/shm as process `pid` sees it: a container has its own, by Docker's default of 64 MB.

    The way through /proc/PID/root needs the right to trace that process; without it nothing is known. A process may
    have mounted a file system there that does not answer.
    """
    folder = f"{proc_root}/{pid}/root/dev/shm"
    try:
        mount = os.statvfs(folder) if isinstance(pid, str) else in_time(pid, partial(os.statvfs, folder))
    except OSError:
        return SharedMemory()
    if mount is None:
        return SharedMemory()
    return SharedMemory(mount.f_blocks * mount.f_frsize, (mount.f_blocks - mount.f_bfree) * mount.f_frsize)


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of the last 10 s in which some task waited; None where the kernel keeps no account."""

    cpu_percent: float | None = None
    io_percent: float | None = None
    memory_percent: float | None = None


def parse_some_avg10(raw: bytes | None) -> float | None:
    """`avg10` of the "some" line."""
    if raw is None:
        return None
    for line in raw.split(b"\n"):
        words = line.split()
        if words[:1] == [b"some"]:
            for word in words[1:]:
                key, _, value = word.partition(b"=")
                if key == b"avg10":
                    try:
                        return float(value)
                    except ValueError:
                        return None
    return None


def read_pressure(proc_root: Path) -> Pressure:
    """The three pressures of the whole machine; kernels before 4.20 or booted with psi=0 have none."""
    return Pressure(
        *(parse_some_avg10(read_once(f"{proc_root}/pressure/{name}", 512)) for name in ("cpu", "io", "memory"))
    )


_SECTOR_BYTES = 512  # /proc/diskstats counts in these whatever the device's own sector is
_STACKED_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")
_PARTITION_TAIL = re.compile(r"p?\d+")
_VIRTUAL_INTERFACE = re.compile(
    r"(lo|veth|docker|br-|virbr|cni|flannel|cali|cilium|lxc|tun|tap|tailscale|wg|dummy|ifb|bond|team|kube-)"
)


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Growing counters of one whole disk."""

    read_bytes: int
    write_bytes: int
    queue_milliseconds: int  # sum over requests of their time in flight


def parse_disks(raw: bytes) -> dict[str, DiskCounters]:
    """Whole physical disks only: partitions and stacked devices (dm, md, loop) would count bytes twice."""
    disks: dict[str, DiskCounters] = {}
    for line in raw.decode("utf-8", "replace").split("\n"):
        words = line.split()
        if len(words) < 14 or _STACKED_DISK.match(words[2]):
            continue
        try:
            disks[words[2]] = DiskCounters(int(words[5]) * _SECTOR_BYTES, int(words[9]) * _SECTOR_BYTES, int(words[13]))
        except ValueError:
            continue
    return {name: disk for name, disk in disks.items() if not _is_partition(name, disks)}


def _is_partition(name: str, disks: dict[str, DiskCounters]) -> bool:
    """sda1 of sda, nvme0n1p2 of nvme0n1; a lone xvda1, as some clouds give, is a disk of its own."""
    return any(
        name != disk and name.startswith(disk) and _PARTITION_TAIL.fullmatch(name[len(disk) :]) for disk in disks
    )


def parse_network(raw: bytes) -> dict[str, tuple[int, int]]:
    """(received, sent) bytes by interface; virtual ones carry what a physical one or memory carries anyway."""
    interfaces: dict[str, tuple[int, int]] = {}
    for line in raw.decode("utf-8", "replace").split("\n"):
        name, separator, counters = line.partition(":")
        name, words = name.strip(), counters.split()
        if not separator or len(words) < 9 or _VIRTUAL_INTERFACE.match(name) or "." in name:
            continue
        try:
            interfaces[name] = (int(words[0]), int(words[8]))
        except ValueError:
            continue
    return interfaces


class _Counters(NamedTuple):
    """Growing counters of the machine at one read."""

    read_ns: int
    ticks: dict[str, CoreTicks]
    swapped_in_pages: int | None
    major_faults: int | None
    disks: dict[str, DiskCounters]
    interfaces: dict[str, tuple[int, int]]


class MachineReader:
    """Reads the machine from /proc; shares and rates are those since the previous read, and unknown at the first."""

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._previous: _Counters | None = None

    def read(self, now_ns: int) -> HostSample:
        """The machine now. Of disks and interfaces those count that were there both times."""
        root = self._proc_root
        now = self._counters(now_ns)
        before, self._previous = self._previous or now, now
        seconds = (now_ns - before.read_ns) / 1e9
        whole = shares(now.ticks.get("cpu", ()), before.ticks.get("cpu", ()))
        disks = [(disk, before.disks[name]) for name, disk in now.disks.items() if name in before.disks]
        nets = [(net, before.interfaces[name]) for name, net in now.interfaces.items() if name in before.interfaces]
        queues = (rate(disk.queue_milliseconds, then.queue_milliseconds, seconds * 1e3) for disk, then in disks)
        swapped_in_pages = rate(now.swapped_in_pages, before.swapped_in_pages, seconds)
        meminfo = read_once(f"{root}/meminfo")
        pressure, shm = read_pressure(root), read_shared_memory(root, "self")
        return HostSample(
            time_ns=now_ns,
            cpu_percent=whole[0] if whole else None,
            cpu_percent_by_core=_by_core(now.ticks, before.ticks) if whole else (),
            cpu_iowait_percent=whole[1] if whole else None,
            load_1m=_load(root),
            memory_total_bytes=meminfo_bytes(meminfo, b"MemTotal"),
            memory_available_bytes=meminfo_bytes(meminfo, b"MemAvailable"),
            swap_in_bytes_per_second=None if swapped_in_pages is None else swapped_in_pages * self._page_bytes,
            major_faults_per_second=rate(now.major_faults, before.major_faults, seconds),
            pressure_cpu_percent=pressure.cpu_percent,
            pressure_io_percent=pressure.io_percent,
            pressure_memory_percent=pressure.memory_percent,
            disk_read_bytes_per_second=_summed([(disk.read_bytes, then.read_bytes) for disk, then in disks], seconds),
            disk_write_bytes_per_second=_summed(
                [(disk.write_bytes, then.write_bytes) for disk, then in disks], seconds
            ),
            disk_queue_length=max((queue for queue in queues if queue is not None), default=None),
            network_receive_bytes_per_second=_summed([(net[0], then[0]) for net, then in nets], seconds),
            network_send_bytes_per_second=_summed([(net[1], then[1]) for net, then in nets], seconds),
            shm_total_bytes=shm.total_bytes,
            shm_used_bytes=shm.used_bytes,
        )

    def _counters(self, now_ns: int) -> _Counters:
        root = self._proc_root
        vmstat = read_all(f"{root}/vmstat") or b""
        return _Counters(
            now_ns,
            parse_cpu_ticks(read_all(f"{root}/stat") or b""),
            keyed_int(vmstat, b"pswpin "),
            keyed_int(vmstat, b"pgmajfault "),
            parse_disks(read_all(f"{root}/diskstats") or b""),
            parse_network(read_all(f"{root}/net/dev") or b""),
        )


def _load(proc_root: Path) -> float | None:
    raw = read_once(f"{proc_root}/loadavg", 64)
    try:
        return float(raw.split(None, 1)[0]) if raw else None
    except (ValueError, IndexError):
        return None


def _summed(pairs: list[tuple[int, int]], seconds: float) -> float | None:
    rates = [value for now, before in pairs if (value := rate(now, before, seconds)) is not None]
    return sum(rates) if rates else None


_NODE = re.compile(r"node(\d+)")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_MOST_CORES = 1 << 16


class NumaNodes:
    """The node of each core, read once: cores that come later belong to none that is known."""

    def __init__(self, sys_root: Path) -> None:
        self._sys_root = sys_root
        self._by_core: dict[int, int] = {}
        for name in listed(f"{sys_root}/devices/system/node"):
            node = _NODE.fullmatch(name)
            if node is not None:
                cores = core_list(read_once(f"{sys_root}/devices/system/node/{name}/cpulist", 4096))
                self._by_core.update(dict.fromkeys(cores, int(node[1])))
        self.count = len(set(self._by_core.values())) or None

    def node_of(self, core: int | None) -> int | None:
        """The node of a core."""
        return None if core is None else self._by_core.get(core)

    def cores_of(self, node: int) -> str | None:
        """The cores of a node as the kernel lists them, "0-31,64-95"; None where there is no such node."""
        raw = read_once(f"{self._sys_root}/devices/system/node/node{node}/cpulist", 4096)
        return shown(raw.strip()) or None if raw is not None else None

    def by_node(self, used: Iterable[tuple[int | None, float | None]]) -> tuple[float, ...]:
        """(core it ran on, cores it used) of several, added up by node.

        Empty where there is one node only, or a core or its use is not known.
        """
        if self.count is None or self.count < 2:
            return ()
        totals = [0.0] * (max(self._by_core.values()) + 1)
        for core, cores in used:
            node = self.node_of(core)
            if node is None or cores is None:
                return ()
            totals[node] += cores
        return tuple(totals)

    def of_gpus(self) -> tuple[tuple[str, int], ...]:
        """The node of each NVIDIA GPU by its PCI address; a GPU without one (-1) is left out."""
        folder = f"{self._sys_root}/bus/pci/drivers/nvidia"
        found = ((name, read_int(f"{folder}/{name}/numa_node")) for name in sorted(listed(folder)) if _is_pci(name))
        return tuple((name.lower(), node) for name, node in found if node is not None and node >= 0)


def core_list(raw: bytes | None) -> list[int]:
    """0-3,8 -> [0, 1, 2, 3, 8]; what is no list of cores is none."""
    cores: list[int] = []
    for part in (raw or b"").decode("ascii", "replace").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            cores.extend(range(int(first), min(int(last or first), _MOST_CORES) + 1))
    return cores


def _is_pci(name: str) -> bool:
    return _PCI_ADDRESS.fullmatch(name) is not None


_CONTAINER_GROUP = re.compile(rb"/(docker|kubepods|containerd|crio|libpod|lxc|machine\.slice/libpod)\b|docker-")
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")


def read_machine_facts(proc_root: Path, cgroups: Cgroups, now_ns: int, nodes: NumaNodes | None = None) -> MachineFacts:
    """The facts of this machine as `proc_root` shows it."""
    kernel = _line(proc_root, "sys/kernel/osrelease") or platform.release()
    return MachineFacts(
        time_ns=now_ns,
        hostname=_line(proc_root, "sys/kernel/hostname") or platform.node(),
        kernel=kernel,
        cpu_count=_core_count(proc_root),
        cpu_model=_cpu_model(proc_root),
        memory_total_bytes=meminfo_bytes(read_once(f"{proc_root}/meminfo"), b"MemTotal"),
        cpu_quota_cores=cgroups.cpu_limit("self").quota_cores,
        container=in_container(proc_root),
        wsl="microsoft" in kernel.lower(),
        numa_nodes=nodes.count if nodes is not None else None,
        gpu_numa_nodes=nodes.of_gpus() if nodes is not None else (),
    )


def in_container(proc_root: Path) -> bool:
    """Whether the container engines' marks are there: a file in the root folder, or our cgroup's path."""
    if any(os.access(f"{proc_root}/self/root{mark}", os.F_OK) for mark in _CONTAINER_MARKS):
        return True
    return _CONTAINER_GROUP.search(read_all(f"{proc_root}/self/cgroup") or b"") is not None


def _core_count(proc_root: Path) -> int:
    return len(parse_cpu_ticks(read_all(f"{proc_root}/stat") or b"").keys() - {"cpu"}) or os.cpu_count() or 1


def _cpu_model(proc_root: Path) -> str | None:
    """x86 names the model in the first kilobyte; ARM gives none there."""
    for line in (read_once(f"{proc_root}/cpuinfo", 1024) or b"").split(b"\n"):
        key, _, value = line.partition(b":")
        if key.strip() == b"model name":
            return " ".join(shown(value).split()) or None
    return None


def _line(proc_root: Path, name: str) -> str | None:
    raw = read_once(f"{proc_root}/{name}", 256)
    return shown(raw.strip()) or None if raw else None


@dataclass(frozen=True, slots=True)
class _PortableCounters:
    read_ns: int
    disk_read: int | None
    disk_write: int | None
    received: int | None
    sent: int | None


class PortableReader:
    """Reads what psutil offers everywhere."""

    def __init__(self) -> None:
        self._previous: _PortableCounters | None = None

    def facts(self, now_ns: int) -> MachineFacts:
        """Name, system and size of this machine."""
        import psutil  # 18 ms that Linux need not pay

        return MachineFacts(
            time_ns=now_ns,
            hostname=platform.node(),
            kernel=f"{platform.system()} {platform.release()}",
            cpu_count=psutil.cpu_count() or 1,
            cpu_model=platform.processor() or None,
            memory_total_bytes=psutil.virtual_memory().total,
        )

    def read(self, now_ns: int) -> HostSample:
        """The machine now, with rates since the previous call."""
        import psutil

        disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
        now = _PortableCounters(
            now_ns,
            disk.read_bytes if disk else None,
            disk.write_bytes if disk else None,
            network.bytes_recv if network else None,
            network.bytes_sent if network else None,
        )
        by_core = tuple(psutil.cpu_percent(percpu=True))
        memory = psutil.virtual_memory()
        previous, self._previous = self._previous, now
        first = previous is None or not by_core  # psutil's first figures cover no time
        seconds = (now_ns - previous.read_ns) / 1e9 if previous else 0.0
        before = previous or now
        return HostSample(
            time_ns=now_ns,
            cpu_percent=None if first else sum(by_core) / len(by_core),
            cpu_percent_by_core=() if first else by_core,
            load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            memory_total_bytes=memory.total,
            memory_available_bytes=memory.available,
            disk_read_bytes_per_second=rate(now.disk_read, before.disk_read, seconds),
            disk_write_bytes_per_second=rate(now.disk_write, before.disk_write, seconds),
            network_receive_bytes_per_second=rate(now.received, before.received, seconds),
            network_send_bytes_per_second=rate(now.sent, before.sent, seconds),
        )
