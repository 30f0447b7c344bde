"""A loader's queue, played: what a training waits for batches that take its workers so long each.

Each worker of a DataLoader has a queue of its own. In order, batch i goes to worker i mod N as soon as batch
i - N * prefetch is handed over, so one that takes long holds up all behind it once the queue is used up. Out of order
whatever is ready is handed over and its worker gets the next index: a worker that is stuck keeps `prefetch` batches
and no more (torch/utils/data/dataloader.py, `_try_put_index`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean


@dataclass(frozen=True, slots=True)
class LoaderQueue:
    """The settings that decide how batches wait for each other."""

    workers: int
    prefetch: int
    in_order: bool = True

    @property
    def depth(self) -> int:
        """Batches asked for and not yet handed over."""
        return self.workers * self.prefetch


@lru_cache(maxsize=32)
def wait_seconds(
    queue: LoaderQueue, batch_seconds: tuple[float, ...], compute_seconds: float, lead: int | None = None
) -> float:
    """What a training waits for a batch in the mean, once the queue was full.

    Args:
        queue: its settings.
        batch_seconds: what one worker takes for each batch, in turn.
        compute_seconds: what the training takes for each.
        lead: this many batches come before those that count; None: as many as fill the queue.
    """
    waits = (_in_order if queue.in_order else _as_ready)(queue, batch_seconds, compute_seconds)
    return fmean(waits[queue.depth if lead is None else lead :] or waits)


def _in_order(queue: LoaderQueue, batch_seconds: Sequence[float], compute_seconds: float) -> list[float]:
    free, asked = [0.0] * queue.workers, [0.0] * queue.depth
    waits, now = [], 0.0
    for place, making in enumerate(batch_seconds):
        worker = place % queue.workers
        ready = free[worker] = max(asked[place], free[worker]) + making
        waits.append(max(0.0, ready - now))
        now = max(now, ready)
        asked.append(now)
        now += compute_seconds
    return waits


def _as_ready(queue: LoaderQueue, batch_seconds: Sequence[float], compute_seconds: float) -> list[float]:
    free = [0.0] * queue.workers
    made: list[tuple[float, int]] = []
    for place, making in enumerate(batch_seconds[: queue.depth]):
        free[place % queue.workers] += making
        made.append((free[place % queue.workers], place % queue.workers))
    heapq.heapify(made)
    waits, now = [], 0.0
    for making in batch_seconds[queue.depth :]:
        ready, worker = made[0]
        waits.append(max(0.0, ready - now))
        now = max(now, ready)
        free[worker] = max(now, free[worker]) + making
        heapq.heapreplace(made, (free[worker], worker))
        now += compute_seconds
    return waits
