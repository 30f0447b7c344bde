"""Listening sockets, their connections and the processes behind them, on one epoll.

A peer may be hostile in every way: it is bounded in number, rate and size, and what it sends is handed on as bytes.
Nothing is ever sent, and nothing here waits.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from gpuwatch.hook import wire

_SO_PEERPIDFD: Final = 77  # Linux 6.5; the peer's process without a race against pid reuse
_PEER_CREDENTIALS: Final = struct.Struct("3i")
_ACCEPTS_PER_POLL: Final = 64
_PACKETS_PER_POLL: Final = 32
_POLL_CPU_NS: Final = 50_000_000
"""Of all peers together; the monitor polls ten times a second, and has a screen to feed."""

INTRODUCTION_NS: Final = 10_000_000_000
LINGER_NS: Final = 2_000_000_000
_LISTENER_PAUSE_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer and all peers together may take.

    A hook sends at most 20 packets of 64 KiB a second. A packet is charged its size, a fixed part, so that a flood of
    tiny ones ends at some 1,000 a second, and the CPU time that it took, so that one peer's expensive packets leave
    the others their turn: 8% of a core are 30,000 records a second, and what follows in the timeline costs the same
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


class Handler(Protocol):
    """What becomes of a server's events."""

    def packet(self, connection: Connection, data: memoryview) -> None:
        """Takes one packet; `data` is only valid during the call. `server.drop` ends the peer."""

    def ended(self, connection: Connection, dead: bool) -> None:
        """A connection that was introduced is over; `dead`: and its process as well."""

    def refused(self, reason: str) -> None:
        """A peer was turned away."""


