"""One connection to one monitor: it only sends, and never waits."""

from __future__ import annotations

import _socket
import os
import posix
import struct
from itertools import islice
from select import POLLOUT, poll
from typing import Any, Deque, Dict, Mapping, Optional

from . import wire
from .imports import from_a_signal_handler

_SEND_FLAGS = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL  # a user may have given SIGPIPE its deadly default back
_PATH_LIMIT = 107
_LONG_FACTS = ("command", "loaders", "phases", "save_places", "unhooked")


class Link:
    """A connected monitor. `alive` turns false once it is gone; it is then forgotten."""

    def __init__(self, connection: _socket.socket, monitor_pid: int, recorded: int, history_length: int) -> None:
        self._connection = connection
        self._inode = posix.fstat(connection.fileno()).st_ino
        self._sent = recorded - history_length
        self._blocked = False
        self._facts: Dict[str, Any] = {}
        self.dropped = 0
        self.alive = True
        self.monitor_pid = monitor_pid

    def greet(self, kind: int, content: Mapping[str, Any]) -> None:
        """Sends the first packet: HELLO or WORKER."""
        sent = dict(content)
        packet = wire.json_packet(kind, sent, 0)
        if not packet:  # the long ones follow as FACTS
            sent = {key: value for key, value in content.items() if key not in _LONG_FACTS}
            packet = wire.json_packet(kind, sent, 0)
        if self._send(packet):
            self._facts = sent
        else:
            self.close()

    def is_writable(self) -> bool:
        """Whether a packet would find room, as far as is known.

        Asked of the kernel only after a refusal. It says yes once three quarters of the buffer are free, so a stopped
        monitor costs one system call per flush, no facts and no packets.
        """
        if self._blocked and self.alive:
            poller = poll()
            poller.register(self._connection, POLLOUT)
            self._blocked = not poller.poll(0)
        return self.alive and not self._blocked

    def send_facts(self, facts: Mapping[str, Any]) -> bool:
        """Sends the facts that differ from what this monitor has; whether it now has them."""
        missing = object()
        changed = {key: value for key, value in facts.items() if self._facts.get(key, missing) != value}
        if not changed:
            return True
        packet = wire.json_packet(wire.FACTS, changed, self.dropped)
        if packet:
            return self._tell(changed, packet)
        parts = [{key: value} for key, value in changed.items()]  # together they do not fit into one packet
        return all(self._tell(part, wire.json_packet(wire.FACTS, part, self.dropped)) for part in parts)

    def _tell(self, facts: Mapping[str, Any], packet: bytes) -> bool:
        """Sends facts; those that no packet can hold are let go."""
        if packet and not self._send(packet):
            return False
        self._facts.update(facts)
        return True

    def send_records(self, history: Deque[bytes], recorded: int) -> None:
        """Sends what this monitor has not had yet; what the ring has lost meanwhile is counted."""
        fresh = recorded - self._sent
        if fresh <= 0 or self._blocked:
            return
        lost = max(0, fresh - len(history))
        count = fresh - lost
        records = list(islice(reversed(history), count))  # from the new end: the older ones have left the caches
        records.reverse()
        if self._send(wire.records_packet(records, count, self.dropped + lost)):
            self.dropped += lost
            self._sent = recorded

    def send_bye(self, reason: str) -> None:
        """Says that the end of the connection is not a death."""
        self._send(wire.json_packet(wire.BYE, {"reason": reason}, self.dropped))

    def close(self) -> None:
        """Closes the connection; idempotent. After a fork this closes the child's copy only."""
        if self.alive:
            self.alive = False
            if self._is_mine():
                self._connection.close()
            else:
                self._connection.detach()

    def _is_mine(self) -> bool:
        # A daemonising program closes all descriptors; the number may by now be a file or socket of the user's.
        try:
            return posix.fstat(self._connection.fileno()).st_ino == self._inode
        except OSError as error:
            if from_a_signal_handler(error):
                raise
            return False

    def _send(self, packet: bytes) -> bool:
        if not packet or not self.alive:
            return False
        if not self._is_mine():
            self.close()
            return False
        try:
            self._connection.send(packet, _SEND_FLAGS)
        except BlockingIOError:
            self._blocked = True
            return False
        except OSError as error:
            if from_a_signal_handler(error):
                raise
            self.close()
            return False
        return True


def connect(folder: str, name: str, user: int, recorded: int, history_length: int) -> Optional[Link]:
    """A link to the monitor that listens under that name, or None: not there, busy, or not to be trusted."""
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    except OSError:
        return None  # no descriptors left: the run needs them more than we do
    try:
        connection.setblocking(False)
        _connect(connection, folder, name)
        pid, peer_user, _ = struct.unpack("3i", connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))
        if peer_user in (user, 0):
            return Link(connection, pid, recorded, history_length)
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        # Else a dead monitor's socket, or a full backlog: tried again later.
    connection.close()
    return None


def _connect(connection: _socket.socket, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        connection.connect(path)
        return
    directory = posix.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        posix.close(directory)
