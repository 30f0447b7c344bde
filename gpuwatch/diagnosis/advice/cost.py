"""What a batch and a step cost on this machine, and how fast a run is with other workers or without rival threads.

The window is cut into stretches, each with the length of a step, its computing and the making of its batches; each
predicts its own gain, and their spread is the range that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, pstdev

from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE, from_share, without
from gpuwatch.diagnosis.advice.resources import (
    allowed_cores,
    batch_cpu_share,
    batch_demand_share,
    batch_threads,
    cores_left,
    is_shared,
    line_factor,
    worker_line_factor,
)
from gpuwatch.diagnosis.advice.sampled import (
    batch_period,
    epoch_start_share,
    is_sampled,
    share_of,
    train_share,
    worker_busy,
    worker_load,
)
from gpuwatch.diagnosis.advice.starvation import HANDOVER_SECONDS, Starvation, lost_interval, train_busy_percent
from gpuwatch.diagnosis.advice.stream import batches_per_step, quartiles, ratio_reach, settled, stretches
from gpuwatch.diagnosis.finding import Gain, Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.numbers import cpu_cores
from gpuwatch.timeline.stacks import is_fed, making_threads
from gpuwatch.timeline.windows import RankWindow, RunWindow, Share

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
LONG_STEP_SECONDS = 0.5
"""A second holds two of such steps at most: the rank that waited longest in it is the one that held it up."""
LEAST_COMPUTING = 0.02
UNFELT_WAIT = 0.05
"""Of the time: a rank that waits that much longer than its GPU idles has work queued meanwhile."""
UNSEEN_RAMP_SECONDS = 0.002
"""Of a step at most, where the GPU's use is not known."""
FEW_ROUNDS = 10
"""Batches that an epoch has for each worker, at most, where whole rounds of them count."""
HIGHEST_REACH = 0.5
"""Of a speed-up: stretches that differ by more say that it is not known."""
ONE_THREAD = 0.2
"""What a training of one thread may seem to keep busy beyond its core, where its threads are not known."""

BLOCKS = 12
"""The window in as many stretches, each of which predicts its own gain: their spread is the range given."""
MINUTE_ERROR = 0.05
"""Of what the GPU is busy, a minute's figure against that of four: within 5% in 12 of 13 simulated crowds."""
ERRORS = (1.0, 1.0 + MINUTE_ERROR)
AWAKE = 0.45
"""Threads that sleep through every wait get their cores back slowly on a busy machine. Kept busy by workers, the mean
computing time fell to 0.42-0.68 of what it was in four runs under heavy foreign load; on a quiet machine it stays."""

