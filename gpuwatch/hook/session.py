"""What this process is to monitors: a trainer, a DataLoader worker, or nobody; and the flush that tells them."""

from __future__ import annotations

import _thread
import os
import sys
from collections import deque
from time import monotonic_ns
from types import CodeType
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from . import cuda, facts, hidden, pauses, ring, waits, wire
from .folder import Folder, rendezvous_path
from .imports import from_a_signal_handler
from .link import Link, connect
from .ring import LOOK_PERIOD_NS, discard, pulse

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
            link.greet(wire.HELLO, facts.collect(now_ns, ring.trains()))
            self._facts_due_ns = now_ns + facts.RETRY_NS
        if link.alive:
            self._links[name] = link
            self._retries[name] = (self._retries[name][0], _NEVER_NS)

    def _send(self, now_ns: int) -> None:
        reading = [link for link in self._links.values() if link.is_writable()]
        due = pulse.facts_changed or now_ns >= self._facts_due_ns
        if reading and due and self._worker is None:  # facts that nobody takes are not collected
            pulse.facts_changed = False
            current = facts.collect(now_ns, ring.trains())
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
