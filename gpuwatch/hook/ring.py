"""The hot path: an event is one append here. Its meaning is derived in the monitor.

A deque of tuples: no lock, no encoding, no counter. `pulse.due_ns` is compared once per event, so that a flush
happens at most every 50 ms, at a moment when the training is inside the hook anyway.
"""

from __future__ import annotations

import _thread
from collections import deque
from time import monotonic_ns
from typing import Callable, Deque, List, Tuple

from .wire import Record

FLUSH_PERIOD_NS = 50_000_000


class ThreadState:
    """What the hook knows of one thread. The native id is kept because asking for it is a system call (219 ns)."""

    __slots__ = ("backwards", "native", "open_steps", "saving", "scaler_update_ns", "trains")

    def __init__(self) -> None:
        self.native = _thread.get_native_id()
        self.open_steps: List[Tuple[int, int]] = []
        self.backwards = 0
        self.trains = False
        self.saving = False
        self.scaler_update_ns = 0


class _Local(_thread._local):
    state: ThreadState

    def __init__(self) -> None:
        self.state = ThreadState()


class Pulse:
    """What the hot path shares with the session: when to flush, and that facts have changed."""

    __slots__ = ("begin", "due_ns", "facts_changed", "flush")

    def __init__(self) -> None:
        self.due_ns = 0
        self.facts_changed = True
        self.begin: Callable[[], None] = lambda: None
        self.flush: Callable[[int], None] = discard


def discard(now_ns: int) -> None:
    """The flush of a process that has no session, or none any more."""
    pulse.due_ns = now_ns + FLUSH_PERIOD_NS
    pending.clear()


pending: Deque[Record] = deque()
append = pending.append
local = _Local()
pulse = Pulse()


def record(kind: int, start_ns: int, identity: int = 0, flags: int = 0, a: int = 0, b: int = 0) -> None:
    """Appends an event that ends now and flushes when due: for the events that happen less than every step."""
    end_ns = monotonic_ns()
    append((kind, flags, identity, local.state.native, start_ns, end_ns, a, b))
    if end_ns >= pulse.due_ns:
        pulse.flush(end_ns)
