"""The machine as psutil gives it, for systems without Linux's /proc: no pressure, cgroups or workers there."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import psutil

from gpuwatch.procfs import rate
from gpuwatch.samples import HostSample, MachineFacts


@dataclass(frozen=True, slots=True)
class _Counters:
    read_ns: int
    disk_read: int | None
    disk_write: int | None
    received: int | None
    sent: int | None


class PortableReader:
    """Reads what psutil offers everywhere."""

    def __init__(self) -> None:
        self._previous: _Counters | None = None

    def facts(self, now_ns: int) -> MachineFacts:
        """Name, system and size of this machine."""
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
        disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
        now = _Counters(
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
