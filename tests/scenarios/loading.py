"""Batches in the making: worker processes that share cores and a disk, and the queue that they fill in order."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.scenarios.job import Host, Loading

SWITCHING = 0.22
"""What a crowd costs of the cores' work, for each time it fills them over: 2 cores took 140 ms a step with 2 workers,
176 with 3, 218 with 4 and 234 with 8 (measured with torch 2.13 and items that compute), so 0.19 to 0.37."""
MOST_CROWD = 4.0
SPEED_UP_OF_THREADS = 1.3
"""Small images do not gain more from a library's threads, whatever their number."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A batch made by a worker: of its wall time, the part in which it wanted the cores, and the CPU seconds it got.

    One that is under way has no end yet.
    """

    worker: int
    start: float
    end: float
    computing_share: float
    cpu_seconds: float


@dataclass(slots=True, eq=False)
class Batch:
    """One on its way through a worker: `left` of it is to be made."""

    queue: BatchQueue
    worker: int
    asked: float
    cpu_seconds: float
    io_seconds: float
    threads: int
    start: float = 0.0
    end: float | None = None
    left: float = 1.0
    computing_share: float = 1.0
    whole_seconds: float = math.inf
    computed_seconds: float = 0.0
    cpu_got: float = 0.0

    @property
    def wanted_seconds(self) -> float:
        """What computing takes with cores of its own."""
        return self.cpu_seconds / min(self.threads, SPEED_UP_OF_THREADS)

    def fetch(self, now: float) -> Fetch:
        """As the sensors see it."""
        end = now if self.end is None else self.end
        share = self.computed_seconds / (end - self.start) if end > self.start else self.computing_share
        return Fetch(
            self.queue.first_worker + self.worker,
            self.start,
            math.inf if self.end is None else end,
            share,
            self.cpu_got,
        )


class Cores:
    """The cores and the disk of the machine: at any moment every thread gets the same share, and crowding costs some.

    Batches of all ranks and workers advance together, from event to event: one begins, or one is made.

    Args:
        host: the machine.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.training_threads = 1.0
        self.now = 0.0
        self.known_until = math.inf
        """Up to here nobody asks for a batch any more: with several ranks, where the last of them is."""
        self._running: list[Batch] = []
        self._coming: list[tuple[float, int, Batch]] = []
        self._order = 0
        self._switching = 1.0
        self._longer = 1.0

    def begin(self, at: float, batch: Batch) -> None:
        """A worker begins a batch at a moment, which may be to come."""
        self._order += 1
        heapq.heappush(self._coming, (at, self._order, batch))

    def advance(self, until: float) -> None:
        """All batches up to a moment; nothing where it is past."""
        while (event := self._next_event()) <= until:
            self._pass(event)
        if until > self.now:
            self._move(until)

    def advance_until(self, is_met: Callable[[], bool]) -> None:
        """From event to event until something is so.

        Raises:
            RuntimeError: nothing is under way that could bring it.
        """
        while not is_met():
            event = self._next_event()
            if event == math.inf:
                raise RuntimeError("a batch is waited for that nobody makes")
            self._pass(event)

    def under_way(self, queue: BatchQueue) -> list[Fetch]:
        """A rank's batches in the making."""
        return [batch.fetch(self.now) for batch in self._running if batch.queue in queue.of_one_process]

    def stretch(self, at: float) -> float:
        """How much longer computing takes at a moment than on a core of its own."""
        self.advance(min(at, self.known_until))
        return self._longer * self._switching

    def _next_event(self) -> float:
        ends = min((batch.left * batch.whole_seconds for batch in self._running), default=math.inf)
        begins = self._coming[0][0] if self._coming else math.inf
        return max(self.now, min(self.now + ends, begins))

    def _pass(self, event: float) -> None:
        self._move(event)
        made = [batch for batch in self._running if batch.left <= 1e-9]
        while self._coming and self._coming[0][0] <= event:
            batch = heapq.heappop(self._coming)[2]
            batch.start = event
            wanted = batch.wanted_seconds
            batch.computing_share = wanted / max(wanted + batch.io_seconds, 1e-9)
            self._running.append(batch)
        if made:
            self._running = [batch for batch in self._running if batch.left > 1e-9]
        for batch in made:
            batch.end = event
            batch.queue.made(batch)
        self._share()

    def _move(self, until: float) -> None:
        seconds = until - self.now
        self.now = until
        for batch in self._running:
            part = seconds / batch.whole_seconds
            batch.left -= part
            batch.computed_seconds += seconds * batch.computing_share
            batch.cpu_got += part * batch.cpu_seconds * self._switching

    def _share(self) -> None:
        """What everybody gets until the next event. Where the cores are full a batch computes for more of its time."""
        for _ in range(2):
            own = self.training_threads
            readers = 0.0
            for batch in self._running:
                own += batch.threads * batch.computing_share
                readers += 1.0 - batch.computing_share
            crowd = (own + self.host.foreign_cores) / self.host.cores
            held = own / self.host.quota if self.host.quota else 0.0
            self._longer = max(1.0, crowd, held)
            self._switching = 1.0 + SWITCHING * min(MOST_CROWD, max(0.0, crowd - 1.0))
            slower, disk = self._longer * self._switching, max(1.0, readers / self.host.disk_streams)
            for batch in self._running:
                computing = batch.wanted_seconds * slower
                batch.whole_seconds = max(computing + batch.io_seconds * disk, 1e-9)
                batch.computing_share = computing / batch.whole_seconds


