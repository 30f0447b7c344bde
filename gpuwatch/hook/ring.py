"""The hot path: an event is one tuple, appended here. Its meaning is derived in the monitor.

In a real loop the step has emptied the caches, so what counts is how little code and memory an event touches: packing
three events and looking up their thread costs a step of 1 ms 5 to 12 us more than keeping them as tuples, which the
flush packs together. Without a monitor `pulse.awake` is False and nothing is recorded; the wrappers only see whether it
is time to check for a monitor.
"""

from __future__ import annotations

from _thread import get_ident, get_native_id
from collections import deque
from itertools import repeat, starmap
from operator import itemgetter
from time import monotonic_ns
from typing import Callable, Deque, Dict, List, Set

from .hidden import put_in, take_out
from .wire import BACKWARD, BEGUN, OPTIMIZER, RECORD, USER_STEP, Record

LOOK_PERIOD_NS = 100_000_000
"""The least time between two checks for a monitor."""
PACKET_PERIOD_NS = 50_000_000
"""The least time between two packets."""
FLUSH_PERIOD_NS = 250_000_000
"""The most time between two packets while records come."""
FLUSH_RECORDS = 768
"""A packet is sent when about that many are to be expected: the ring keeps 1024."""
_FEW = 32
_LATE_NS = 400_000_000

NEVER_NS = 1 << 62


class Pulse:
    """What the hot path shares with the session: whether to record, when to flush, and that facts have changed.

    `flusher` is Python's and the kernel's identity of the thread that flushed last, in most programs the one that
    trains; (0, 0) at first.
    """

    __slots__ = ("awake", "begin", "due_ns", "facts_changed", "flush", "flusher")

    def __init__(self) -> None:
        self.awake = False
        self.due_ns = 0
        self.facts_changed = True
        self.begin: Callable[[], None] = lambda: None
        self.flush: Callable[[int], None] = discard
        self.flusher = (0, 0)


class NativeIds(Dict[int, int]):
    """The kernel's thread ids by Python's, of the threads that did not flush last. Asked once per flush and thread."""

    def __missing__(self, identity: int) -> int:
        found = self[identity] = get_native_id()
        return found


def discard(now_ns: int) -> None:
    """The flush of a process that has no session, or none any more."""
    pulse.due_ns = NEVER_NS
    pending.clear()
    take_out()


pending: Deque[Record] = deque()
append = pending.append
pulse = Pulse()
natives = NativeIds()
"""Indexed with the identity of the current thread only."""
trained: Set[int] = set()
"""The threads that have run a backward or a step, by native id, as of the last flush."""

_end_ns = itemgetter(5)
_TRAINING = frozenset((BACKWARD, OPTIMIZER, USER_STEP))


def native_id() -> int:
    """The kernel's id of the current thread. What every step records has these lines in place of a call."""
    identity, thread = pulse.flusher
    return thread if identity == get_ident() else natives[get_ident()]


def started() -> int:
    """The time at which a rare event starts; a monitor that is there by now gets a record of it."""
    start_ns = monotonic_ns()
    if pulse.awake or start_ns < pulse.due_ns:
        return start_ns
    look(start_ns)
    return monotonic_ns()


def look(now_ns: int, after_step: bool = False) -> None:
    """Checks for a monitor, which is due; `after_step` says that an optimizer has stepped.

    While steps come often enough to check in time, nothing else has to.
    """
    late_ns = now_ns - pulse.due_ns
    pulse.flush(now_ns)
    if late_ns > _LATE_NS:
        put_in()
    elif after_step and not pulse.awake:
        take_out()


def record(kind: int, start_ns: int, identity: int = 0, flags: int = 0, a: int = 0, b: int = 0) -> None:
    """Records an event that ends now and flushes when due: for the events that happen less than every step."""
    end_ns = monotonic_ns()
    if pulse.awake:
        append((kind, flags, identity, native_id(), start_ns, end_ns, a, b))
    if end_ns >= pulse.due_ns:
        pulse.flush(end_ns)


def begun(kind: int, start_ns: int, identity: int = 0) -> None:
    """Says at once that an event of this kind, which may last, has begun; its own record follows at its end."""
    if pulse.awake:
        append((BEGUN, 0, identity, native_id(), start_ns, start_ns, kind, 0))
        pulse.flush(monotonic_ns())


def emit(fields: Record) -> None:
    """Records an event of the current thread whatever its fields; the thread is put in."""
    kind, flags, identity, _, start_ns, end_ns, a, b = fields
    append((kind, flags, identity, native_id(), start_ns, end_ns, a, b))


def trains() -> bool:
    """Whether the current thread has run a backward or a step before the last flush."""
    return native_id() in trained


def take(in_order: bool) -> List[bytes]:
    """Takes what is pending, packed, in the order of the events' ends."""
    records = list(starmap(pending.popleft, repeat((), len(pending))))
    if not in_order or natives:  # a thread may be stopped between its clock and its append
        records.sort(key=_end_ns)
    trained.update({record[3] for record in records if record[0] in _TRAINING})
    natives.clear()  # the identity of a thread that has ended may be given to another
    pulse.flusher = (get_ident(), get_native_id())
    return list(starmap(RECORD.pack, records))


def period_ns(records: int, elapsed_ns: int) -> int:
    """When to flush next, after that many records in that time: rarely where steps are short."""
    if records < _FEW:
        return PACKET_PERIOD_NS
    return min(max(elapsed_ns * FLUSH_RECORDS // records, PACKET_PERIOD_NS), FLUSH_PERIOD_NS)


def forget() -> None:
    """In the child of a fork, and as the last monitor leaves: nothing is recorded."""
    pulse.awake = False
    pulse.flusher = (0, 0)
    pending.clear()
    natives.clear()
