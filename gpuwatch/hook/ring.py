"""The hot path: an event is one append here. Its meaning is derived in the monitor.

In a real loop the step has emptied the caches, so what counts is how little memory an event touches: with thread-local
state, counters and an entry per optimizer a 1 ms step cost 14 us, without them 7. So a record holds what is at hand (a
thread's identity, an optimizer's address), and the flush, every 50 ms at most, looks up what they stand for.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from time import monotonic_ns
from typing import Callable, Deque

from .wire import Record

FLUSH_PERIOD_NS = 50_000_000


class Pulse:
    """What the hot path shares with the session: when to flush, and that facts have changed."""

    __slots__ = ("begin", "due_ns", "facts_changed", "flush", "settle")

    def __init__(self) -> None:
        self.due_ns = 0
        self.facts_changed = True
        self.begin: Callable[[], None] = lambda: None
        self.flush: Callable[[int], None] = discard
        self.settle: Callable[[], None] = lambda: None


def discard(now_ns: int) -> None:
    """The flush of a process that has no session, or none any more."""
    pulse.due_ns = now_ns + FLUSH_PERIOD_NS
    pending.clear()


# Here a record's thread is Python's identity of it, and the id of an OPTIMIZER record the optimizer's address.
pending: Deque[Record] = deque()
append = pending.append
pulse = Pulse()


def record(kind: int, start_ns: int, identity: int = 0, flags: int = 0, a: int = 0, b: int = 0) -> None:
    """Appends an event that ends now and flushes when due: for the events that happen less than every step."""
    end_ns = monotonic_ns()
    append((kind, flags, identity, get_ident(), start_ns, end_ns, a, b))
    if end_ns >= pulse.due_ns:
        pulse.flush(end_ns)
