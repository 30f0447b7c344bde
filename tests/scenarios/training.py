"""The ranks of a run in lock-step, step after step, telling what a hook would tell."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gpuwatch.samples import BatchWait, GpuGap, PhaseSpan, RunMemory, Sample, StepEnd, WorkerFetch
from gpuwatch.sources.simulator.model import GpuModel
from tests.scenarios.job import MIB, Fault, Job, Pause
from tests.scenarios.loading import Cores
from tests.scenarios.loop import IN_STEP, PARTS, Rank

TRAIN_LOADER, EVAL_LOADER = 1, 2
SCRIPT = "/simulated/train.py"
FIRST_PID = 4711
START_TICKS = 8_640_000
ALL_REDUCE = slice(0, 7)
"""Forward and backward: the gradients are exchanged behind them."""
OPTIMIZER = slice(7, 8)
ALLOCATED_BYTES = 4096 * MIB
RESTART_SECONDS = 20.0
HOT_SHARE, HOT_CLOCK_LOST = 0.30, 0.12
RIPE_AFTER = 2
"""Steps after which the hook asks whether the GPU has passed an event pair."""

Emit = Callable[[float, Sample], None]


def trainer_name(rank: int, generation: int = 0) -> str:
    """As the link would name it."""
    return f"{FIRST_PID + rank + 100 * generation}.{START_TICKS}"


def is_hot(time: float) -> bool:
    """Whether heat slows the GPU at a moment, where it does so for 30% of the time in turns of 10 s."""
    return time % 10.0 < 10.0 * HOT_SHARE


@dataclass(slots=True)
class _Due:
    """When a pause comes next."""

    pause: Pause
    at_step: int
    at_time: float
    left: int


def worker_pid(rank: Rank, worker: int) -> int:
    """Of one of a rank's workers; each epoch has its own where they do not persist."""
    again = 0 if rank.job.loading.persistent else 50 * rank.queue.epochs
    return 9000 + 100 * rank.index + worker + again