class Server:
    """All sockets of the link. The caller polls; nothing happens in between."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._epoll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, frozenset[int]]] = {}
        self._connections: dict[int, Connection] = {}
        self._processes: dict[int, Connection] = {}  # by pidfd
        self._per_process: Counter[int] = Counter()
        self._strangers: dict[Connection, int] = {}  # until when they must have said who they are
        self._throttled: dict[Connection, int] = {}
        self._paused: dict[int, int] = {}  # listeners without a free descriptor
        self._lingering: dict[Connection, int] = {}  # the link ended, the process has not yet
        self._buffer = bytearray(wire.PACKET_LIMIT)

    def fileno(self) -> int:
        """The epoll's descriptor."""
        return self._epoll.fileno()

    def listen(self, listener: socket.socket, users: frozenset[int]) -> None:
        """Accepts peers of these users on a listening socket."""
        self._listeners[listener.fileno()] = (listener, users)
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def close_listener(self, descriptor: int) -> None:
        """Stops listening on the socket with this number; its connections stay."""
        listener, _ = self._listeners.pop(descriptor)
        if self._paused.pop(descriptor, None) is None:
            self._epoll.unregister(descriptor)
        listener.close()

    def poll(self, now_ns: int) -> None:
        """Handles all that is there, without waiting."""
        self._expire(now_ns)
        begun_ns = time.thread_time_ns()
        for descriptor, _ in self._epoll.poll(0, maxevents=256):
            if time.thread_time_ns() - begun_ns > _POLL_CPU_NS:
                return  # the kernel gives those that were passed over first the next time
            if descriptor in self._listeners:
                self._accept(descriptor, now_ns)
            elif descriptor in self._connections:
                self._receive(self._connections[descriptor], now_ns)
            elif descriptor in self._processes:
                self._process_died(self._processes[descriptor], now_ns)

    def due_ns(self) -> int | None:
        """When `poll` has something to do although nothing arrives."""
        waiting = (self._strangers, self._throttled, self._paused, self._lingering)
        return min((min(times.values()) for times in waiting if times), default=None)

    def introduce(self, connection: Connection, *, watch: bool) -> None:
        """Notes that a peer has said who it is; with `watch` its death is noticed even if its socket lives on."""
        connection.introduced = True
        self._strangers.pop(connection, None)
        if watch and connection.pidfd < 0 and connection.watch_process():
            self._processes[connection.pidfd] = connection
            self._epoll.register(connection.pidfd, select.EPOLLIN)

    def drop(self, connection: Connection) -> None:
        """Ends a connection without a word to anybody."""
        self._disconnect(connection)
        self._forget_process(connection)

    def close(self) -> None:
        """Closes everything; idempotent."""
        for connection in [*self._connections.values(), *self._lingering]:
            self.drop(connection)
        for descriptor in list(self._listeners):
            self.close_listener(descriptor)
        self._epoll.close()

    # ---- arrivals

    def _accept(self, descriptor: int, now_ns: int) -> None:
        listener, users = self._listeners[descriptor]
        for _ in range(_ACCEPTS_PER_POLL):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._epoll.unregister(descriptor)
                    self._paused[descriptor] = now_ns + _LISTENER_PAUSE_NS
                    self._handler.refused(f"no room for another trainer: {error.strerror}")
                    return
                continue  # that peer has gone again
            accepted.setblocking(False)
            self._admit(accepted, users, now_ns)

    def _admit(self, accepted: socket.socket, users: frozenset[int], now_ns: int) -> None:
        try:
            credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        except OSError:
            accepted.close()
            return
        pid, user, _ = _PEER_CREDENTIALS.unpack(credentials)
        reason = None
        if pid <= 0:
            reason = "a process that is not visible here (another container) tried to connect as a trainer"
        elif user not in users:
            reason = f"a process of user {user} tried to connect as a trainer"
        elif self._per_process[pid] >= self._limits.connections_per_process:
            reason = f"process {pid} opened more than {self._limits.connections_per_process} connections"
        elif len(self._connections) >= self._limits.connections:
            reason = f"more than {self._limits.connections} connections"
        if reason is not None:
            accepted.close()
            self._handler.refused(reason)
            return
        if len(self._strangers) >= self._limits.strangers:
            self.drop(next(iter(self._strangers)))
            self._handler.refused("too many connections that send nothing")
        connection = Connection(accepted, pid, user, self._limits.burst_bytes, now_ns)
        self._strangers[connection] = now_ns + INTRODUCTION_NS
        self._connections[accepted.fileno()] = connection
        self._per_process[pid] += 1
        self._epoll.register(accepted.fileno(), select.EPOLLIN)

    def _receive(self, connection: Connection, now_ns: int, budget: int = _PACKETS_PER_POLL) -> None:
        limits = self._limits
        earned = (now_ns - connection.filled_ns) * limits.bytes_per_second / 1e9
        connection.tokens = min(limits.burst_bytes, connection.tokens + earned)
        connection.filled_ns = now_ns
        for _ in range(budget):
            if connection.tokens < 0:
                self._throttle(connection, now_ns)
                return
            try:
                # No room for ancillary data: descriptors a peer sends along are closed by the kernel.
                size, _, flags, _ = connection.socket.recvmsg_into([self._buffer], 0)
            except BlockingIOError:
                return
            except OSError:
                size, flags = 0, 0
            if not size:
                self._link_ended(connection, now_ns)
                return
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self._handler.refused(f"process {connection.pid} sent a packet that no trainer sends")
                self._over(connection, dead=False)
                return
            begun_ns = time.thread_time_ns()
            self._handler.packet(connection, memoryview(self._buffer)[:size])
            connection.tokens -= limits.charge(size, time.thread_time_ns() - begun_ns)
            if connection.socket.fileno() < 0:
                return  # the handler dropped it

    def _throttle(self, connection: Connection, now_ns: int) -> None:
        # An unread peer's sends fail and its ring drops the oldest: it counts and reports that loss itself.
        if connection not in self._throttled:
            self._epoll.unregister(connection.socket.fileno())
        refill = -connection.tokens + self._limits.bytes_per_packet
        self._throttled[connection] = now_ns + int(refill / self._limits.bytes_per_second * 1e9)

    # ---- ends

    def _link_ended(self, connection: Connection, now_ns: int) -> None:
        """The peer closed; whether it died shows a moment later, when the kernel has taken it apart."""
        if connection.introduced and connection.pidfd >= 0 and not connection.said_bye:
            self._disconnect(connection)
            self._lingering[connection] = now_ns + LINGER_NS
            return
        self._over(connection, dead=False)

    def _process_died(self, connection: Connection, now_ns: int) -> None:
        if not _is_readable(connection.pidfd):
            return  # the event was for an earlier holder of this number
        if connection.socket.fileno() >= 0:
            # A child of its own may hold the socket open, so what is there is read and the end not waited for.
            connection.tokens = self._limits.burst_bytes
            self._receive(connection, now_ns, budget=4 * _PACKETS_PER_POLL)
        self._over(connection, dead=True)

    def _over(self, connection: Connection, *, dead: bool) -> None:
        if connection.pidfd < 0 and connection.socket.fileno() < 0 and connection not in self._lingering:
            return
        self.drop(connection)
        if connection.introduced:
            self._handler.ended(connection, dead)

    def _expire(self, now_ns: int) -> None:
        for connection in [c for c, until in self._throttled.items() if until <= now_ns]:
            del self._throttled[connection]
            self._epoll.register(connection.socket.fileno(), select.EPOLLIN)
        for connection in [c for c, until in self._lingering.items() if until <= now_ns]:
            self._over(connection, dead=False)
        for descriptor in [d for d, until in self._paused.items() if until <= now_ns]:
            del self._paused[descriptor]
            self._epoll.register(descriptor, select.EPOLLIN)
        for connection in [c for c, until in self._strangers.items() if until <= now_ns]:
            self.drop(connection)
            self._handler.refused(f"process {connection.pid} connected and sent nothing")

    def _disconnect(self, connection: Connection) -> None:
        descriptor = connection.socket.fileno()
        if descriptor < 0:
            return
        if self._throttled.pop(connection, None) is None:
            self._epoll.unregister(descriptor)
        del self._connections[descriptor]
        self._strangers.pop(connection, None)
        self._per_process[connection.pid] -= 1
        if not self._per_process[connection.pid]:
            del self._per_process[connection.pid]
        connection.socket.close()

    def _forget_process(self, connection: Connection) -> None:
        self._lingering.pop(connection, None)
        if connection.pidfd >= 0:
            del self._processes[connection.pidfd]
            self._epoll.unregister(connection.pidfd)
            os.close(connection.pidfd)
            connection.pidfd = -1


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
