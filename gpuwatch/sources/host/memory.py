"""Memory of the machine, paging, and the shared-memory mount that DataLoader workers hand batches through."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuwatch.sources.host.procfs import in_time, keyed_int, rate, read_all, read_once


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Memory now, and paging rates since the previous read."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_in_bytes_per_second: float | None = None
    major_faults_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Size and use of one /dev/shm."""

    total_bytes: int | None = None
    used_bytes: int | None = None


def meminfo_bytes(raw: bytes | None, key: bytes) -> int | None:
    """One line of /proc/meminfo, which counts in KiB."""
    kibibytes = keyed_int(raw, key + b":") if raw else None
    return None if kibibytes is None else kibibytes * 1024


class MemoryReader:
    """Reads /proc/meminfo and the paging counters of /proc/vmstat."""

    def __init__(self, proc_root: Path) -> None:
        self._meminfo = f"{proc_root}/meminfo"
        self._vmstat = f"{proc_root}/vmstat"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._previous: tuple[int, int | None, int | None] | None = None

    def read(self, now_ns: int) -> MemoryState:
        """Memory now, and paging since the previous call."""
        meminfo = read_once(self._meminfo)
        vmstat = read_all(self._vmstat) or b""
        swapped_in_pages = keyed_int(vmstat, b"pswpin ")
        major_faults = keyed_int(vmstat, b"pgmajfault ")
        previous, self._previous = self._previous, (now_ns, swapped_in_pages, major_faults)
        swap_in_pages_rate = fault_rate = None
        if previous is not None:
            seconds = (now_ns - previous[0]) / 1e9
            swap_in_pages_rate = rate(swapped_in_pages, previous[1], seconds)
            fault_rate = rate(major_faults, previous[2], seconds)
        return MemoryState(
            total_bytes=meminfo_bytes(meminfo, b"MemTotal"),
            available_bytes=meminfo_bytes(meminfo, b"MemAvailable"),
            swap_in_bytes_per_second=(None if swap_in_pages_rate is None else swap_in_pages_rate * self._page_bytes),
            major_faults_per_second=fault_rate,
        )


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
