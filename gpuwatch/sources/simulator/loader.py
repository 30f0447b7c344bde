"""A DataLoader as a queue: batches are asked for in order, made by N workers in turn, and handed over in order."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from gpuwatch.sources.simulator.parameters import LoaderSpec

HAND_OVER_SECONDS = 0.0012
"""Queue, unpickle and pin thread per batch; 1.1-1.5 ms measured with torch 2.13 workers."""

WORKER_START_SECONDS = 0.12
"""Fork, import and first item of a worker; first batches came after 168-383 ms with four workers."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One batch made by one worker; `worker` is -1 for the training process itself."""

    worker: int
    start: float
    end: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Handed:
    """One `next()`: when it was entered, when it returned, and where in the epoch its batch lies."""

    entered: float
    returned: float
    epoch_position: int
    new_epoch: bool


class BatchQueue:
    """The loader of one rank.

    A worker takes its batches in the order they were asked for, and a new one is asked for when one is handed over,
    so `num_workers * prefetch_factor` are under way: this alone gives the lag-N comb of too few workers.
    """

    def __init__(self, spec: LoaderSpec, rng: random.Random, cpu_stretch: float) -> None:
        self._spec = spec
        self._rng = rng
        self._cpu_stretch = cpu_stretch
        self._worker_free = [0.0] * spec.num_workers
        self._ready: deque[float] = deque()
        self._asked = 0
        self._position = -1
        self.epochs = 0
        self.fetches: list[Fetch] = []

    def next(self, now: float) -> Handed:
        """The next batch, entered at `now`. Appends to `fetches` what was made or asked for."""
        new_epoch = self._position < 0 or self._position + 1 >= self._spec.batches_per_epoch
        if new_epoch:
            self._start_epoch(now)
        self._position += 1
        if not self._spec.num_workers:
            made = self._make(-1, now)
            return Handed(now, made.end, self._position, new_epoch)
        ready = self._ready.popleft()
        returned = max(now, ready) + HAND_OVER_SECONDS
        self._ask(returned)
        return Handed(now, returned, self._position, new_epoch)

    def _start_epoch(self, now: float) -> None:
        self._position = -1
        self._ready.clear()
        self._asked = 0
        first = self.epochs == 0
        self.epochs += 1
        if first or not self._spec.persistent_workers:
            self._worker_free = [now + WORKER_START_SECONDS * (1 + 0.5 * i) for i in range(self._spec.num_workers)]
        for _ in range(self._spec.num_workers * self._spec.prefetch_factor):
            self._ask(now)

    def _ask(self, now: float) -> None:
        if self._asked >= self._spec.batches_per_epoch:
            return
        worker = self._asked % self._spec.num_workers
        self._asked += 1
        made = self._make(worker, max(now, self._worker_free[worker]))
        self._worker_free[worker] = made.end
        self._ready.append(made.end)

    def _make(self, worker: int, start: float) -> Fetch:
        spec = self._spec
        seconds = spec.batch_seconds * self._rng.lognormvariate(0.0, spec.spread)
        cpu = seconds * spec.cpu_share
        made = Fetch(worker, start, start + cpu * self._cpu_stretch + seconds - cpu, cpu)
        self.fetches.append(made)
        return made
