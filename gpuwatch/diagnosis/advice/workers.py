"""How many workers a loader needs here, and what keeps it from having as many.

`needed = ceil(1.2 * Tb / Tc)`: Tb seconds for one worker to make a batch, Tc seconds to compute one, a fifth of
margin. Checked against real DataLoaders (Tb 80 ms, Tc 20 ms): the wait share predicted .80/.75/.50/.25/0/0 for
0, 1, 2, 3, 4 and 5 workers was measured as .81/.77/.51/.29/.06/.07.

What it is computed from fluctuates, and a whole number may change with its last digit: an advised number stays until
the new one differs by more than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.cost import StepCost
from gpuwatch.diagnosis.advice.lines import HotLine
from gpuwatch.diagnosis.advice.resources import SHM_SHARE, cores_limit, local_ranks, shm_mount, worker_queue_bytes
from gpuwatch.diagnosis.advice.stream import quartiles
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.numbers import cpu_cores, gibibytes, grouped, percent, seconds
from gpuwatch.timeline.windows import RankWindow, WorkerShare

MARGIN = 1.2
LEAST_CPU_SHARE = 0.1
"""A worker that only waits for storage still costs some CPU: at most ten of them per core."""
SPARE_CORE_FROM = 4
"""With at least this many cores, one is left to the training thread (Lightning does the same). With fewer that costs
too much: with two cores and loading that computes, 2 workers took 140 ms a step, 1 worker 226 ms."""
MEMORY_SHARE = 0.5
LARGEST_WORKER_BYTES = 2**30
LEAST_PROMISE = 1.05
MOST_OPEN = 2.0
"""A range whose ends lie further apart promises nothing: 30 steps of 0.2 to 300 s left open 0.5 to 7.8x."""
LEAST_ERROR = 0.05
"""Of the number before it is rounded: in simulated runs that stayed what they are it wandered by 2 to 4% while the
window filled, and by up to 2% after that."""
COMPUTING_SHARE = 0.3
"""Items that want a core for so much of their time compute: more of them than cores only wait for one."""
ALL_COMPUTING_SHARE = 0.85
"""Items that do nothing else. Those that wait for a third of their time or more got what was predicted on 2 cores."""

LEAST_WORKER_SAMPLES = 60
"""Of each worker's stack: a busy share of 73% and of 97% have intervals that do not meet."""
LEAST_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit on the number of workers, and where it comes from."""

    name: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerAdvice:
    """A number of workers, what would be needed, and the cap in between, if any."""

    count: int
    needed: int
    cap: Cap | None
    gain: Gain
    margin: float  # of making batches over the pace that the training computes at
    shared: bool = False  # other work keeps the cores busy
    crowded: bool = False  # loading and training both compute, on fewer cores than leave room for both

    @property
    def promise(self) -> Gain | None:
        """The gain; none where other work decides whether there is any, or the training itself, or chance.

        On 2 cores a training that waited 72% of its time for an FFT was promised 1.3 to 1.7x and got 0.85 to 1.16x.
        """
        unknown = self.crowded or self.is_open or (self.shared and self.gain.low < LEAST_PROMISE)
        return None if unknown else self.gain

    @property
    def is_open(self) -> bool:
        """Whether the window's steps differ so much that they leave open what it brings."""
        return self.gain.high > MOST_OPEN * self.gain.low

    @property
    def hint(self) -> str | None:
        """Why there is no promise, where there is none."""
        if self.promise:
            return None
        if self.crowded and not self.shared:
            return "no promise: loading and training compete for the same few cores; try it and compare"
        if self.is_open and not self.shared:
            return "no promise: the few batches seen so far took too different times"
        return "no promise: the machine is shared with other work"

    @property
    def arithmetic(self) -> str:
        """The value's origin in words, with the cap that binds."""
        if self.cap is None:
            verb = "worker keeps" if self.count == 1 else "workers keep"
            return f"{self.count} {verb} up, with {percent(min(self.margin, MARGIN - 1.0))} headroom"
        return f"{self.needed} worker{'' if self.needed == 1 else 's'} would keep up, but {self.cap.reason}"


