"""What the server keeps of one peer, and how much a peer may take."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

_SO_PEERPIDFD: Final = 77  # Linux 6.5; the peer's process without a race against pid reuse


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer and all peers together may take.

    A hook sends at most 20 packets of 64 KiB a second. A packet is charged its size, a fixed part, so that a flood of
    tiny ones ends at some 1 000 a second, and the CPU time that it took, so that one peer's expensive packets leave
    the others their turn: 8 % of a core are 30 000 records a second, and what follows in the timeline costs the same
    twice more.
    """

    connections: int = 512
    connections_per_process: int = 4
    strangers: int = 64
    bytes_per_second: int = 2 * 1024 * 1024
    burst_bytes: int = 4 * 1024 * 1024
    bytes_per_packet: int = 2048
    cpu_share: float = 0.08

    def charge(self, size: int, cpu_ns: int) -> float:
        """Of a packet's bytes and of what it took to decode, in bytes."""
        return size + self.bytes_per_packet + cpu_ns * self.bytes_per_second / (self.cpu_share * 1e9)


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted peer, as the kernel names it."""

    socket: socket.socket
    pid: int
    user: int
    tokens: float
    filled_ns: int
    introduced: bool = False
    said_bye: bool = False
    pidfd: int = -1

    def watch_process(self) -> bool:
        """Opens a descriptor of the peer's process, where the kernel has one to give."""
        try:
            self.pidfd = self.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            try:
                self.pidfd = os.pidfd_open(self.pid)
            except OSError:
                self.pidfd = -1
        return self.pidfd >= 0
