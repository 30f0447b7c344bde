"""A monitor's ear for tests of the hook: a SEQPACKET listener that keeps whatever trainers send."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HEADER = struct.Struct("<2sBBIQ")
RECORD = struct.Struct("<BBHIQQqq")
KINDS = (
    *("NEXT", "ITER", "BACKWARD", "OPTIMIZER", "SAVE", "GC", "GAP", "FETCH", "USER_STEP", "USER_PHASE"),
    *("COPY", "WAIT_CPU", "MEMORY", "RETRIES", "COMPILE", "BEGUN"),
)


class Record(NamedTuple):
    """One decoded record."""

    kind: str
    flags: int
    id: int
    thread: int
    start_ns: int
    end_ns: int
    a: int
    b: int

    def within(self, outer: Record) -> bool:
        """Whether it began and ended while the other was under way."""
        return outer.start_ns <= self.start_ns <= self.end_ns <= outer.end_ns


@dataclass
class Peer:
    """One connection: a trainer or a worker."""

    connection: socket.socket = field(repr=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    worker: dict[str, Any] | None = None
    records: list[Record] = field(default_factory=list, repr=False)
    packets: int = 0
    dropped: int = 0
    bye: bool = False
    closed: bool = False

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.kind == kind]

    def take(self, packet: bytes) -> None:
        magic, version, kind, count, dropped = HEADER.unpack_from(packet)
        assert (magic, version) == (b"GW", 1)
        body = packet[HEADER.size :]
        self.packets += 1
        self.dropped = dropped
        if kind == 2:
            assert len(body) == count * RECORD.size
            self.records += [Record(KINDS[f[0] - 1], *f[1:]) for f in RECORD.iter_unpack(body)]
            return
        assert len(body) == count
        content = json.loads(body)
        if kind in (1, 3):
            assert self.facts or kind == 1, "HELLO is the first packet"
            self.facts.update(content)
        elif kind == 4:
            self.worker = content
        elif kind == 5:
            self.bye = True


class Listener:
    """Listens in a rendezvous folder until closed."""

    def __init__(self, folder: Path, name: str = "monitor-1.sock") -> None:
        self.path = folder / name
        self.peers: list[Peer] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = os.open(folder, os.O_RDONLY)
        try:
            self._socket.bind(f"/proc/self/fd/{here}/{name}")
        finally:
            os.close(here)
        self._socket.listen(64)

    @property
    def trainers(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.worker is None and peer.facts]

    @property
    def workers(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.worker is not None]

    def poll(self, timeout: float) -> None:
        """Takes what is there, or what comes first within the timeout."""
        open_peers = {peer.connection: peer for peer in self.peers if not peer.closed}
        ready, _, _ = select.select([self._socket, *open_peers], [], [], timeout)
        for ready_socket in ready:
            if ready_socket is self._socket:
                connection, _ = self._socket.accept()
                self.peers.append(Peer(connection))
                continue
            peer = open_peers[ready_socket]
            try:
                packet = ready_socket.recv(1 << 16)
            except ConnectionResetError:
                packet = b""
            if packet:
                peer.take(packet)
            else:
                peer.closed = True
                ready_socket.close()

    def until(self, condition: Callable[[Listener], bool], seconds: float = 60.0) -> Listener:
        """Takes packets until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"not within {seconds} s; heard {self.peers}"
            self.poll(min(remaining, 0.2))
        return self

    def until_all_closed(self, seconds: float = 60.0) -> Listener:
        """Takes packets until every peer that came has gone."""
        return self.until(lambda it: bool(it.peers) and all(peer.closed for peer in it.peers), seconds)

    def close(self) -> None:
        self._socket.close()
        for peer in self.peers:
            peer.connection.close()
        with suppress(OSError):  # some tests take the folder away
            self.path.unlink()


@contextmanager
def listening(folder: Path, name: str = "monitor-1.sock") -> Iterator[Listener]:
    """A listener for the length of a block."""
    listener = Listener(folder, name)
    try:
        yield listener
    finally:
        listener.close()