@dataclass(frozen=True, slots=True)
class _Rounding:
    """To whole workers, and to the number that was advised before where that is one of those within the error."""

    earlier: int | None
    error: float

    def up(self, exact: float) -> int:
        """As many as are needed."""
        return self._near(exact, lambda count: max(1, math.ceil(count - 1e-6)))

    def down(self, exact: float) -> int:
        """As many as there is room for."""
        return self._near(exact, lambda count: max(1, math.floor(count + 1e-6)))

    def _near(self, exact: float, rounded: Callable[[float], int]) -> int:
        low, high = rounded(exact * (1.0 - self.error)), rounded(exact * (1.0 + self.error))
        return self.earlier if self.earlier is not None and low <= self.earlier <= high else rounded(exact)


def advise(case: RunCase, cost: StepCost, *, at_least: int = 1, earlier: int | None = None) -> WorkerAdvice:
    """The number for the run's training loader, never below `at_least`.

    Args:
        case: the run.
        cost: of its steps and batches.
        at_least: this many in any case.
        earlier: what was advised before: it stays while the new number differs by no more than its uncertainty.
    """
    rounding = _Rounding(earlier, _error(cost))
    needed = max(at_least, rounding.up(_to_keep(cost, cost.pace_seconds)))
    caps = _worker_caps(case, cost, rounding)
    tightest = min(caps, key=lambda cap: cap.count)
    count = max(at_least, min(needed, tightest.count))
    margin = MARGIN * count / max(_to_keep(cost, cost.pace_seconds), 1e-6) - 1.0
    return WorkerAdvice(
        count=count,
        needed=needed,
        cap=tightest if count < needed else None,
        gain=cost.gain(count),
        margin=margin,
        shared=cost.shared,
        crowded=_is_crowded(cost),
    )


def _error(cost: StepCost) -> float:
    """How far off the number may be: half the distance between the quartiles of what the stretches of the window say.

    At most what the margin makes up for: a number that is kept still keeps up.
    """
    asked = [block.batch / max(block.compute_low + block.compute_high, 1e-6) for block in cost.blocks]
    low, high = quartiles(asked)
    return min(max(LEAST_ERROR, (high - low) / max(high + low, 1e-6)), 1.0 - 1.0 / MARGIN)


def _is_crowded(cost: StepCost) -> bool:
    computes = cost.batch_cpu_known and cost.batch_cpu_share >= ALL_COMPUTING_SHARE
    return computes and not cost.on_gpu and cost.allowed_cores < SPARE_CORE_FROM


def _worker_caps(case: RunCase, cost: StepCost, rounding: _Rounding) -> tuple[Cap, ...]:
    """Every limit on the number of workers of one rank, named."""
    rank = case.run.critical
    found = (_memory_cap(case, rank, rounding), _shm_cap(case, rank, rounding), _epoch_cap(rank))
    return (_cpu_cap(cost, cores_limit(case), rounding), *(cap for cap in found if cap is not None))


def cpu_workers(cores: float, cpu_share: float, training_cores: float = 1.0) -> int:
    """Workers that the cores carry: all but what training uses, more of them the less each one computes."""
    return _carried(cores, cpu_share, training_cores, _Rounding(None, 0.0))


def _carried(cores: float, cpu_share: float, training_cores: float, rounding: _Rounding) -> int:
    per_worker = max(cpu_share, LEAST_CPU_SHARE)
    if cores >= SPARE_CORE_FROM:
        return rounding.down((cores - max(1.0, training_cores)) / per_worker)
    return rounding.up(max(0.0, cores - training_cores) / per_worker)


def filling_workers(cores: float) -> int:
    """Workers that fill the cores when each computes all the time."""
    return max(1, math.floor(cores) - (1 if cores >= SPARE_CORE_FROM else 0))


def _to_keep(cost: StepCost, pace_seconds: float) -> float:
    """Workers that make batches at a pace, with 20% headroom; not yet a whole number."""
    return MARGIN * cost.batch_seconds / max(pace_seconds, 1e-6)


def _cpu_cap(cost: StepCost, limit: str | None, rounding: _Rounding) -> Cap:
    # The number is chosen for cores without foreign load: workers too few cost speed, idle ones nothing. Without a GPU
    # the pace below already counts what training needs of the cores.
    best = cost.best_pace_seconds
    training = cost.training_cores_busy if cost.on_gpu else 0.0
    count = _carried(cost.allowed_cores, cost.batch_cpu_share, training, rounding)
    if cost.shared and cost.batch_demand_share >= COMPUTING_SHARE:
        count = min(count, max(1, math.floor(cost.allowed_cores)))
    useful, cores = rounding.up(_to_keep(cost, best)), cpu_cores(cost.allowed_cores)
    if useful < count:
        return Cap("cpu", useful, f"more than {useful} would only share the {cores}{f' ({limit})' if limit else ''}")
    each = f"{max(cost.batch_demand_share, LEAST_CPU_SHARE):.2g} of a core each"
    each += f"; {limit}" if limit else ""
    return Cap("cpu", count, f"the {cores} cannot carry more than {count} besides the training ({each})")


