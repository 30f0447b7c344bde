"""The hot path: an event is one packed record, appended here. Its meaning is derived in the monitor.

In a real loop the step has emptied the caches, so what counts is how little memory an event touches: a tuple of eight
Python integers is 400 bytes, the record of docs/protocol.md is 40. Without a monitor `pulse.awake` is False and nothing
is recorded; the wrappers only see whether it is time to check for a monitor.
"""

from __future__ import annotations

from _thread import get_ident, get_native_id
from collections import deque
from itertools import repeat, starmap
from struct import Struct
from time import monotonic_ns
from typing import Callable, Deque, Dict, List

from .hidden import put_in, take_out
from .wire import RECORD, Record

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
    """What the hot path shares with the session: whether to record, when to flush, and that facts have changed."""

    __slots__ = ("awake", "begin", "due_ns", "facts_changed", "flush")

    def __init__(self) -> None:
        self.awake = False
        self.due_ns = 0
        self.facts_changed = True
        self.begin: Callable[[], None] = lambda: None
        self.flush: Callable[[int], None] = discard


class NativeIds(Dict[int, int]):
    """Native thread ids by Python's identity of the thread. The kernel is asked once per flush and thread."""

    def __missing__(self, identity: int) -> int:
        found = self[identity] = get_native_id()
        return found


def discard(now_ns: int) -> None:
    """The flush of a process that has no session, or none any more."""
    pulse.due_ns = NEVER_NS
    pending.clear()
    take_out()


pending: Deque[bytes] = deque()
append = pending.append
pack = RECORD.pack
pulse = Pulse()
natives = NativeIds()
"""Indexed with the identity of the current thread only."""
backward_ns: Dict[int, int] = {}
"""The threads that have run a backward or an optimizer step, by native id, and the start of the last backward."""

_end_ns = Struct("<Q").unpack_from


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
        append(pack(kind, flags, identity, natives[get_ident()], start_ns, end_ns, a, b))
    if end_ns >= pulse.due_ns:
        pulse.flush(end_ns)


def emit(fields: Record) -> None:
    """Records an event of the current thread whatever its fields; the thread is put in."""
    kind, flags, identity, _, start_ns, end_ns, a, b = fields
    append(pack(kind, flags, identity, natives[get_ident()], start_ns, end_ns, a, b))


def trains() -> bool:
    """Whether the current thread has run a backward or an optimizer step."""
    return natives[get_ident()] in backward_ns


def take(in_order: bool) -> List[bytes]:
    """Takes what is pending, in the order of the events' ends."""
    records = list(starmap(pending.popleft, repeat((), len(pending))))
    if not in_order or len(natives) > 1:  # a thread may be stopped between its clock and its append
        records.sort(key=lambda packed: _end_ns(packed, 16))
    natives.clear()  # the identity of a thread that has ended may be given to another
    return records


def period_ns(records: int, elapsed_ns: int) -> int:
    """When to flush next, after that many records in that time: seldom where steps are short."""
    if records < _FEW:
        return PACKET_PERIOD_NS
    return min(max(elapsed_ns * FLUSH_RECORDS // records, PACKET_PERIOD_NS), FLUSH_PERIOD_NS)


def forget() -> None:
    """In the child of a fork, and as the last monitor leaves: nothing is recorded."""
    pulse.awake = False
    pending.clear()
    natives.clear()