class Training:
    """A run; `time` is how far all ranks got.

    Args:
        job: what runs.
        seed: of everything random.
        gpus: of each rank; none where only the truth is wanted.
        emit: takes a sample and the moment at which a monitor would get it.
        to_ns: seconds of the stream to the clock's.
    """

    def __init__(
        self,
        job: Job,
        seed: str,
        gpus: list[list[GpuModel]] | None = None,
        emit: Emit | None = None,
        to_ns: Callable[[float], int] = lambda seconds: round(seconds * 1e9),
    ) -> None:
        self.job = job
        self._emit = emit
        self._ns = to_ns
        self.cores = cores = Cores(job.host)
        cores.training_threads = float(job.ranks)
        self.ranks = [
            Rank(job, index, cores, gpus[index] if gpus else [], random.Random(f"{seed} rank {index}"))
            for index in range(job.ranks)
        ]
        self._rng = random.Random(f"{seed} training")
        self.steps = 0
        self.time = 0.0
        self.generation = 0
        self.stopped_at: float | None = None
        self._due = [
            _Due(pause, pause.every_steps or 0, pause.first_seconds or pause.every_seconds, pause.times)
            for pause in job.pauses
        ]
        self._stop = self._fault("hang") or self._fault("stall")
        self._restart = self._fault("restart")

    def change(self, job: Job) -> None:
        """Goes on as another job, which has no pauses and never stops."""
        self.job = job
        self.cores.host = job.host
        for rank in self.ranks:
            rank.change(job)
        self._due, self._stop, self._restart = [], None, None

    def advance(self) -> None:
        """One step of all ranks, or a quarter of a second of a standstill."""
        if self._stop is not None and self.time >= self._stop.start:
            self._stand(self._stop)
        elif self._restart is not None and self.time >= self._restart.start and not self.generation:
            self._begin_anew()
        else:
            self._step()
        self.cores.advance(self.time)

    def _fault(self, kind: str) -> Fault | None:
        return next((fault for fault in self.job.faults if fault.kind == kind), None)

    def _stand(self, fault: Fault) -> None:
        """A collective spins on the GPU and in its thread; anything else sleeps."""
        if self.stopped_at is None:
            self.stopped_at = self.time
        for rank in self.ranks:
            if fault.kind == "hang":
                rank.meet(self.time + 0.25)
                rank.run_for(self.time + 0.25, "backward", 1.0)
            else:
                rank.run_for(self.time + 0.25, "wait", 0.0)
            rank.flush()
        self.time += 0.25

    def _begin_anew(self) -> None:
        """The script is started again after a while: other processes, the same GPUs."""
        self.generation = 1
        self.steps = 0
        begin = self.time + RESTART_SECONDS
        for rank in self.ranks:
            fresh = Rank(self.job, rank.index, rank.cores, rank.gpus, rank.rng)
            rank.flush()
            fresh.now = fresh.step_start = fresh.gpu_free = begin
            fresh.received_bytes = rank.received_bytes
            fresh.log = rank.log
            self.ranks[rank.index] = fresh
        self.time = begin

    def _slower(self, time: float) -> float:
        """How much longer a kernel takes at a moment."""
        times = 1.0
        for fault in self.job.faults:
            if time < fault.start:
                continue
            if fault.kind == "heat" and is_hot(time):
                times /= 1.0 - HOT_CLOCK_LOST
            elif fault.kind == "slower":
                times *= 1.0 + fault.amount
            elif fault.kind == "share":
                times /= 1.0 - fault.amount
            elif fault.kind == "brake" and (time - fault.start) % 60.0 < 2.5:
                times *= 2.0
        return times

    def _step(self) -> None:
        self.steps += 1
        if len(self.ranks) > 1:
            self.cores.known_until = min(rank.now for rank in self.ranks)
        spread = self.job.computing.spread
        slower = [rank.rng.lognormvariate(0.0, spread) for rank in self.ranks]
        for rank in sorted(self.ranks, key=lambda rank: rank.now):
            rank.queue.enter(rank.now)
        self.cores.advance_until(lambda: not any(rank.queue.is_waited_for for rank in self.ranks))
        fetched = []
        for rank, times in zip(self.ranks, slower, strict=True):
            own = self.job.computing.gpu_seconds * rank.computing_times * times
            entered, returned, gap = rank.take()
            size = self.job.loading.last_batch_share if rank.queue.is_last else 1.0
            held = rank.copy(size)
            took = rank.launch(ALL_REDUCE, own * size, self._slower)
            fetched.append((entered, returned, gap, held, own * size, took, size))
        reduced = max(rank.gpu_free for rank in self.ranks)
        for rank, (entered, returned, gap, held, own, took, size) in zip(self.ranks, fetched, strict=True):
            if len(self.ranks) > 1:
                rank.meet(reduced)
            took |= rank.launch(OPTIMIZER, own, self._slower)
            samples = round(self.job.loading.batch_size * size)
            rank.end_step(returned - entered, gap, samples)
            rank.totals.ends.append(rank.now)
            if self._emit is not None:
                self._tell(rank, entered, returned, gap, held, took, samples)
            rank.step_start, rank.phase_seconds = rank.now, 0.0
            if self.job.computing.asks:
                rank.drain("sync")
        for due in self._due:
            if due.left and self._is_due(due):
                self._pause(due)
        self.time = min(rank.now for rank in self.ranks)

    def _is_due(self, due: _Due) -> bool:
        if due.pause.every_steps:
            return self.steps % due.pause.every_steps == 0
        return self.ranks[0].now >= due.at_time

    def _pause(self, due: _Due) -> None:
        pause = due.pause
        due.left -= 1
        due.at_time = self.ranks[0].now + pause.every_seconds
        seconds = pause.seconds * (1.0 + self._rng.gauss(0.0, 0.05))
        for rank in self.ranks:
            entered = max(rank.now, rank.gpu_free) if pause.kind in ("eval", "checkpoint") else rank.now
            if self._emit is not None and pause.kind not in IN_STEP:
                self._tell_phase(rank, pause, entered, None, [])
            waits = rank.pause(pause, seconds)
            if self._emit is not None and pause.kind not in IN_STEP:
                self._tell_phase(rank, pause, entered, rank.now, waits)

    def _tell(
        self,
        rank: Rank,
        entered: float,
        returned: float,
        gap: float,
        held: float,
        took: dict[str, float],
        samples: int,
    ) -> None:
        emit, ns, trainer = self._emit, self._ns, trainer_name(rank.index, self.generation)
        assert emit is not None
        for fetch in rank.queue.fetches:
            made = WorkerFetch(
                trainer,
                worker_pid(rank, fetch.worker),
                fetch.worker,
                ns(fetch.start),
                ns(fetch.end),
                fetch.cpu_seconds,
                TRAIN_LOADER,
            )
            emit(fetch.end, made)
        position = rank.queue.position
        emit(returned, BatchWait(trainer, TRAIN_LOADER, "train", ns(entered), ns(returned), position))
        emit(
            rank.now,
            StepEnd(
                trainer=trainer,
                number=self.steps,
                start_ns=ns(rank.step_start),
                end_ns=ns(rank.now),
                wait_seconds=returned - entered,
                loader=TRAIN_LOADER,
                samples=samples,
                epoch_position=position,
                phase_seconds=rank.phase_seconds,
                copy_seconds=held,
                forward_seconds=took["forward"],
                backward_seconds=took["backward"],
                optimizer_seconds=took["optimizer"],
            ),
        )
        rank.gaps.append((self.steps, gap, max(rank.now, rank.gpu_free)))
        while rank.gaps[0][0] <= self.steps - RIPE_AFTER:
            number, earlier, through = rank.gaps.popleft()
            emit(max(returned, through), GpuGap(trainer, number, earlier))
        if self.steps % 20 == 1:
            emit(rank.now, self._memory(rank, trainer))

    def _memory(self, rank: Rank, trainer: str) -> RunMemory:
        total = self.job.gpu.memory_total_bytes
        creep = self._fault("creep")
        allocated = ALLOCATED_BYTES + round(creep.amount * MIB * self.steps) if creep else ALLOCATED_BYTES
        reserved = max(round(total * (self.job.computing.memory_share - 0.02)), allocated)
        return RunMemory(
            trainer=trainer,
            time_ns=self._ns(rank.now),
            allocated_peak_bytes=allocated if creep else round(reserved * 0.93),
            reserved_peak_bytes=reserved,
            total_bytes=total,
            alloc_retries=0,
            out_of_memory=0,
        )

    def _tell_phase(
        self, rank: Rank, pause: Pause, start: float, end: float | None, waits: list[tuple[float, float]]
    ) -> None:
        emit, ns, trainer = self._emit, self._ns, trainer_name(rank.index, self.generation)
        assert emit is not None and pause.kind != "log" and pause.kind != "code"
        is_eval = pause.kind == "eval"
        for place, (entered, returned) in enumerate(waits):
            emit(returned, BatchWait(trainer, EVAL_LOADER, "eval", ns(entered), ns(returned), place))
        emit(
            start if end is None else end,
            PhaseSpan(
                trainer=trainer,
                kind=pause.kind,
                start_ns=ns(start),
                end_ns=None if end is None else ns(end),
                loader=EVAL_LOADER if is_eval else None,
                batches=pause.batches or None,
                wait_seconds=sum(returned - entered for entered, returned in waits) if is_eval and end else None,
                bytes=500 * MIB if pause.kind == "checkpoint" else None,
                file=SCRIPT,
                line=160,
            ),
        )


assert len(PARTS) == ALL_REDUCE.stop + 1
