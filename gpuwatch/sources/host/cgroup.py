"""CPU quota, throttling and memory limit of a process, from cgroup v1, v2 or both side by side.

Limits nest: a container without a limit inside a pod that has one is held by the pod's, so every ancestor
counts and the tightest one decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuwatch.procfs import keyed_int, read_all, read_int, read_once

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