@dataclass(slots=True)
class _Worker:
    """What one has been asked for, and from when on it is there."""

    begins: float = 0.0
    is_busy: bool = False
    asked: deque[Batch] = field(default_factory=deque)


class BatchQueue:
    """The loader of one rank: one batch is asked for when one is handed over.

    In order each worker makes every N-th batch. Out of order whichever is ready first is handed over, and its worker
    makes the next (torch/utils/data/dataloader.py, `_try_put_index`).
    """

    def __init__(self, loading: Loading, cores: Cores, rng: random.Random, times: float = 1.0) -> None:
        self.first_worker = 0
        self.of_one_process: tuple[BatchQueue, ...] = (self,)
        self._loading = loading
        self._cores = cores
        self._rng = rng
        self._times = times
        self._workers = [_Worker() for _ in range(loading.workers)]
        self._in_turn: deque[Batch] = deque()
        self._ready: deque[Batch] = deque()  # out of order
        self._entered: float | None = None
        self._asked = 0
        self.position = -1
        self.epochs = 0
        self.returned = 0.0
        self.cpu_seconds = 0.0
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

    @property
    def is_waited_for(self) -> bool:
        """Whether `next()` has been entered and has not returned."""
        return self._entered is not None

    def enter(self, now: float) -> None:
        """`next()`: once a batch is there, `returned` is set, and the CPU seconds that the training thread spent."""
        loading = self._loading
        self._cores.advance(now)
        if self.epochs == 0 or self.is_last:
            self._begin_epoch(now)
        self.position += 1
        if loading.free:
            self.returned, self.cpu_seconds = now + 1e-5, 1e-5
        elif not loading.workers:
            cpu, io = self._cost(None)
            self.returned, self.cpu_seconds = now + cpu * self._cores.stretch(now) + io, cpu
        else:
            self._entered = now
            self._hand_over()

    def made(self, batch: Batch) -> None:
        """A worker has made one."""
        assert batch.end is not None
        self.fetches.append(batch.fetch(batch.end))
        if not self._loading.in_order:
            self._ready.append(batch)
        worker = self._workers[batch.worker]
        worker.is_busy = False
        self._set_to_work(worker, batch.end)
        self._hand_over()

    def _hand_over(self) -> None:
        """To `next()`, where it waits and the batch is there."""
        waiting = self._in_turn if self._loading.in_order else self._ready
        if self._entered is None or not waiting or waiting[0].end is None:
            return
        batch = waiting.popleft()
        assert batch.end is not None
        self.cpu_seconds = self._loading.handover_seconds * self._rng.uniform(0.7, 1.6)
        self.returned = max(self._entered, batch.end) + self.cpu_seconds
        self._entered = None
        self._ask(self.returned, None if self._loading.in_order else batch.worker)

    def _begin_epoch(self, now: float) -> None:
        loading = self._loading
        self.position, self._asked = -1, 0
        if self.epochs == 0 or not loading.persistent:
            self._workers = [
                _Worker(now + loading.start_seconds * (1 + 0.5 * number)) for number in range(loading.workers)
            ]
        self.epochs += 1
        if not loading.free:
            for _ in range(loading.workers * loading.prefetch):
                self._ask(now)

    def _ask(self, now: float, number: int | None = None) -> None:
        """Asks for the next batch, in turn where no worker is named."""
        if self._asked >= self._loading.batches_per_epoch:
            return
        number = self._asked % self._loading.workers if number is None else number
        self._asked += 1
        cpu, io = self._cost(number)
        batch = Batch(self, number, now, cpu, io, self._loading.threads)
        if self._loading.in_order:
            self._in_turn.append(batch)
        worker = self._workers[number]
        worker.asked.append(batch)
        self._set_to_work(worker, now)

    def _set_to_work(self, worker: _Worker, now: float) -> None:
        if worker.asked and not worker.is_busy:
            worker.is_busy = True
            batch = worker.asked.popleft()
            self._cores.begin(max(now, batch.asked, worker.begins), batch)

    def _cost(self, worker: int | None) -> tuple[float, float]:
        loading = self._loading
        times = self._times * self._rng.lognormvariate(0.0, loading.spread)
        if worker == 0:
            times *= loading.slow_worker_times
        if loading.slow_share and self._rng.random() < loading.slow_share:
            times *= loading.slow_times
        if loading.last_batch_share < 1.0 and self._asked >= loading.batches_per_epoch:
            times *= loading.last_batch_share
        return loading.cpu_seconds * times, loading.io_seconds * times