LEAST_SWITCHING, SWITCHING, MOST_CROWDED = 0.19, 0.37, 4.0
"""Share of the cores' work lost to switching, at least and at most, per worker per core beyond the first; and the
workers per core up to which that was measured."""
LEAST_SEEN, MOST_SEEN = 4.0, 10.0
"""How much faster loading became with one thread per worker where threads fought: 4x (mmdetection#6867), 6.9x
(np.linalg.svd in 4 workers on 2 cores, measured), up to 10x (transferable-samplers#12)."""
OPEN_RATIO = 1.25
"""A range whose ends lie further apart has no middle that is known: it is a hint."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Costs of the run's critical rank.

    `pace_seconds` is the first quartile of the computing: the pace that loading has to keep up with.
    `allowed_cores` is this rank's share of what the process may use, `cores` what other processes leave of it: at
    worst and at best, which differ where the machine is full and the scheduler divides. `batch_cpu_share` is CPU
    seconds per second of making a batch: 1 computes, 0 waits for storage; `batch_demand_share` adds the seconds
    that it waited for a core. `shared`: other work keeps 30% of the cores busy. `training_cores_busy` is
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
            cores = _shared_seconds(loading, self.training_cores_busy * self.period_seconds, self.allowed_cores)
        else:
            cores = (loading + self.pace_seconds * self.training_cores_busy) / self.allowed_cores
        return max(self.pace_seconds, cores, 1e-6)

    def limits(self, block: Block, workers: int, *, slow: bool) -> dict[str, float]:
        """Each bound on the step's seconds with this many workers, by what sets it: "compute", "workers", "cores".

        The cores bound: what loading and computing need of them per step: with a GPU that is the training thread, which
        needs as many seconds for each step of a quicker run. Loading next to a computation costs more than its own
        seconds, because threads that work in lockstep wait for the one that was put off its core: `contention` is the
        measured range of that factor.
        """
        compute = block.compute_high if slow else self._warm(block)
        factor = self.contention[1] if slow else self.contention[0]
        loading = block.batch * self.batch_cpu_share * self.batch_threads * factor
        cores = self.cores[0 if slow else 1]
        if self.on_gpu:
            shared = _shared_seconds(loading, self.training_cores_busy * block.period, cores)
        else:
            shared = (loading + compute * self.training_cores_busy) / cores
        # GPU work still queued hides the handover unless the loop waits for the GPU every step.
        best, worst = (0.0, HANDOVER_SECONDS) if self.on_gpu else CPU_HANDOVER_SECONDS
        handover = (worst if slow else best) * self.batches_per_step
        shipping = SHIPPING_SECONDS[1 if slow else 0] * self.batches_per_step
        making = (block.batch * (self._crowding(workers) if slow else 1.0) + shipping) / workers
        return {
            "compute": compute + handover,
            "workers": max(making, block.period * self._rounds_kept(workers)) if slow else making,
            "cores": shared,
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


def _shared_seconds(loading_seconds: float, thread_seconds: float, cores: float) -> float:
    """What a step takes on cores that its loading shares with the training thread.

    The thread needs its seconds for each step; one that spins until the GPU is ready needs no more than a core.
    """
    together = (loading_seconds + thread_seconds) / max(cores, LEAST_FREE_CORES)
    return min(together, loading_seconds / (cores - 1.0)) if cores > 1.0 else together


def step_cost(case: RunCase, starvation: Starvation) -> StepCost | None:
    """The costs, or None while too little is known to predict anything."""
    rank = case.run.critical
    loader = rank.train_loader
    if loader is None or loader.num_workers is None:
        return None
    workers = loader.num_workers
    full = case.host is not None and (case.host.cpu_percent or 0.0) >= FULL_CPU_PERCENT
    found, pace = blocks_of(case.run, starvation, workers)
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
        ramp_share=_ramp_share(case, starvation, fmean(block.period for block in found)),
    )


def _blocked_share(rank: RankWindow) -> float:
    """What part of making a batch waits for storage, at least: idle workers do not."""
    busy, blocked = worker_busy(rank), rank.workers.blocked_share if rank.workers is not None else None
    return 0.0 if blocked is None or busy is None else min(1.0, blocked / max(busy.value, 0.05))


def _ramp_share(case: RunCase, starvation: Starvation, period_seconds: float) -> float:
    """What the GPU idles beyond the gaps that event pairs see: those end with the wait, not with the next kernel.

    In simulation 2.14-2.20x were predicted without it and 2.23x came. Where the loop waits for the GPU each step it
    stays, and so it does in the low end.
    """
    if not starvation.on_gpu or starvation.level is not Level.E3:
        return 0.0
    busy = train_busy_percent(case)
    if busy is None:
        return min(LONGEST_RAMP, UNSEEN_RAMP_SECONDS / period_seconds)
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


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the window: mean seconds of a step, of its computing, and of one worker making its batches."""

    period: float
    compute_low: float
    compute_high: float
    batch: float


def blocks_of(run: RunWindow, starvation: Starvation, workers: int) -> tuple[tuple[Block, ...], float]:
    """The stretches of the critical rank, and the pace of computing."""
    if starvation.wait is not None:
        return _sampled_blocks(run, starvation, starvation.wait, workers)
    return _measured_blocks(run, starvation, workers)


