"""What this process is to monitors (a trainer, a DataLoader worker, or nobody), and its connections to them."""

from __future__ import annotations

import _socket
import _thread
import os
import posix
import struct
import sys
from collections import deque
from itertools import islice
from select import POLLOUT, poll
from time import monotonic_ns
from types import CodeType
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

from . import cuda, facts, hidden, pauses, ring, waits, wire
from .folder import Folder, rendezvous_path
from .imports import from_a_signal_handler
from .ring import LOOK_PERIOD_NS, discard, pulse

_SEND_FLAGS = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL  # a user may have given SIGPIPE its deadly default back
_PATH_LIMIT = 107
_LONG_FACTS = ("command", "loaders", "phases", "save_places", "unhooked")


class Link:
    """A connected monitor, to which packets are sent without waiting. `alive` turns false once it is gone."""

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


HISTORY = 1024
MONITORS = 4
_RETRY_NS = 100_000_000
_RETRY_LIMIT_NS = 60_000_000_000
_NEVER_NS = 1 << 62
_LAST = -100  # multiprocessing's queues are joined at -5


class Session:
    """The one session of a process. Everything in it runs on a thread that was inside the hook anyway."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock: Any = _thread.RLock()
        self._history: Deque[bytes] = deque(maxlen=HISTORY)
        self._recorded = 0
        self._links: Dict[str, Link] = {}
        self._retries: Dict[str, Tuple[int, int]] = {}
        self._folder: Optional[Folder] = None
        self._worker: Optional[Dict[str, Any]] = None
        self._begun = False
        self._facts_due_ns = 0
        self._flushed_ns = 0

    def begin(self) -> None:
        """Called by the first DataLoader, optimizer or `watch()`: from here on this process is a trainer."""
        if self._begun:
            return
        self._begun = True
        if os.environ.get("GPUWATCH_DISABLE"):
            return
        pulse.flush, pulse.due_ns = self.flush, 0
        try:
            user = os.geteuid()
            self._folder = Folder(rendezvous_path(os.environ, user), user)
            if self._worker is None:
                self._folder.announce(facts.presence())
                _at_exit(self.end)
        except Exception as error:
            if from_a_signal_handler(error):
                raise
            pulse.flush = discard  # no working folder, no /proc: then there is nobody to meet
            return
        # A monitor that is there already is met before the first event: of two threads that begin at once, one would
        # find the other at it and go on unrecorded. A child that multiprocessing makes ready may yet become a worker.
        child = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
        if not getattr(child, "_inheriting", False):
            self.flush(monotonic_ns())

    def become_worker(self, worker: Dict[str, Any]) -> None:
        """Makes this process a DataLoader worker: it sends FETCH records on a connection of its own."""
        self.close_links()
        if self._folder is not None:
            self._folder.withdraw()  # the program that a spawned worker imports may have made it a trainer
        self._begun = False
        self._worker = worker
        self.begin()

    def flush(self, now_ns: int) -> None:
        """Sends what has happened. Never waits, never raises; whoever comes second goes on at once."""
        folder = self._folder
        if self._links or self._retries or folder is None or folder.has_changed():
            self._alone(lambda: self._exchange(now_ns))
        else:
            pulse.due_ns = now_ns + LOOK_PERIOD_NS

    def end(self) -> None:
        """The regular end of the process: sends the rest and BYE."""
        self._alone(self._say_goodbye)
        if self._folder is not None:
            self._folder.withdraw()
        self._stop()

    def _alone(self, action: Callable[[], None]) -> None:
        lock = self._lock
        if lock._is_owned():
            if _is_within(Session._alone.__code__):
                return  # a signal handler that struck inside has come back
            # What a handler raises as `acquire` returns comes before the `try`: kept, the lock would be nobody else's.
            lock.release()
        if not lock.acquire(False):
            return
        try:
            action()
        except Exception as error:  # a fault of the hook ends the hook, not the training
            if from_a_signal_handler(error):
                raise
            self._stop()
        finally:
            lock.release()

    def _exchange(self, now_ns: int) -> None:
        pulse.due_ns = now_ns + LOOK_PERIOD_NS
        if not self._links:
            self._find_monitors(now_ns)
            if self._links:
                self._wake(now_ns)
            return
        if ring.trains():
            cuda.observe(now_ns)
            waits.meter_all()
        count = self._collect()
        self._find_monitors(now_ns)
        self._send(now_ns)
        pulse.due_ns = now_ns + ring.period_ns(count, now_ns - self._flushed_ns)
        self._flushed_ns = now_ns
        if not self._links:
            self._sleep()

    def _wake(self, now_ns: int) -> None:
        """Records events from here on: a monitor reads them."""
        ring.forget()
        self._flushed_ns = now_ns
        if self._worker is None:
            pauses.start_gc_timing()
            waits.wake()
        hidden.put_in()
        pulse.awake, pulse.due_ns = True, 0  # what comes first is sent at once

    def _sleep(self) -> None:
        """Nobody is left: nothing is recorded, and who comes next gets nothing from before a pause without records."""
        ring.forget()
        self._history.clear()
        pauses.stop_gc_timing()
        cuda.device.pause()

    def _say_goodbye(self) -> None:
        self._collect()
        if self._links:
            self._send(monotonic_ns())
        for link in self._links.values():
            link.send_bye("exit")

    def forget(self) -> None:
        """In the child of a fork: closes the parent's connections and starts as nobody."""
        self.close_links()
        self._reset()
        ring.forget()
        ring.trained.clear()
        pulse.due_ns = 0
        cuda.device.forget()
        pauses.stop_gc_timing()
        facts.forget()

    def close_links(self) -> None:
        """Closes all connections without a word."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _stop(self) -> None:
        pulse.flush = discard
        ring.forget()
        pauses.stop_gc_timing()
        cuda.device.pause()
        self.close_links()

    def _collect(self) -> int:
        late = self._worker is None and pauses.drain_gc_pauses()
        fresh = ring.take(in_order=not late)
        if self._worker is not None:
            fresh = [record for record in fresh if record[0] == wire.FETCH]
        self._history.extend(fresh)
        self._recorded += len(fresh)
        return len(fresh)

    def _find_monitors(self, now_ns: int) -> None:
        if not self._begun:
            self.begin()
        folder = self._folder
        if folder is None:
            return
        names = folder.monitors_if_changed()
        if names is None and any(retry_ns <= now_ns for _, retry_ns in self._retries.values()):
            names = folder.monitors()
        if names is None:
            return
        self._retries = {name: self._retries[name] for name in names if name in self._retries}
        for name in names:
            if name not in self._links and len(self._links) < MONITORS:
                self._try(folder, name, now_ns)

    def _try(self, folder: Folder, name: str, now_ns: int) -> None:
        wait_ns, retry_ns = self._retries.get(name, (_RETRY_NS, 0))
        if retry_ns > now_ns:
            return
        self._retries[name] = (min(2 * wait_ns, _RETRY_LIMIT_NS), now_ns + wait_ns)
        link = connect(folder.path, name, os.geteuid(), self._recorded, len(self._history))
        if link is None:
            return
        if self._worker is not None:
            link.greet(wire.WORKER, self._worker)
        else:
            link.greet(wire.HELLO, facts.collect(ring.trains()))
            self._facts_due_ns = now_ns + facts.RETRY_NS
        if link.alive:
            self._links[name] = link
            self._retries[name] = (self._retries[name][0], _NEVER_NS)

    def _send(self, now_ns: int) -> None:
        reading = [link for link in self._links.values() if link.is_writable()]
        due = pulse.facts_changed or now_ns >= self._facts_due_ns
        if reading and due and self._worker is None:  # facts that nobody takes are not collected
            pulse.facts_changed = False
            current = facts.collect(ring.trains())
            sent = [link.send_facts(current) for link in reading]
            everybody = len(reading) == len(self._links) and all(sent)
            self._facts_due_ns = now_ns + (facts.REFRESH_NS if everybody else facts.RETRY_NS)
            waits.refresh()
        for link in reading:
            link.send_records(self._history, self._recorded)
        lost = [name for name, link in self._links.items() if not link.alive]
        for name in lost:
            del self._links[name]
            wait_ns, _ = self._retries.get(name, (_RETRY_NS, 0))
            self._retries[name] = (wait_ns, now_ns + wait_ns)  # a peer that keeps closing is asked ever less


def _is_within(code: CodeType) -> bool:
    """Whether the caller was called, however deep, from another call of the same code."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _at_exit(action: Callable[[], None]) -> None:
    """Runs the action as the process ends regularly, once or more than once."""
    import atexit

    atexit.register(action)
    # Before Python 3.13 a child of multiprocessing's that was forked leaves by os._exit, past what atexit knows.
    parent_of = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    util = sys.modules.get("multiprocessing.util")
    if util is not None and parent_of is not None and parent_of() is not None:
        util.Finalize(None, action, exitpriority=_LAST)


session = Session()
pulse.begin = session.begin
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=session.forget)
