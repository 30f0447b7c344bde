"""A training script that is played act by act: what no fixed loop of steps can do.

A program is a generator over acts (steps, evaluations, saves, any other code), each of which advances all ranks. The
hook's raw records of it go through the real derivation; what stacks and counters show of it goes through `Outside`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuwatch.hook import wire
from gpuwatch.samples import NO_LOADER, BatchCount, BatchWait, PhaseSpan, Sample
from gpuwatch.sources.simulator.model import GpuModel
from tests.scenarios.job import About, Job, Loading, Stretch
from tests.scenarios.loading import BatchQueue, Cores
from tests.scenarios.loop import SPINNING, Rank
from tests.scenarios.training import ALL_REDUCE, EVAL_LOADER, OPTIMIZER, SCRIPT, TRAIN_LOADER, trainer_name

Acts = Iterator[None]
Program = Callable[["Player"], Acts]
SLICE_SECONDS = 1.0
THREAD = 1
GPU_SLICE_SECONDS = 0.25
RIPE_AFTER = 2
ITERATIONS_SEEN_AFTER = 3
ITERATOR_SECONDS = 1e-4


class Actor(Rank):
    """One rank of a program: its records, its loaders, and what it stands on."""

    def __init__(self, job: Job, index: int, cores: Cores, gpus: list[GpuModel], noise: random.Random) -> None:
        super().__init__(job, index, cores, gpus, noise)
        self.records: list[wire.RawRecord] = []
        self.queues: dict[int, BatchQueue] = {}
        self.iterator = 0
        self.numbers: dict[int, int] = {}
        """Of each loader's iterator."""
        self.about: About | None = None
        self.waits_to_ripen: list[tuple[int, int, float, float]] = []
        """Of the newest steps: loader, start of the wait in ns, gap, when the GPU is through with it."""

    def run_for(self, until: float, phase: str, cores: float) -> None:
        """The same, with the line."""
        if until > self.now:
            if self.gpus:
                self.log.append(Stretch(self.now, until, phase, cores, self.about))
            self.now = until

    @contextmanager
    def at(self, about: About) -> Iterator[None]:
        """On another line."""
        before, self.about = self.about, about
        try:
            yield
        finally:
            self.about = before


