"""The history of one trainer: its steps in full and in tiers, phases, workers, memory, and how it ended."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from statistics import median

from gpuwatch.samples import (
    BatchWait,
    GpuGap,
    LinkLoss,
    LoaderFacts,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    RunMemory,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
)
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.epochs import EpochStarts
from gpuwatch.timeline.phases import PhaseLog
from gpuwatch.timeline.stats import LogHistogram
from gpuwatch.timeline.step_pauses import parts_within, without_stop
from gpuwatch.timeline.step_tiers import StepTiers
from gpuwatch.timeline.stops import StopLog
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.warmup import WarmUp
from gpuwatch.timeline.worker_fetches import WorkerFetches

RAW_NS = 900 * SECOND_NS  # the longest window: 30 slow steps
_MOST_STEPS = 16_384
_MOST_MEMORY_ROWS = 2_048
_MOST_LOSSES = 256
_USUAL_OF = 64
_GAPS_AHEAD = 256
_STOPPED_STEPS = 64
_MOST_BATCH_SIZES = 64
_DEFAULT_PREFETCH = 2
_PARTIAL_BATCH = 0.9

STEP_COLUMNS = {
    "number": "q",
    "period": "f",
    "wait": "f",
    "gap": "f",
    "samples": "f",
    "epoch_position": "i",
    "loader": "i",
    "copy": "f",
    "forward": "f",
    "backward": "f",
    "optimizer": "f",
    "wait_cpu": "f",
    "settled": "b",
}
UNKNOWN = -1


class TrainerHistory:
    """Everything known of one trainer, in the order of its steps."""

    def __init__(self, trainer: str) -> None:
        self.trainer = trainer
        self.facts: RunFacts | None = None
        self.first_ns: int | None = None
        self.seen_ns = 0
        self.ended: TrainerEnded | None = None
        self.steps = Table(STEP_COLUMNS, max_age_ns=RAW_NS, max_rows=_MOST_STEPS)
        self.tiers = StepTiers()
        self.session = LogHistogram()
        self.warm_up = WarmUp()
        self.phases = PhaseLog()
        self.stops = StopLog()
        self.epochs = EpochStarts()
        self.fetches = WorkerFetches()
        self.memory = Table({"alloc_retries": "d"}, max_age_ns=RAW_NS, max_rows=_MOST_MEMORY_ROWS)
        self.latest_memory: RunMemory | None = None
        self.losses: deque[LinkLoss] = deque(maxlen=_MOST_LOSSES)
        self.steps_total = 0
        self.last_step_ns: int | None = None
        self._usual: deque[float] = deque(maxlen=_USUAL_OF)
        self._batch_sizes: Counter[int] = Counter()
        self._usual_batch = 0
        self._heads: dict[int, int] = {}
        self._epoch_heads: dict[int, int] = {}
        self._gaps_ahead: dict[int, float] = {}
        self._stopped_steps: deque[int] = deque(maxlen=_STOPPED_STEPS)
        self._has_batch_waits = False

    def add_facts(self, facts: RunFacts) -> None:
        """The newest facts count. New loader settings move the border of an epoch's start."""
        self.facts = facts
        self._hear(facts.time_ns)
        self._epoch_heads = {loader.loader: max(1, loader.num_workers or 1) for loader in facts.loaders}
        heads = {loader.loader: head_batches(loader) for loader in facts.loaders}
        if heads != self._heads:
            self._heads = heads
            self._settle_again()

    def add_step(self, step: StepEnd) -> None:
        """One step, early or late; one that is known already (a link that broke sends its history again) is not."""
        if self.stops.within(step.start_ns, step.end_ns):
            self._mark_stop(self.stops.close(step.end_ns))
            self._stopped_steps.append(step.number)
            step = without_stop(step, self.usual_step_seconds())
        training = (step.end_ns - step.start_ns) / SECOND_NS - step.phase_seconds
        if training < 0 or (self.steps.has(step.end_ns) and self._row_of(step.number) is not None):
            return
        self._see(step.start_ns, step.end_ns)
        self.steps_total = max(self.steps_total + 1, step.number)
        self.last_step_ns = max(self.last_step_ns or 0, step.end_ns)
        self.phases.step(step.start_ns)
        self.warm_up.step(step.end_ns, training)
        self.session.add(training)
        self._usual.append(training)
        self._learn_batch_size(step.samples)
        position = UNKNOWN if step.epoch_position is None else step.epoch_position
        loader = UNKNOWN if step.loader is None else step.loader
        if not self._has_batch_waits and position >= 0 and step.wait_seconds is not None:
            self.epochs.batch(position, step.wait_seconds, self._epoch_head(loader))
        gap = self._gaps_ahead.pop(step.number, None)
        if gap is not None:
            gap = self._gap_within(step.number, gap, training)
        settled = self._is_settled(step.end_ns, position, loader, number(step.samples))
        copy, forward, backward, optimizer = parts_within(step, training)
        self.steps.add(
            step.end_ns,
            (
                step.number,
                training,
                number(step.wait_seconds),
                number(gap),
                number(step.samples),
                position,
                loader,
                copy,
                forward,
                backward,
                optimizer,
                number(step.wait_cpu_seconds),
                settled,
            ),
        )
        self.tiers.add_step(step.end_ns, training, step.wait_seconds, step.samples, settled)
        if gap is not None and settled:
            self.tiers.add_gap(step.end_ns, training, gap)

    def add_gap(self, gap: GpuGap) -> None:
        """The GPU's idle time of a step that is long over, or, out of order, of one to come."""
        row = self._row_of(gap.number)
        if row is None:
            if gap.number > self.steps_total and len(self._gaps_ahead) < _GAPS_AHEAD:
                self._gaps_ahead[gap.number] = gap.seconds
            return
        gaps = self.steps["gap"]
        if gaps[row] == gaps[row]:
            return
        gaps[row] = self._gap_within(gap.number, gap.seconds, self.steps["period"][row])
        if self.steps["settled"][row]:
            self.tiers.add_gap(self.steps.times[row], self.steps["period"][row], gaps[row])

    def add_wait(self, wait: BatchWait) -> None:
        """One batch's wait, for the cost of epoch starts; steps carry the rest."""
        self._see(wait.start_ns, wait.end_ns)
        if wait.role != "train" or wait.epoch_position is None:
            return
        self._has_batch_waits = True
        if self.stops.within(wait.start_ns, wait.end_ns):
            return
        seconds = (wait.end_ns - wait.start_ns) / SECOND_NS
        if wait.part != "batch":
            self.epochs.edge(seconds)
            return
        head = self._epoch_head(UNKNOWN if wait.loader is None else wait.loader)
        self.epochs.batch(wait.epoch_position, seconds, head)

    def add_phase(self, span: PhaseSpan) -> None:
        """A phase that opens or closes."""
        self._see(span.start_ns, span.end_ns or span.start_ns)
        self.phases.add(span, self.steps_total)

    def add_fetch(self, fetch: WorkerFetch) -> None:
        """A batch made by a worker."""
        self._hear(fetch.end_ns)
        if not self.stops.within(fetch.start_ns, fetch.end_ns):
            self.fetches.add(fetch)

    def see_process(self, sample: ProcessSample) -> None:
        """A look at the process itself: it may have been stopped, or have gone on."""
        if sample.state is not None:
            self._mark_stop(self.stops.see(sample.time_ns, sample.state))

    def add_memory(self, memory: RunMemory) -> None:
        """A reading of the allocator; peaks stay the highest of the whole run."""
        self._hear(memory.time_ns)
        self.latest_memory = memory
        self.memory.add(memory.time_ns, (number(memory.alloc_retries),))

    def add_loss(self, loss: LinkLoss) -> None:
        """Records that did not arrive."""
        self.losses.append(loss)

    def end(self, ended: TrainerEnded) -> None:
        """The trainer is gone. What still comes afterwards, after a link was lost, takes that back."""
        self.seen_ns = max(self.seen_ns, ended.time_ns)
        self.ended = ended
        self.phases.close_all()

    def usual_step_seconds(self) -> float | None:
        """The median of the last 64 steps."""
        return median(self._usual) if self._usual else None

    def train_loader(self) -> LoaderFacts | None:
        """The loader that the newest step read from, else the one that says it trains."""
        if self.facts is None:
            return None
        used = self.steps["loader"][-1] if len(self.steps) else UNKNOWN
        by_id = {loader.loader: loader for loader in self.facts.loaders}
        return by_id.get(used) or next((loader for loader in self.facts.loaders if loader.role == "train"), None)

    def prune(self, now_ns: int) -> None:
        """Drops raw rows that are too old although no new ones push them out."""
        for table in (self.steps, self.memory, self.fetches.rows):
            table.trim(now_ns)

    def _see(self, start_ns: int, end_ns: int) -> None:
        """Something of the training itself: the windows begin with the first of it."""
        if self.first_ns is None or start_ns < self.first_ns:
            self.first_ns = start_ns
        self._hear(end_ns)

    def _hear(self, time_ns: int) -> None:
        self.seen_ns = max(self.seen_ns, time_ns)
        if self.ended is not None and self.ended.how == "lost" and time_ns > self.ended.time_ns:
            self.ended = None

    def _mark_stop(self, span: tuple[int, int | None] | None) -> None:
        if span is not None:
            self.phases.add(PhaseSpan(self.trainer, "stopped", *span), self.steps_total)

    def _gap_within(self, number: int, gap: float, training: float) -> float:
        """A GPU whose trainer was stopped idled all the while: no more of it than the step itself counts."""
        return min(gap, training) if number in self._stopped_steps else gap

    def _row_of(self, step_number: int) -> int | None:
        row = bisect_left(self.steps["number"], step_number)
        return row if row < len(self.steps) and self.steps["number"][row] == step_number else None

    def _epoch_head(self, loader: int) -> int:
        """The batches that one round of the workers makes: they are the late ones of an epoch."""
        if loader == UNKNOWN and len(self._epoch_heads) == 1:
            return next(iter(self._epoch_heads.values()))
        return self._epoch_heads.get(loader, 1)

    def _is_settled(self, end_ns: int, position: int, loader: int, samples: float) -> bool:
        if self.warm_up.over_ns is None or end_ns <= self.warm_up.over_ns:
            return False
        if 0 <= position < self._heads.get(loader, 1):
            return False
        return not samples < _PARTIAL_BATCH * self._usual_batch

    def _learn_batch_size(self, samples: int | None) -> None:
        """Follows the most frequent batch size; where sizes vary freely, rare ones are forgotten."""
        if samples is None:
            return
        sizes = self._batch_sizes
        sizes[samples] += 1
        if samples != self._usual_batch and sizes[samples] > sizes[self._usual_batch]:
            self._usual_batch = samples
            self._settle_again()
        if len(sizes) > _MOST_BATCH_SIZES:
            self._batch_sizes = Counter(dict(sizes.most_common(_MOST_BATCH_SIZES // 2)))

    def _settle_again(self) -> None:
        """Judges the raw rows anew; the tiers keep the first judgement."""
        rows = zip(
            self.steps.times,
            self.steps["epoch_position"],
            self.steps["loader"],
            self.steps["samples"],
            strict=True,
        )
        settled = self.steps["settled"]
        for row, (end_ns, position, loader, samples) in enumerate(rows):
            settled[row] = self._is_settled(end_ns, position, loader, samples)


def head_batches(loader: LoaderFacts) -> int:
    """The first batches of an epoch, which the workers prefetch: they wait for the start, not for the pace."""
    workers = loader.num_workers or 0
    prefetch = _DEFAULT_PREFETCH if loader.prefetch_factor is None else loader.prefetch_factor
    return max(1, workers * prefetch)
