"""Batches in the making: worker processes that share cores and a disk, and the queue that they fill in order."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from tests.scenarios.job import Host, Loading

SWITCHING = 0.22
"""What a crowd costs of the cores' work, for each time it fills them over: 2 cores took 140 ms a step with 2 workers,
176 with 3, 218 with 4 and 234 with 8 (measured with torch 2.13 and items that compute), so 0.19 to 0.37."""
MOST_CROWD = 4.0
SPEED_UP_OF_THREADS = 1.3
"""Small images do not gain more from a library's threads, whatever their number."""
EMPTY = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A batch made by a worker: of its wall time, the part in which it wanted the cores, and the CPU seconds it got."""

    worker: int
    start: float
    end: float
    computing_share: float
    cpu_seconds: float


class Cores:
    """Who wants the cores at a moment: every thread gets its share of them, and crowding costs some of it.

    Args:
        host: the machine.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.training_threads = 1.0
        self._active: list[tuple[float, float, float, float]] = []  # end, start, threads that compute, readers

    def add(self, start: float, end: float, threads: float, readers: float) -> None:
        """A worker computes and reads from one moment, which may be to come, to another."""
        heapq.heappush(self._active, (end, start, threads, readers))

    def forget(self, now: float) -> None:
        """Nobody asks for a moment before this one any more."""
        while self._active and self._active[0][0] <= now:
            heapq.heappop(self._active)

    def stretch(self, at: float, more: float = 0.0) -> float:
        """How much longer computing takes at a moment than on a core of its own."""
        longer, switching = self.pressure(at, more)
        return longer * switching

    def pressure(self, at: float, more: float = 0.0) -> tuple[float, float]:
        """By how much sharing the cores stretches a thread's time, and switching between threads its CPU seconds."""
        threads = sum(threads for end, start, threads, _ in self._active if start <= at < end)
        own = threads + self.training_threads + more
        crowd = (own + self.host.foreign_cores) / self.host.cores
        held = own / self.host.quota if self.host.quota else 0.0
        longer = max(1.0, crowd, held)
        return longer, 1.0 + SWITCHING * min(MOST_CROWD, max(0.0, crowd - 1.0))

    def disk_stretch(self, at: float) -> float:
        """How much longer reading takes than on a free disk."""
        readers = sum(readers for end, start, _, readers in self._active if start <= at < end)
        return max(1.0, (readers + 1.0) / self.host.disk_streams)


class BatchQueue:
    """The loader of one rank: one batch is asked for when one is handed over.

    In order each worker makes every N-th batch. Out of order whichever is ready first is handed over, and its worker
    makes the next (torch/utils/data/dataloader.py, `_try_put_index`).
    """

    def __init__(self, loading: Loading, cores: Cores, rng: random.Random, times: float = 1.0) -> None:
        self._loading = loading
        self._cores = cores
        self._rng = rng
        self._times = times
        self._free = [0.0] * loading.workers
        self._ready: list[tuple[float, int]] = []  # end, worker; in order they are taken as they were asked for
        self._asked = 0
        self.position = -1
        self.epochs = 0
        self.fetches: list[Fetch] = []

    def change(self, loading: Loading) -> None:
        """Loads otherwise from now on, with the same workers and an epoch that goes on."""
        self._loading, self._times = loading, 1.0

    def refill(self, now: float) -> None:
        """Asks for what the queue lacks, where the epoch had all it wanted and goes on after all."""
        most = self._loading.workers * self._loading.prefetch
        while most and self._asked - self.position - 1 < most:
            self._ask(now)

    @property
    def is_last(self) -> bool:
        """Whether the batch handed over last was its epoch's."""
        return self.position + 1 >= self._loading.batches_per_epoch

    def next(self, now: float) -> tuple[float, float]:
        """The moment at which `next()` returns, and the CPU seconds that the training thread spent in it."""
        loading = self._loading
        if self.epochs == 0 or self.is_last:
            self._begin_epoch(now)
        self.position += 1
        if loading.free:
            return now + 1e-5, 1e-5
        if not loading.workers:
            cpu, io = self._cost()
            return now + cpu * self._cores.stretch(now) + io, cpu
        ready, worker = self._ready.pop(0) if loading.in_order else heapq.heappop(self._ready)
        handover = loading.handover_seconds * self._rng.uniform(0.7, 1.6)
        returned = max(now, ready) + handover
        self._ask(returned, None if loading.in_order else worker)
        return returned, handover

    def _begin_epoch(self, now: float) -> None:
        loading = self._loading
        self.position, self._asked = -1, 0
        self._ready.clear()
        if self.epochs == 0 or not loading.persistent:
            self._free = [now + loading.start_seconds * (1 + 0.5 * worker) for worker in range(loading.workers)]
        self.epochs += 1
        if not loading.free:
            for _ in range(loading.workers * loading.prefetch):
                self._ask(now)

    def _ask(self, now: float, worker: int | None = None) -> None:
        """Asks for the next batch, in turn where no worker is named."""
        if self._asked >= self._loading.batches_per_epoch:
            return
        self._cores.forget(now)
        worker = self._asked % self._loading.workers if worker is None else worker
        self._asked += 1
        start = max(now, self._free[worker])
        cpu, io = self._cost()
        threads = self._loading.threads
        wanted = cpu / min(threads, SPEED_UP_OF_THREADS)
        share = wanted / max(wanted + io, 1e-9)
        longer, switching = self._cores.pressure(start, threads * share)
        computing = wanted * longer * switching
        reading = io * self._cores.disk_stretch(start)
        end = start + computing + reading
        self._cores.add(start, end, threads * computing / max(end - start, 1e-9), reading / max(end - start, 1e-9))
        self._free[worker] = end
        if self._loading.in_order:
            self._ready.append((end, worker))
        else:
            heapq.heappush(self._ready, (end, worker))
        self.fetches.append(Fetch(worker, start, end, computing / max(end - start, 1e-9), cpu * switching))

    def _cost(self) -> tuple[float, float]:
        loading = self._loading
        times = self._times * self._rng.lognormvariate(0.0, loading.spread)
        if loading.slow_share and self._rng.random() < loading.slow_share:
            times *= loading.slow_times
        if loading.last_batch_share < 1.0 and self._asked >= loading.batches_per_epoch:
            times *= loading.last_batch_share
        return loading.cpu_seconds * times, loading.io_seconds * times