def spun_share(run: RunWindow, starvation: Starvation) -> float:
    """The share of the time in which the critical rank's GPU spins because another rank waits for its batch."""
    if starvation.wait is not None:
        # A wait behind queued GPU work delays no rank: 2 ranks waited 86%, idled 7%, and 1.08x came.
        is_felt = not starvation.on_gpu or starvation.wait.value <= starvation.idle_share + UNFELT_WAIT
        return _waited_for_others(run) if is_felt else 0.0
    columns, exact_gpu = run.critical.columns, starvation.on_gpu and starvation.level is Level.E3
    own = columns.gap_seconds if exact_gpu else columns.wait_seconds
    rows = settled(run.critical, columns.period_seconds, own, _lost_to_any(run, exact_gpu=exact_gpu))
    seconds = sum(period for period, _, _ in rows)
    return sum(most - lost for _, lost, most in rows) / seconds if seconds > 0.0 else 0.0


def _lost_to_any(run: RunWindow, *, exact_gpu: bool) -> Sequence[float]:
    """What each step of the critical rank loses to the rank that lost most in it: all others waited for that one.

    In simulation 4 ranks loaded for 48 ms a step and computed for 38 ms. Each GPU idled for 8 ms of it and spun for
    another 6 ms until the last one was there: workers brought 1.36x, and 1.15x by the waits of one rank.
    """

    def lost(rank: RankWindow) -> Sequence[float]:
        return rank.columns.gap_seconds if exact_gpu else rank.columns.wait_seconds

    own, numbers = lost(run.critical), run.critical.columns.number
    most = dict(zip(numbers, own, strict=True))
    for rank in run.ranks:
        for number, seconds in zip(rank.columns.number, lost(rank), strict=True):
            if seconds > most.get(number, math.inf):
                most[number] = seconds
    return [most[number] for number in numbers]


