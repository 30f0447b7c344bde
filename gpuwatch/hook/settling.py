"""From the hot path's records to those of docs/protocol.md: threads, optimizers and closures by their names."""

from __future__ import annotations

import sys
from _thread import get_ident, get_native_id
from itertools import repeat, starmap
from operator import itemgetter
from typing import Dict, List, Set

from . import steps
from .ring import pending
from .wire import BACKWARD, OPTIMIZER, RECORD, USER_STEP, Record

training_threads: Set[int] = set()
"""The identities of threads that have run backward or an optimizer step."""

_end_ns = itemgetter(5)
_last_backward_ns: Dict[int, int] = {}


def settle() -> List[bytes]:
    """Takes what is pending, encoded."""
    # Pauses come in late, and a thread may be stopped between its clock and its append.
    records = sorted(starmap(pending.popleft, repeat((), len(pending))), key=_end_ns)
    try:
        return _encode(records)
    except BaseException:  # a signal handler of the program's raised: what it kept from being sent is not lost
        pending.extendleft(reversed(records))
        raise


def _encode(records: List[Record]) -> List[bytes]:
    natives = {get_ident(): get_native_id()}
    encoded: List[bytes] = []
    add, pack = encoded.append, RECORD.pack
    for kind, flags, identity, thread, start_ns, end_ns, a, b in records:
        if kind == BACKWARD:
            _last_backward_ns[thread] = start_ns
            training_threads.add(thread)
        elif kind == OPTIMIZER:
            identity = steps.number_of(identity, end_ns)
            a = 1 if _last_backward_ns.get(thread, -1) >= start_ns else 0
            training_threads.add(thread)
        elif kind == USER_STEP:
            training_threads.add(thread)
        native = natives.get(thread)
        if native is None:
            native = natives[thread] = _native_id(thread)
        add(pack(kind, flags, identity, native, start_ns, end_ns, a, b))
    return encoded


def forget() -> None:
    """In the child of a fork: other threads, none of which has trained."""
    pending.clear()
    training_threads.clear()
    _last_backward_ns.clear()


def _native_id(identity: int) -> int:
    # Only a thread itself can ask for its native id; threading has noted those of the threads it started.
    threading = sys.modules.get("threading")
    thread = getattr(threading, "_active", {}).get(identity)
    return int(getattr(thread, "native_id", None) or 0)
