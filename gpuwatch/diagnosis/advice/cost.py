"""What a batch and a step cost on this machine, and how long a step takes with a given number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from gpuwatch.diagnosis.advice.blocks import Block, batches_per_step, blocks_of
from gpuwatch.diagnosis.advice.cores import (
    allowed_cores,
    batch_cpu_share,
    batch_demand_share,
    batch_threads,
    cores_left,
    is_shared,
)
from gpuwatch.diagnosis.advice.sampled import is_sampled, worker_busy
from gpuwatch.diagnosis.advice.starvation import HANDOVER_SECONDS, Starvation, train_busy_percent
from gpuwatch.diagnosis.advice.stream import ratio_reach
from gpuwatch.diagnosis.finding import Gain, Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import cpu_cores
from gpuwatch.timeline.windows import RankWindow

SHIPPING_SECONDS = (0.001, 0.003)
"""What a worker spends on a batch beyond loading it: 0.8-2.8 ms over six runs with one and two workers."""
CPU_HANDOVER_SECONDS = (0.0009, 0.0024)
"""Of a ready batch where training computes on the workers' cores: 19 of them on two cores, batches of 1 and of 8."""
COLD_SECONDS, WARM_SHARE = 0.0005, 0.7
"""What a step on the CPU loses after a long wait to cold caches, at most: one of 1.63 ms took 1.12 ms without it."""
LEAST_FREE_CORES = 0.25
FULL_CPU_PERCENT = 90.0
LONGEST_RAMP = 0.03
"""More of the GPU's idle time than that has other causes."""
FEW_ROUNDS = 10
"""Batches that an epoch has for each worker, at most, where whole rounds of them count."""
HIGHEST_REACH = 0.5
"""Of a speed-up: stretches that differ by more say that it is not known."""
ONE_THREAD = 0.2
"""What a training of one thread may seem to keep busy beyond its core, where its threads are not known."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Costs of the run's critical rank.

    `pace_seconds` is the first quartile of the computing: the pace that loading has to keep up with.
    `allowed_cores` is this rank's share of what the process may use, `cores` what other processes leave of it: at
    worst and at best, which differ where the machine is full and the scheduler divides. `batch_cpu_share` is CPU
    seconds per second of making a batch: 1 computes, 0 waits for storage; `batch_demand_share` adds the seconds
    that it stood in line for a core. `shared`: other work keeps 30 % of the cores busy. `training_cores_busy` is
    what the training keeps busy while it computes. All seconds are per step, which takes several batches where
    gradients are accumulated; `sampled` ones are per batch, for batches are what is counted from outside.
    """

    blocks: tuple[Block, ...]
    pace_seconds: float
    batches_per_step: int
    workers: int
    cores: tuple[float, float]
    allowed_cores: float
    batch_cpu_share: float
    batch_cpu_known: bool
    training_cores_busy: float
    on_gpu: bool
    contention: tuple[float, float]
    batch_demand_share: float
    shared: bool
    batch_blocked_share: float = 0.0  # of making a batch, waiting for storage; 0 where that is not known
    sampled: bool = False
    batches_per_epoch: int | None = None
    batch_threads: float = 1.0  # CPU seconds of the worker's process for each of the thread that makes the batch
    ramp_share: float = (
        0.0  # of the step: idle until the first kernels behind a wait are launched, which it takes along
    )

    @property
    def period_seconds(self) -> float:
        """Mean training time of a step."""
        return fmean(block.period for block in self.blocks)

    @property
    def batch_seconds(self) -> float:
        """Mean seconds in which one worker makes the batches of a step."""
        return fmean(block.batch for block in self.blocks)

    @property
    def batch_cpu_seconds(self) -> float:
        """CPU seconds of making the batches of a step."""
        return self.batch_seconds * self.batch_cpu_share

    @property
    def compute_seconds(self) -> float:
        """Mean seconds of a step without any wait for data."""
        return fmean(0.5 * (block.compute_low + block.compute_high) for block in self.blocks)

    @property
    def best_pace_seconds(self) -> float:
        """The shortest step that computing and the allowed cores permit, however many workers there are."""
        loading = self.batch_cpu_seconds * self.contention[0]
        if self.on_gpu:
            cores = loading / max(LEAST_FREE_CORES, self.allowed_cores - self.training_cores_busy)
        else:
            cores = (loading + self.pace_seconds * self.training_cores_busy) / self.allowed_cores
        return max(self.pace_seconds, cores, 1e-6)

    def limits(self, block: Block, workers: int, *, slow: bool) -> dict[str, float]:
        """Each bound on the step's seconds with this many workers, by what sets it: "compute", "workers", "cores".

        The cores bound: what loading and, without a GPU, computing need of them per step. Loading next to a
        computation costs more than its own seconds, because threads that work in lockstep wait for the one that
        was put off its core: `contention` is the measured range of that factor.
        """
        compute = block.compute_high if slow else self._warm(block)
        factor = self.contention[1] if slow else self.contention[0]
        computing = 0.0 if self.on_gpu else compute * self.training_cores_busy
        # GPU work still queued hides the handover unless the loop waits for the GPU every step.
        best, worst = (0.0, HANDOVER_SECONDS) if self.on_gpu else CPU_HANDOVER_SECONDS
        handover = (worst if slow else best) * self.batches_per_step
        shipping = SHIPPING_SECONDS[1 if slow else 0] * self.batches_per_step
        making = (block.batch * (self._crowding(workers) if slow else 1.0) + shipping) / workers
        return {
            "compute": compute + handover,
            "workers": max(making, block.period * self._rounds_kept(workers)) if slow else making,
            "cores": (block.batch * self.batch_cpu_share * self.batch_threads * factor + computing)
            / self.loading_cores(slow=slow),
        }

    def _rounds_kept(self, workers: int) -> float:
        """The rounds of an epoch with this many workers over those with the present ones; 0 where rounds are many.

        Workers begin an epoch together: with 8 or with 9 of them 31 batches take four times as long as one.
        """
        batches = self.batches_per_epoch
        if not batches or not self.workers or batches > FEW_ROUNDS * workers:
            return 0.0
        return min(1.0, math.ceil(batches / workers) / math.ceil(batches / self.workers))

    def _warm(self, block: Block) -> float:
        """The computing at best, once no wait comes before it."""
        if self.on_gpu:
            return max(block.compute_low - self.ramp_share * block.period, 0.0)
        return max(block.compute_low - COLD_SECONDS, WARM_SHARE * block.compute_low)

    def _crowding(self, workers: int) -> float:
        """How much longer a worker takes at worst, because the threads of the training compete for its core.

        Half of what an even division among all of them would cost: they do not all compute all the time.
        """
        threads = 0.0 if self.on_gpu else self.training_cores_busy
        computing = max(1.0, workers * self.batch_cpu_share)
        crowd = max(1.0, (threads + computing) / self.allowed_cores)
        return 1.0 + self.batch_cpu_share * (crowd - 1.0) / 2.0

    def loading_cores(self, *, slow: bool) -> float:
        """What loading (and without a GPU, training too) may use: with a GPU its thread keeps what it uses."""
        cores = self.cores[0 if slow else 1]
        return max(LEAST_FREE_CORES, cores - self.training_cores_busy) if self.on_gpu else cores

    def uncrowded(self) -> StepCost:
        """The same for workers that each have a core: a batch then takes its CPU seconds, and its wait for storage."""
        share = min(1.0, self.batch_cpu_share + self.batch_blocked_share)
        computing = self.batch_cpu_share / share if share > 0.0 else 1.0
        return replace(
            self,
            blocks=tuple(replace(block, batch=block.batch * share) for block in self.blocks),
            batch_cpu_share=computing,
            batch_demand_share=computing,
        )

    def cheaper(self, share: float) -> StepCost:
        """The same for batches that take a share less of the workers' time."""
        left = 1.0 - min(max(share, 0.0), 1.0)
        return replace(self, blocks=tuple(replace(block, batch=block.batch * left) for block in self.blocks))

    def reading_less(self, share: float) -> StepCost:
        """The same for batches that wait a share of their time less for storage, and compute as much as they do."""
        left = max(1.0 - min(max(share, 0.0), 1.0), self.batch_cpu_share, 1e-3)
        computing = min(1.0, self.batch_cpu_share / left)
        return replace(self.cheaper(1.0 - left), batch_cpu_share=computing, batch_demand_share=computing)

    def gain(self, workers: int) -> Gain:
        """The range of the speed-up with this many workers: from the spread of the blocks of its window."""
        low, high = self._speed_up(workers, slow=True)[0], self._speed_up(workers, slow=False)[1]
        return Gain(round(low, 3), round(max(low, high), 3), self.bound(workers))

    def _speed_up(self, workers: int, *, slow: bool) -> tuple[float, float]:
        """All steps over what they would take: at least and at most. What samples leave open are no stretches."""
        then = [max(self.limits(block, workers, slow=slow).values()) for block in self.blocks]
        if self.sampled:
            each = [block.period / seconds for block, seconds in zip(self.blocks, then, strict=True)]
            return min(each), max(each)
        mean = sum(block.period for block in self.blocks) / sum(then)
        parts = [(seconds, block.period) for block, seconds in zip(self.blocks, then, strict=True)]
        reach = min(ratio_reach(parts, drifting=True) or 0.0, HIGHEST_REACH * mean)
        return mean - reach, mean + reach

    def bound(self, workers: int) -> str:
        """What limits the speed then, in words."""
        totals: dict[str, float] = {}
        for block in self.blocks:
            for name, seconds in self.limits(block, workers, slow=True).items():
                totals[name] = totals.get(name, 0.0) + seconds
        name = max(totals, key=lambda key: totals[key])
        if name == "compute":
            return f"then the {'GPU' if self.on_gpu else 'computation itself'} sets the pace"
        if name == "workers":
            return f"then limited by the {f'{workers} workers' if workers > 1 else 'one worker'}"
        return f"then limited by the {cpu_cores(self.allowed_cores)}"


