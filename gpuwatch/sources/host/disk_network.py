"""What goes through the machine's disks and network interfaces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.sources.host.procfs import rate, read_all

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


@dataclass(frozen=True, slots=True)
class DiskNetworkRates:
    """Rates since the previous read. `queue_length` is the mean one of the most loaded disk (aqu-sz of iostat)."""

    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    disk_queue_length: float | None = None
    network_receive_bytes_per_second: float | None = None
    network_send_bytes_per_second: float | None = None


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


class DiskNetworkReader:
    """Turns the counters of /proc/diskstats and /proc/net/dev into rates."""

    def __init__(self, proc_root: Path) -> None:
        self._diskstats = f"{proc_root}/diskstats"
        self._interfaces = f"{proc_root}/net/dev"
        self._previous: tuple[int, dict[str, DiskCounters], dict[str, tuple[int, int]]] | None = None

    def read(self, now_ns: int) -> DiskNetworkRates:
        """Rates since the previous call, over the devices that were there both times."""
        disks = parse_disks(read_all(self._diskstats) or b"")
        interfaces = parse_network(read_all(self._interfaces) or b"")
        previous, self._previous = self._previous, (now_ns, disks, interfaces)
        if previous is None:
            return DiskNetworkRates()
        seconds = (now_ns - previous[0]) / 1e9
        if seconds <= 0.0:
            return DiskNetworkRates()
        disk_pairs = [(disk, previous[1][name]) for name, disk in disks.items() if name in previous[1]]
        net_pairs = [(net, previous[2][name]) for name, net in interfaces.items() if name in previous[2]]
        queues = [
            length
            for now, before in disk_pairs
            if (length := rate(now.queue_milliseconds, before.queue_milliseconds, seconds * 1e3)) is not None
        ]
        return DiskNetworkRates(
            _summed([(now.read_bytes, before.read_bytes) for now, before in disk_pairs], seconds),
            _summed([(now.write_bytes, before.write_bytes) for now, before in disk_pairs], seconds),
            max(queues, default=None),
            _summed([(now[0], before[0]) for now, before in net_pairs], seconds),
            _summed([(now[1], before[1]) for now, before in net_pairs], seconds),
        )


def _summed(pairs: list[tuple[int, int]], seconds: float) -> float | None:
    rates = [value for now, before in pairs if (value := rate(now, before, seconds)) is not None]
    return sum(rates) if rates else None
