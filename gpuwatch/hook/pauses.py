"""Garbage collection pauses, timed without running a line of Python inside the collector.

A Python function in `gc.callbacks` swallows signals: a Ctrl-C that arrives during the collection raises inside the
callback, and CPython prints and drops it (reproduced on 3.11). So the callback is put together from C functions.
It takes the two time stamps of a collection and nothing else; the generation comes from `gc.get_stats()`.
"""

from __future__ import annotations

import gc
from collections import deque
from functools import partial
from time import monotonic_ns
from typing import Deque, Iterator, List, Tuple

from . import wire
from .ring import emit

SHORTEST_NS = 100_000

# Each call of `_callback(phase, info)` asks `max` for the keys of its two arguments; each key is
# `next(_stamper)`, which appends the time. So a collection leaves four stamps: two as it starts, two as it ends.
_stamps: Deque[int] = deque(maxlen=4 * 1024)
_stamper: Iterator[Tuple[None]] = zip(map(_stamps.append, iter(monotonic_ns, -1)))
_callback = partial(max, key=partial(next, _stamper))
_counted: List[Tuple[int, int]] = []


def start() -> None:
    """Begins to time collections. Idempotent."""
    if _callback not in gc.callbacks:
        gc.callbacks.append(_callback)
    _counted[:] = _statistics()


def stop() -> None:
    """Leaves the collector alone: while nothing is recorded, and in the child of a fork."""
    if _callback in gc.callbacks:
        gc.callbacks.remove(_callback)
    _stamps.clear()


def forget() -> None:
    """What happened before is not known."""
    _stamps.clear()
    _counted[:] = _statistics()


def drain() -> bool:
    """Records the collections since the last call that took 0.1 ms or more; whether there were any."""
    if len(_stamps) < 4:
        return False
    if len(_stamps) == _stamps.maxlen:  # too long since the last look: what is left has lost its beginning
        forget()
        return False
    stamps = [_stamps.popleft() for _ in range(len(_stamps) // 4 * 4)]
    spans = [(stamps[at], stamps[at + 3]) for at in range(0, len(stamps), 4)]
    now = _statistics()
    runs = [count - before for (count, _), (before, _) in zip(now, _counted)]  # noqa: B905 - Python 3.8
    found = [total - before for (_, total), (_, before) in zip(now, _counted)]  # noqa: B905
    _counted[:] = now
    # The spans do not say which generation they were; an older one holds the younger ones' work and takes longer.
    generations = [generation for generation, count in enumerate(runs) for _ in range(count)]
    recorded = False
    known = len(generations) == len(spans)
    ranked = sorted(spans, key=lambda span: span[1] - span[0])
    for rank, (start_ns, end_ns) in enumerate(ranked):
        if end_ns - start_ns < SHORTEST_NS:
            continue
        generation = generations[rank] if known else -1
        collected = found[generation] if known and runs[generation] == 1 else -1
        emit((wire.GC, 0, 0, 0, start_ns, end_ns, generation, collected))
        recorded = True
    return recorded


def _statistics() -> List[Tuple[int, int]]:
    return [(entry["collections"], entry["collected"]) for entry in gc.get_stats()]