def step_cost(case: RunCase, starvation: Starvation) -> StepCost | None:
    """The costs, or None while too little is known to predict anything."""
    rank = case.run.critical
    loader = rank.train_loader
    if loader is None or loader.num_workers is None:
        return None
    workers = loader.num_workers
    full = case.host is not None and (case.host.cpu_percent or 0.0) >= FULL_CPU_PERCENT
    found, pace = blocks_of(rank, starvation, workers)
    if not found:
        return None
    share = batch_cpu_share(rank, workers, on_gpu=starvation.on_gpu)
    allowed = allowed_cores(case)
    known = 1.0 if share is None else share
    threads = rank.facts.torch_threads or (math.ceil(allowed) if is_sampled(rank) else 1)
    training = _training_cores(rank, found, workers, known, starvation, threads)
    # What training got of the cores while it computed it will get again, whatever else runs there.
    left = min(allowed, max(LEAST_FREE_CORES, cores_left(case), training))
    return StepCost(
        blocks=found,
        pace_seconds=pace,
        batches_per_step=batches_per_step(rank),
        workers=workers,
        cores=(left, allowed if full else left),
        allowed_cores=allowed,
        batch_cpu_share=known,
        batch_cpu_known=share is not None,
        training_cores_busy=training,
        on_gpu=starvation.on_gpu,
        contention=_contention(rank.facts.torch_threads or math.ceil(training - ONE_THREAD), starvation.on_gpu),
        batch_demand_share=batch_demand_share(rank, workers, known),
        shared=is_shared(case),
        batch_blocked_share=_blocked_share(rank),
        sampled=starvation.wait is not None,
        batches_per_epoch=loader.batches_per_epoch,
        batch_threads=batch_threads(rank, workers, known),
        ramp_share=_ramp_share(case, starvation),
    )