def _memory_cap(case: RunCase, rank: RankWindow, rounding: _Rounding) -> Cap | None:
    available = case.host.latest.memory_available_bytes if case.host else None
    if available is None:
        return None
    each = _worker_bytes(rank) + worker_queue_bytes(rank.train_loader)
    if each <= 0:
        return None
    count = rounding.down(MEMORY_SHARE * available / each / local_ranks(rank))
    return Cap("memory", count, f"half of the {gibibytes(available)} free memory holds {count}{_per_rank(rank)}")


def _shm_cap(case: RunCase, rank: RankWindow, rounding: _Rounding) -> Cap | None:
    mount, queued = shm_mount(case), worker_queue_bytes(rank.train_loader)
    if mount is None or queued <= 0:
        return None
    free = mount.total_bytes - mount.used_bytes
    count = rounding.down(SHM_SHARE * free / queued / local_ranks(rank))
    text = f"/dev/shm has {gibibytes(free)} free, which holds the batches of {count}{_per_rank(rank)}"
    return Cap("shm", count, text)


def _epoch_cap(rank: RankWindow) -> Cap | None:
    loader = rank.train_loader
    if loader is None or not loader.batches_per_epoch:
        return None
    count = max(1, loader.batches_per_epoch // 4)
    return Cap("epoch", count, f"an epoch of {grouped(loader.batches_per_epoch)} batches keeps {count} busy")


def _worker_bytes(rank: RankWindow) -> int:
    """A worker's memory: measured, else at most that of the trainer it is forked from."""
    if rank.workers is not None and rank.workers.rss_bytes is not None:
        return rank.workers.rss_bytes
    trainer = rank.process.latest.rss_bytes if rank.process else None
    return min(trainer or 0, LARGEST_WORKER_BYTES)


def _per_rank(rank: RankWindow) -> str:
    ranks = local_ranks(rank)
    return f" for each of {ranks} ranks" if ranks > 1 else ""


def batch_against_step(cost: StepCost) -> str:
    """In words: a batch takes 320 ms to load, a step 80 ms to compute."""
    if cost.batches_per_step > 1:
        count, load, compute = cost.batches_per_step, seconds(cost.batch_seconds), seconds(cost.compute_seconds)
        return f"the {count} batches of a step take {load} to load and {compute} to compute"
    if cost.sampled:
        return f"a batch takes {seconds(cost.batch_seconds)} to load and {seconds(cost.compute_seconds)} to train on"
    return f"a batch takes {seconds(cost.batch_seconds)} to load, a step {seconds(cost.compute_seconds)} to compute"


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker. `batch_seconds`, the median, is known by its own records only."""

    pid: int
    busy: float
    batch_seconds: float | None = None
    line: HotLine | None = None


def worker_loads(rank: RankWindow) -> list[WorkerLoad]:
    """The training loader's, by their own records or by their stacks; none where not just these were seen enough."""
    count = rank.train_loader.num_workers if rank.train_loader else None
    shown = {each.pid: each for each in rank.stacks.by_worker} if rank.stacks is not None else {}
    measured = [each for each in (rank.workers.by_worker if rank.workers else ()) if each.batches >= LEAST_BATCHES]
    if measured:
        found = [WorkerLoad(each.pid, each.busy_share, each.batch_seconds) for each in measured]
    else:
        seen = [each for each in shown.values() if each.samples >= LEAST_WORKER_SAMPLES]
        found = [WorkerLoad(each.pid, each.busy.value) for each in seen]
    if len(found) < 2 or len(found) != count:
        return []
    return [_with_line(each, shown) for each in found]


def _with_line(worker: WorkerLoad, shown: Mapping[int, WorkerShare]) -> WorkerLoad:
    seen = shown.get(worker.pid)
    line = seen.line if seen is not None else None
    if seen is None or line is None:
        return worker
    of = round(seen.samples * seen.busy.value)
    hot = HotLine(line.phase, line.file, line.line, line.function, line.share, of, text=line.text, leaf=line.leaf)
    return replace(worker, line=hot)