def _measured_blocks(run: RunWindow, starvation: Starvation, workers: int) -> tuple[tuple[Block, ...], float]:
    """The stretches, and the pace of computing; none before each worker has had its turn.

    Of 32 workers that are too slow one step in a round waits, for all of them: nine steps with that one took 19 s on
    average, 32 of them 2.5 s.
    """
    rank, columns = run.critical, run.critical.columns
    exact_gpu = starvation.on_gpu and starvation.level is Level.E3
    own = columns.gap_seconds if exact_gpu else columns.wait_seconds
    lost = _lost_to_any(run, exact_gpu=exact_gpu)
    rows = settled(rank, columns.period_seconds, columns.wait_seconds, own, lost)
    if len(rows) < workers:
        return (), 0.0
    made = rank.workers.batch_seconds if rank.workers is not None else None
    batches = batches_per_step(rank)
    found, paces = [], []
    for stretch in stretches(rows, BLOCKS, max(1, workers)):
        period, wait, idle, standing = (fmean(column) for column in zip(*stretch, strict=True))
        if period <= 0.0:
            continue
        # While starved every worker is busy all the time, so one makes a step's batches in `workers` periods.
        batch = wait if workers == 0 else made * batches if made is not None else workers * period
        pace = None
        if starvation.level < Level.E3:
            low, high = (period * _computing_share(starvation, 0.0, wait / period, error) for error in ERRORS)
        elif starvation.on_gpu:
            # A GPU's queue moves its idle time into other steps than the wait's: only stretches of steps add up.
            low = max(period - standing, 0.0)
            high = max(low, min(period - idle, low + _slowest_of(run, [step - lost for step, *_, lost in stretch])))
        else:
            computing = sorted(max(step - waited, 0.0) for step, waited, *_ in stretch)
            pace, high = fmean(computing[: (len(computing) + 1) // 2]), fmean(computing)
            low = max(pace, AWAKE * high)
        paces.append(low if pace is None else pace)
        found.append(Block(period, low, high, batch))
    return tuple(found), quartiles(paces)[0] if paces else 0.0


def _slowest_of(run: RunWindow, computing: Sequence[float]) -> float:
    """How much longer the slowest rank of a step computes than the mean one, at most; 0 for one rank.

    All wait for it even where none waits for a batch. It is rarely the rank whose batch came last: in simulation 8
    ranks that computed for 104 ms, give or take 11 ms, took 122 ms a step once workers had done away with the waits.
    """
    ranks = len(run.ranks)
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) * pstdev(computing) if ranks > 1 else 0.0


def _sampled_blocks(
    run: RunWindow, starvation: Starvation, wait: Share, workers: int
) -> tuple[tuple[Block, ...], float]:
    """One stretch as the samples say, and the two ends of what they leave open.

    Batches stand for steps. What the starts of epochs take is left out, as it is of measured steps. Samples do not
    tell fast steps from slow ones, so computing is taken to stay what it is.
    """
    rank, stacks = run.critical, run.critical.stacks
    period = batch_period(stacks) if stacks else None
    if period is None and rank.step_seconds is not None:
        period = rank.step_seconds.mean
    if stacks is None or not period:
        return (), 0.0
    edge = epoch_start_share(stacks)
    busy = worker_load(rank) or Share(1.0, 1.0, 1.0)
    wall = period / train_share(stacks)
    found = []
    lost = _sampled_wait(rank, starvation, wait)
    others = spun_share(run, starvation)
    certain = others if period >= LONG_STEP_SECONDS else 0.0
    for waited, spun, worked, reach in (
        (lost.low, certain, busy.high, starvation.busy_reach),
        (lost.value, certain, busy.value, 0.0),
        (lost.high, others, busy.low, -starvation.busy_reach),
    ):
        low = high = period * max(LEAST_COMPUTING, _computing_share(starvation, edge, waited, reach=reach) - spun)
        if workers:
            batch = workers * worked * wall
        else:
            # A thread makes batches while the training computes as well.
            batch = wall * making_threads(stacks) if is_fed(stacks) else period * waited
        found.append(Block(period * (1.0 - edge), low, high, batch))
    return tuple(found), found[1].compute_low


def _waited_for_others(run: RunWindow) -> float:
    """The same from outside, in which the thread may stand as well.

    By the seconds that each of them waits in the same second: more than that where steps are shorter. In simulation 2
    ranks waited 62% of their time each, 78% together: workers brought 4.5x, and 2.6x by the waits of one rank.
    """
    rows = [rank.stacks.waits for rank in run.ranks if rank.stacks is not None]
    count = min(map(len, rows), default=0)
    if len(rows) < len(run.ranks) or len(rows) < 2 or not count or run.critical.stacks is None:
        return 0.0
    own = run.critical.stacks.waits[-count:]
    seconds = zip(*(each[-count:] for each in rows), strict=True)
    most: float = sum(max(waited for _, waited in second) for second in seconds)
    return max(0.0, most - sum(waited for _, waited in own)) / max(sum(length for length, _ in own), 1e-9)


def _sampled_wait(rank: RankWindow, starvation: Starvation, wait: Share) -> Share:
    """The wait's share with an interval over blocks of that many seconds, or else batches.

    Samples that were taken in one wait are one wait.
    """
    stacks, by_seconds = rank.stacks, lost_interval(rank, starvation)
    if by_seconds is None and (stacks is None or not stacks.waits or not stacks.batches):
        return wait
    if by_seconds is None and stacks is not None:
        by_seconds = share_of(round(wait.value * stacks.batches), stacks.batches)
    assert by_seconds is not None
    return Share(wait.value, min(wait.low, by_seconds.low), max(wait.high, by_seconds.high))


def _computing_share(
    starvation: Starvation, edge: float, waited: float, error: float = 1.0, reach: float = 0.0
) -> float:
    """What is left of the time without the waits: the thread's own part, or the GPU's where that is more.

    The thread launches ahead of the GPU, so whichever has more to do sets the pace: 1 - min(wait, idle), within 2% in
    31 of 36 simulated jobs, within 9% in four that pause.

    Args:
        starvation: with the utilization, where a GPU computes.
        edge: the starts of epochs, in which the thread does not compute either.
        waited: for data.
        error: of the utilization, as a factor.
        reach: of it too, as a share.
    """
    thread = max(0.0, 1.0 - edge - waited)
    busy = (1.0 - starvation.idle_share) * error + reach if starvation.on_gpu else 0.0
    return max(thread, min(busy, 1.0 - edge))


@dataclass(frozen=True, slots=True)
class Uncrowded:
    """What one thread per worker brings: a promise, or where too little is known for one what there is, in words."""

    gain: Gain | None
    hint: str | None


def needed_share(case: RunCase, starvation: Starvation) -> float:
    """The part of today's time that computing needs at most: what the GPU is busy, else all that is no wait."""
    busy = train_busy_percent(case) if starvation.on_gpu else None
    return max(0.02, min(1.0 - starvation.share, 1.0 if busy is None else busy / 100.0))


def uncrowded(case: RunCase, starvation: Starvation, cost: StepCost | None, crowd: float) -> Uncrowded:
    """The range with one thread per worker, where now `crowd` threads compete for each core.

    What computing needs is measured, and nearly always what is left to set the pace; what a batch waits for storage
    stays. How long a batch takes a thread that has its core for itself cannot be known while threads compete, not by
    their CPU time either, for they spin: four processes with two OpenBLAS threads each took 0.48 CPU seconds for an SVD
    of 1.8 ms and 26 ms for a product of 2.4 ms, on two cores that others kept busy too. It was `LEAST_SEEN` times as
    fast or more wherever others measured it. Where that leaves the range open there is no promise.
    """
    needed = needed_share(case, starvation)
    high = min(MOST_SEEN, 1.0 / needed)
    if cost is None or cost.workers < 1:
        low = min(high, without(0.5 * starvation.share))
    else:
        making = cost.batch_seconds / cost.workers / cost.period_seconds
        reading = cost.batch_blocked_share
        least, most = (reading + (1.0 - reading) / times for times in (min(LEAST_SEEN, max(1.0, crowd)), MOST_SEEN))
        low, high = (max(1.0, min(high, 1.0 / max(needed, making * left))) for left in (least, most))
    if high > OPEN_RATIO * low:
        unknown = "how long one thread takes for a batch is not known while they compete"
        return Uncrowded(None, f"no promise: {low:.1f}x by what others measured, {high:.1f}x at most; {unknown}")
    least, most = min(low, (1.0 - MINUTE_ERROR) * high), min(MOST_SEEN, (1.0 + MINUTE_ERROR) * high)
    return Uncrowded(Gain(round(max(1.0, least), 3), round(most, 3), COMPUTING_CAP), None)


def alone(case: RunCase, starvation: Starvation, launching: tuple[float, float], cap: str) -> Gain:
    """The range without the other programs on this machine, which slow down launches and workers alike.

    Workers are slowed down as much as the training thread is at least, and by all the time in which they neither
    compute nor wait for storage at most; a crowd also costs CPU seconds by itself.

    Args:
        case: the run.
        starvation: its waits for data.
        launching: the least and the most of the training time that launches on time recover.
        cap: what limits it then, where its workers do not.
    """
    rank, cost = case.run.critical, step_cost(case, starvation)
    busy, factor = worker_busy(rank), max(line_factor(rank), worker_line_factor(rank))
    if cost is None or cost.workers < 1 or busy is None:
        least, most = launching
        itself = starvation.share if cost is not None and cost.workers < 1 else 0.0  # its own thread makes the batches
        return from_share(least, most + itself * (1.0 - 1.0 / factor), cap)
    if not cost.sampled and rank.workers is not None and rank.workers.batch_seconds is None:
        cost = cost.cheaper(1.0 - busy.value)
    period = cost.period_seconds
    free = replace(cost.uncrowded(), cores=(cost.allowed_cores, cost.allowed_cores))
    crowd = min(cost.batch_seconds / max(free.batch_seconds, 1e-9), MOST_CROWDED)
    ends = (
        (launching[0], max(free.batch_seconds, cost.batch_seconds / factor)),
        (launching[1], free.batch_seconds / (1.0 + SWITCHING * (crowd - 1.0))),
    )
    low, high = (
        max(1.0, period / max((1.0 - min(starvation.share + won, HIGHEST_SHARE)) * period, made / cost.workers))
        for won, made in ends
    )
    return Gain(round(low, 3), round(max(low, high), 3), cap)


COMPUTING_CAP = "then limited by what computing itself needs"