def _blocked_share(rank: RankWindow) -> float:
    """What part of making a batch waits for storage, at least: idle workers do not."""
    busy, blocked = worker_busy(rank), rank.workers.blocked_share if rank.workers is not None else None
    return 0.0 if blocked is None or busy is None else min(1.0, blocked / max(busy.value, 0.05))


def _ramp_share(case: RunCase, starvation: Starvation) -> float:
    """What the GPU idles beyond the gaps that event pairs see: those end with the wait, not with the next kernel.

    In simulation 2.14-2.20x were predicted without it and 2.23x came. Where the loop waits for the GPU each step it
    stays, and so it does in the low end.
    """
    busy = train_busy_percent(case)
    if not starvation.on_gpu or starvation.level is not Level.E3 or busy is None:
        return 0.0
    return min(LONGEST_RAMP, max(0.0, 1.0 - starvation.share - busy / 100.0))


def _training_cores(
    rank: RankWindow, found: tuple[Block, ...], workers: int, cpu_share: float, starvation: Starvation, threads: int
) -> float:
    """Cores that training keeps busy: of its computing time without a GPU, of all time with one."""
    process = rank.process
    if starvation.on_gpu:
        main = process.main_thread_cores if process else None
        if main is None:
            return 1.0
        return max(0.0, main - (cpu_share * (starvation.wait_share or 0.0) if workers == 0 else 0.0))
    tree = process.tree_cores if process else None
    period = fmean(block.period for block in found)
    compute = fmean(block.compute_high for block in found)
    if tree is None or compute <= 0.0:
        return float(threads)
    loading = fmean(block.batch for block in found) * cpu_share
    return min(threads, max(0.0, tree * period - loading) / compute)


def _contention(threads: int, on_gpu: bool) -> tuple[float, float]:
    """The range of what a CPU second of loading costs while training runs, in CPU seconds (measured on 2 cores)."""
    if on_gpu:
        return 1.0, 1.2
    return (1.2, 2.4) if threads > 1 else (1.05, 1.5)