class Player:
    """A program in time, with what `Training` offers its sensors.

    Args:
        job: machine, loader and step; `loaders` are further ones, by their numbers.
        program: what the script does.
        seed: of everything random.
        gpus: of each rank; none where only the truth is wanted.
        see: takes what is seen from outside: batches, evaluations and saves.
        to_ns: seconds of the stream to the clock's.
        without: kinds of acts that are left out, to try what that brings.
    """

    def __init__(
        self,
        job: Job,
        program: Program,
        seed: str,
        gpus: list[list[GpuModel]] | None = None,
        see: Callable[[float, Sample], None] | None = None,
        to_ns: Callable[[float], int] = lambda seconds: round(seconds * 1e9),
        loaders: dict[int, Loading] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.job = job
        self.loadings = {TRAIN_LOADER: job.loading, **(loaders or {})}
        self.without = without
        self.cores = Cores(job.host)
        self.cores.training_threads = float(job.ranks)
        self.rng = random.Random(f"{seed} program")
        self._see, self._ns = see, to_ns
        workers = sum(loading.workers for loading in self.loadings.values())
        self.seen_job = job.with_loading(workers=workers)
        self.ranks = [
            Actor(self.seen_job, index, self.cores, gpus[index] if gpus else [], random.Random(f"{seed} rank {index}"))
            for index in range(job.ranks)
        ]
        for rank in self.ranks:
            rank.queues = self._queues(rank)
            rank.queue = rank.queues[TRAIN_LOADER]
        self.generation = 0
        self.time = 0.3
        self.steps = 0
        self.samples = 0
        self.ended: float | None = None
        """When the script was over."""
        self.trained_at: float | None = None
        self.stood_still: list[tuple[float, float]] = []
        """Where it truly hangs."""
        self.loader_changes: list[tuple[float, dict[str, object]]] = []
        self.model_changes: list[tuple[float, dict[str, object]]] = []
        self._iterations = 0
        self._acts = program(self)

    def advance(self) -> None:
        """The next act, or a quarter of a second in which nobody is there any more."""
        if self.ended is None and next(self._acts, self) is self:
            self.ended = min(rank.now for rank in self.ranks)
        if self.ended is not None:
            for rank in self.ranks:
                rank.now += 0.25
        self.time = min(rank.now for rank in self.ranks)
        self.cores.advance(self.time)

    @property
    def now(self) -> float:
        """How far all ranks got, in seconds."""
        return min(rank.now for rank in self.ranks)

    # ---- steps

    def step(
        self,
        loader: int | None = TRAIN_LOADER,
        *,
        micro: int = 1,
        times: float = 1.0,
        asks: bool | None = None,
        optimizer: bool = True,
        also: tuple[int, ...] = (),
        offloaded_seconds: float = 0.0,
    ) -> Acts:
        """One optimizer step of all ranks.

        Args:
            loader: which is read, None for none.
            micro: batches of it, each with its backward.
            times: this many times as long on the GPU as `job` says.
            asks: for the loss; as `job` says where None.
            optimizer: whether an optimizer of torch's steps.
            also: loaders of which one batch is read in addition.
            offloaded_seconds: that the optimizer computes on the CPU, the GPU idle.
        """
        computing = self.job.computing
        size = 0
        for part in range(micro):
            for each in (*(() if loader is None else (loader,)), *(also if part == 0 else ())):
                self._take(each)
                size += self.loadings[each].batch_size
            slower = [rank.rng.lognormvariate(0.0, computing.spread) for rank in self.ranks]
            for rank, own in zip(self.ranks, slower, strict=True):
                seconds = computing.gpu_seconds * times * own * rank.computing_times
                start = rank.now
                took = rank.launch(ALL_REDUCE, seconds, self._slower)
                self._record(rank, wire.BACKWARD, start + took["forward"], rank.now)
            if micro > 1:
                yield
        reduced = max(rank.gpu_free for rank in self.ranks)
        for rank in self.ranks:
            if len(self.ranks) > 1:
                rank.meet(reduced)
            start = rank.now
            if offloaded_seconds and "code" not in self.without:
                rank.drain("optimizer")
                rank.run_for(rank.now + offloaded_seconds, "optimizer", 1.0)
            rank.launch(OPTIMIZER, computing.gpu_seconds * times, self._slower)
            if optimizer:
                self._record(rank, wire.OPTIMIZER, start, rank.now, ident=1)
            if computing.asks if asks is None else asks:
                rank.drain("sync")
            self._ripen(rank)
        self.steps += 1
        self.samples += (size or self.job.loading.batch_size) * len(self.ranks)
        self._iterations += loader is None
        self.trained_at = self.trained_at if self.trained_at is not None else self.now
        if loader is None and self._see is not None and self._iterations >= ITERATIONS_SEEN_AFTER:
            moment, name = self.ranks[0].now, trainer_name(0, self.generation)
            self._see(moment, BatchCount(name, self._ns(moment), NO_LOADER, "train", self._iterations))
        yield

    def read(self, loader: int = TRAIN_LOADER, *, seconds: float = 0.0, gpu_share: float = 0.0) -> Acts:
        """A batch that is not trained on: it is skipped, or computed on for this many seconds without a backward."""
        self._take(loader)
        for rank in self.ranks:
            if seconds:
                rank.compute_on_gpu(seconds * gpu_share, 0.6)
                rank.run_for(rank.now + seconds, "forward", 0.9)
        yield

    def iterate(self, loader: int = TRAIN_LOADER, loading: Loading | None = None) -> None:
        """A new iterator: whatever was left of the last one is never read."""
        if loading is not None:
            self.loadings[loader] = loading
        for rank in self.ranks:
            rank.queues[loader] = self._queue(rank, loader)
            self._join(rank)

    def end_pass(self, loader: int = TRAIN_LOADER) -> None:
        """The `next()` that finds the epoch over."""
        for rank in self.ranks:
            moment, number = rank.now + ITERATOR_SECONDS, rank.numbers[loader]
            self._record(rank, wire.NEXT, rank.now, moment, loader, wire.STOPPED, number, -1)
            rank.run_for(moment, "wait", 1.0)

    # ---- what is no step

    def evaluate(
        self,
        batches: int,
        seconds: float,
        gpu_share: float,
        *,
        loader: int = EVAL_LOADER,
        leaves: bool = False,
        sees_waits: bool = True,
    ) -> Acts:
        """An evaluation of this many batches in this many seconds; what the GPU does not take of them is waiting.

        Args:
            batches: of its loader.
            seconds: in all.
            gpu_share: in which the GPU computes.
            loader: that is read.
            leaves: by `break`: no `next()` ever finds the epoch over.
            sees_waits: False where the rest is own code behind a batch, not a wait for it.
        """
        if "eval" in self.without:
            return
        self.drain()
        starts = [rank.now for rank in self.ranks]
        each = seconds / batches
        for rank in self.ranks:
            rank.iterator += 1
            rank.numbers[loader] = rank.iterator
            self._record(rank, wire.ITER, rank.now, rank.now, loader, 0, rank.iterator, 2)
            self._seen_phase(rank, "eval", rank.now, None, loader)
        waited = 0.0
        for place in range(batches):
            for rank in self.ranks:
                entered = rank.now
                wait = each * (1.0 - gpu_share) if sees_waits else 1e-3
                rank.run_for(entered + wait, "eval-wait", 0.2)
                waited += wait
                self._record(rank, wire.NEXT, entered, rank.now, loader, 0, rank.numbers[loader], 64)
                self._seen_wait(rank, loader, "eval", entered, place)
                rank.compute_on_gpu(each * gpu_share, 0.55)
                rank.drain("eval")
                if entered + each > rank.now:
                    rank.run_for(entered + each, "eval", 1.0)
            yield
        for rank, start in zip(self.ranks, starts, strict=True):
            if not leaves:
                moment = rank.now + ITERATOR_SECONDS
                self._record(rank, wire.NEXT, rank.now, moment, loader, wire.STOPPED, rank.numbers[loader], -1)
                rank.run_for(moment, "eval-wait", 1.0)
            self._seen_phase(rank, "eval", start, rank.now, loader, batches, waited / len(self.ranks))

    def save(self, seconds: float, *, cores: float = 0.3, write: float = 3e8, only: int | None = None) -> Acts:
        """torch.save, which the hook times from its start."""
        if "save" in self.without:
            return
        self.drain()
        starts = [rank.now for rank in self.ranks]
        for rank in self._those(only):
            self._record(rank, wire.BEGUN, rank.now, rank.now, 1, 0, wire.SAVE, 0)
            self._seen_phase(rank, "checkpoint", rank.now, None)
        about = About(160, "torch.save(state, path)", write_bytes_per_second=write)
        yield from self._spend(seconds, "save", cores, about, only=only)
        for rank in self._those(only):
            self._record(rank, wire.SAVE, starts[rank.index], rank.now, 1, 0, round(write * seconds), 0)
            self._seen_phase(rank, "checkpoint", starts[rank.index], rank.now)

    def compile(self, seconds: float, *, recorded: bool = True) -> Acts:
        """Dynamo and Inductor compile, with a core or more."""
        if "compile" in self.without:
            return
        starts = [rank.now for rank in self.ranks]
        for rank in self.ranks:
            if recorded:
                self._record(rank, wire.BEGUN, rank.now, rank.now, 0, 0, wire.COMPILE, 0)
        about = About(124, "logits = model(images)", moves=False)
        yield from self._spend(seconds, "compile", 1.0, about)
        for rank, start in zip(self.ranks, starts, strict=True):
            if recorded:
                self._record(rank, wire.COMPILE, start, rank.now)

    def log(self, seconds: float, *, only: int | None = None) -> Acts:
        """Writes its metrics, in the loop."""
        if "log" in self.without:
            return
        for rank in self._those(only):
            rank.run_for(rank.now + seconds * rank.rng.uniform(0.9, 1.1), "log", 0.4)
        yield

    def code(
        self,
        seconds: float,
        about: About,
        *,
        cores: float = 1.0,
        gpu_share: float = 0.0,
        intensity: float = 0.6,
        phase: str = "other",
        only: int | None = None,
        kind: str = "code",
    ) -> Acts:
        """Whatever else the script does for a while, `gpu_share` of it on the GPU. Its ranks wait for `only`."""
        if kind in self.without:
            return
        starts = [rank.now for rank in self.ranks]
        seen = {"eval": "eval", "save": "checkpoint"}.get(phase)
        for rank in self._those(only) if seen is not None else ():
            self._seen_phase(rank, str(seen), rank.now, None)
        yield from self._spend(seconds, phase, cores, about, gpu_share, intensity, only)
        for rank in self._those(only) if seen is not None else ():
            self._seen_phase(rank, str(seen), starts[rank.index], rank.now)

    def hang(self, seconds: float, about: About, *, spins: bool = False, phase: str = "wait") -> Acts:
        """Nothing comes any more: a deadlock, or a collective that spins."""
        self.stood_still.append((self.now, self.now + seconds))
        share = 1.0 if spins else 0.0
        yield from self._spend(seconds, phase, share, about, share, SPINNING)

    def drain(self) -> None:
        """Waits for the GPUs."""
        for rank in self.ranks:
            rank.drain("sync")

    def facts(self, **changes: object) -> None:
        """The model's facts are others from now on."""
        self.model_changes.append((self.now, changes))

    def shapes(self, count: int) -> None:
        """The hook has seen this many shapes of batches by now."""
        self.loader_changes.append((self.now, {"batch_shapes": count}))

    # ---- below

    def _spend(
        self,
        seconds: float,
        phase: str,
        cores: float,
        about: About,
        gpu_share: float = 0.0,
        intensity: float = 0.6,
        only: int | None = None,
    ) -> Acts:
        """Time passes in slices, so that the stream is never far ahead of its sensors."""
        ends = {rank.index: rank.now + seconds for rank in self._those(only)}
        last = max(ends.values())
        while any(rank.now < ends.get(rank.index, last) for rank in self.ranks):
            for rank in self.ranks:
                is_busy = rank.index in ends
                until = min(ends.get(rank.index, last), rank.now + GPU_SLICE_SECONDS)
                share, line = (gpu_share, about) if is_busy else (1.0, BARRIER)
                drawn = intensity if is_busy else SPINNING
                with rank.at(line):
                    if share and until > rank.gpu_free:
                        rank.compute_on_gpu((until - max(rank.now, rank.gpu_free)) * share, drawn)
                    rank.run_for(until, phase if is_busy else "other", cores if is_busy else 1.0)
            yield

    def _those(self, only: int | None) -> list[Actor]:
        return [rank for rank in self.ranks if only is None or rank.index == only]

    def _take(self, loader: int) -> None:
        loading = self.loadings[loader]
        job = self.job.with_loading(**{name: getattr(loading, name) for name in Loading.__dataclass_fields__})
        for rank in self.ranks:
            rank.job, rank.queue = job, rank.queues[loader]
        if len(self.ranks) > 1:
            self.cores.known_until = self.now
        for rank in sorted(self.ranks, key=lambda rank: rank.now):
            queue = rank.queue
            if queue.epochs == 0 or queue.is_last:
                moment = rank.now + ITERATOR_SECONDS
                if queue.epochs:
                    number = rank.numbers[loader]
                    self._record(rank, wire.NEXT, rank.now, moment, loader, wire.STOPPED, number, -1)
                    rank.run_for(moment, "wait", 1.0)
                rank.iterator += 1
                self._record(rank, wire.ITER, rank.now, rank.now, loader, 0, rank.iterator, loading.workers)
                rank.numbers[loader] = rank.iterator
            queue.enter(rank.now)
        self.cores.advance_until(lambda: not any(rank.queue.is_waited_for for rank in self.ranks))
        for rank in self.ranks:
            entered, returned, gap = rank.take()
            number, size = rank.numbers[loader], loading.batch_size
            self._record(rank, wire.NEXT, entered, returned, loader, wire.GRAD, number, size)
            self._seen_wait(rank, loader, "train", entered, rank.queue.position)
            start = rank.now
            held = rank.copy(1.0)
            self._record(rank, wire.COPY, start, start + held)
            rank.waits_to_ripen.append((loader, self._ns(entered), gap, max(rank.now, rank.gpu_free)))
            rank.job = self.seen_job

    def _ripen(self, rank: Actor) -> None:
        """The hook asks for event pairs two steps later, never waiting for them."""
        kept = RIPE_AFTER * len(self.loadings)
        while len(rank.waits_to_ripen) > kept and rank.waits_to_ripen[0][3] <= rank.now:
            loader, start_ns, gap, _ = rank.waits_to_ripen.pop(0)
            self._record(rank, wire.GAP, rank.now, rank.now, loader, 0, start_ns, round(gap * 1e9))

    def _queues(self, rank: Actor) -> dict[int, BatchQueue]:
        rank.queues = {loader: self._queue(rank, loader) for loader in self.loadings}
        self._join(rank)
        return rank.queues

    def _queue(self, rank: Actor, loader: int) -> BatchQueue:
        times = 1.0
        if self.job.slow_rank is not None and self.job.slow_rank[0] == rank.index:
            times = self.job.slow_rank[1]
        return BatchQueue(self.loadings[loader], self.cores, rank.rng, times)

    def _join(self, rank: Actor) -> None:
        """Workers are numbered through, over all loaders of a process."""
        parts, first = tuple(rank.queues.values()), 0
        for loader, queue in rank.queues.items():
            queue.first_worker, queue.of_one_process = first, parts
            first += self.loadings[loader].workers

    def _slower(self, time: float) -> float:
        times = 1.0
        for fault in self.job.faults:
            if time >= fault.start and fault.kind == "share":
                times /= 1.0 - fault.amount
            elif time >= fault.start and fault.kind == "heat" and time % 10.0 < 3.0:
                times /= 0.88
        return times

    def _record(
        self,
        rank: Actor,
        kind: int,
        start: float,
        end: float,
        ident: int = 0,
        flags: int = 0,
        a: int = -1,
        b: int = -1,
    ) -> None:
        if rank.gpus:
            rank.records.append((kind, flags, ident, THREAD, self._ns(start), self._ns(end), a, b))

    def _seen_wait(self, rank: Actor, loader: int, role: str, entered: float, place: int) -> None:
        if self._see is not None:
            name, start, end = trainer_name(rank.index, self.generation), self._ns(entered), self._ns(rank.now)
            self._see(rank.now, BatchWait(name, loader, role, start, end, place))  # type: ignore[arg-type]

    def _seen_phase(
        self,
        rank: Actor,
        kind: str,
        start: float,
        end: float | None,
        loader: int | None = None,
        batches: int | None = None,
        waited: float | None = None,
    ) -> None:
        if self._see is None:
            return
        moment, line = start if end is None else end, 150 if kind == "eval" else 160
        span = PhaseSpan(
            trainer_name(rank.index, self.generation),
            kind,  # type: ignore[arg-type]
            self._ns(start),
            None if end is None else self._ns(end),
            loader=loader,
            batches=batches,
            wait_seconds=waited,
            file=SCRIPT,
            line=line,
        )
        self._see(moment, span)


BARRIER = About(171, "dist.barrier()")
"""Where the other ranks are while one does something alone."""
