"""The history of one trainer: its steps in full and in tiers, phases, workers, memory, and how it ended."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    GpuGap,
    LinkLoss,
    LoaderFacts,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    RunMemory,
    StackTally,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
)
from gpuwatch.timeline.batch_counts import BatchCounts
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.epochs import EpochStarts
from gpuwatch.timeline.loader_waits import LoaderWaits
from gpuwatch.timeline.memory_log import MemoryLog
from gpuwatch.timeline.pace import StepPace
from gpuwatch.timeline.phases import OUTSIDE, PhaseLog
from gpuwatch.timeline.settling import UNKNOWN, Settling
from gpuwatch.timeline.stack_log import StackLog
from gpuwatch.timeline.stats import LogHistogram
from gpuwatch.timeline.step_columns import STEP_COLUMNS, row_of, settle, step_row
from gpuwatch.timeline.step_pauses import wait_within, without_stop
from gpuwatch.timeline.step_tiers import StepTiers
from gpuwatch.timeline.stops import STOPPED_STATES, StopLog
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.warmup import WarmUp
from gpuwatch.timeline.worker_fetches import WorkerFetches

RAW_NS = 900 * SECOND_NS  # the longest window: 30 slow steps
_MOST_STEPS = 16_384
_MOST_LOSSES = 256
_USUAL_OF = 64
_GAPS_AHEAD = 256
_WARM_BATCHES = 10
_EARLY_STEPS = 100
FRESH_NS = 10 * SECOND_NS
"""How long the line that a thread was last seen on counts as where it is."""


def _regime(facts: RunFacts) -> tuple[object, ...]:
    """What steps of one kind have in common: what is trained, by which optimizer and lines, compiled or not.

    A program that trains one model after the other, or unfreezes layers, makes steps of another kind.
    """
    model = facts.model
    trained = model.parameters, model.trained_parameters
    return *trained, model.optimizer, model.optimizer_line, model.backward_line, model.compiled


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
        self.memory = MemoryLog()
        self.pace = StepPace()
        self.hundredth_ns: int | None = None
        self.losses: deque[LinkLoss] = deque(maxlen=_MOST_LOSSES)
        self.steps_total = 0
        self.last_step_ns: int | None = None
        self._usual: deque[float] = deque(maxlen=_USUAL_OF)
        self._settling = Settling()
        self._gaps_ahead: dict[int, float] = {}
        self._has_batch_waits = False
        self._loader_waits = LoaderWaits()
        self.stacks = StackLog()
        self.counts = BatchCounts()
        self._outside_since_ns = 0

    def add_facts(self, facts: RunFacts) -> None:
        """The newest facts count, but nothing that is seen from outside counts against the hook while its link lives.

        New loader settings move the border of an epoch's start.
        """
        if self.is_exact and facts.rung != "exact":
            if self.ended is None or self.ended.how != "lost":
                return
            self._outside_since_ns = self.ended.time_ns
        elif facts.rung == "exact" and not self.is_exact and (self.facts is not None or self.counts.total):
            self._forget_estimates()
        if self.facts is not None and self.facts.hooked and facts.rung in ("proc", "hardware"):
            facts = replace(facts, hooked=True, climb=facts.climb if facts.hooked else self.facts.climb)
        if self.facts is not None and _regime(facts) != _regime(self.facts):
            self.pace.reset()
        self.facts = facts
        self._hear(facts.time_ns)
        if not self.is_exact and self.first_ns is None:
            self.first_ns = facts.time_ns
        if self._settling.learn_loaders(facts.loaders):
            self._settle_again()

    def add_step(self, step: StepEnd) -> None:
        """One step, early or late; one that is known already (a link that broke sends its history again) is not."""
        if self.stops.within(step.start_ns, step.end_ns):
            self._mark_stop(self.stops.close(step.end_ns))
            step = without_stop(step, self.usual_step_seconds())
        training = (step.end_ns - step.start_ns) / SECOND_NS - step.phase_seconds
        if training < 0 or (self.steps.has(step.end_ns) and row_of(self.steps, step.number) is not None):
            return
        wait_seconds = wait_within(step.wait_seconds, training)
        if wait_seconds != step.wait_seconds:
            step = replace(step, wait_seconds=wait_seconds)
        self._see(step.start_ns, step.end_ns)
        self.steps_total = max(self.steps_total + 1, step.number)
        self.last_step_ns = max(self.last_step_ns or 0, step.end_ns)
        self.phases.step(step.start_ns)
        self.warm_up.step(step.end_ns, training)
        self.session.add(training)
        self._usual.append(training)
        if self._settling.learn_batch_size(step.samples):
            self._settle_again()
            self.pace.reset()
        if self.hundredth_ns is None and self.steps_total >= _EARLY_STEPS:
            self.hundredth_ns = step.end_ns
        position = UNKNOWN if step.epoch_position is None else step.epoch_position
        loader = UNKNOWN if step.loader is None else step.loader
        if not self._has_batch_waits and position >= 0 and step.wait_seconds is not None:
            self.epochs.batch(position, step.wait_seconds, self._settling.epoch_head(loader))
        gap = self._gaps_ahead.pop(step.number, None)
        if gap is not None:
            gap = min(gap, training)
        settled = self._is_settled(step.end_ns, position, loader, number(step.samples))
        self.steps.add(step.end_ns, step_row(step, training, gap, settled))
        self.tiers.add_step(step.end_ns, training, step.wait_seconds, step.samples, step.batches, settled)
        if settled:
            self.pace.add(step, training)
        if gap is not None and settled:
            self.tiers.add_gap(step.end_ns, training, gap)

    def add_gap(self, gap: GpuGap) -> None:
        """The GPU's idle time of a step that is long over, or, out of order, of one to come.

        A GPU whose trainer was stopped idled all the while: no more of it than the step itself counts.
        """
        row = row_of(self.steps, gap.number)
        if row is None:
            if gap.number > self.steps_total and len(self._gaps_ahead) < _GAPS_AHEAD:
                self._gaps_ahead[gap.number] = gap.seconds
            return
        gaps = self.steps["gap"]
        if gaps[row] == gaps[row]:
            return
        gaps[row] = min(gap.seconds, self.steps["period"][row])
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
        if wait.loader is not None:
            self._loader_waits.add(wait.loader, wait.end_ns, seconds)
        head = self._settling.epoch_head(UNKNOWN if wait.loader is None else wait.loader)
        self.epochs.batch(wait.epoch_position, seconds, head)

    def add_phase(self, span: PhaseSpan) -> None:
        """A phase that opens or closes."""
        if self.phases.add(span, self.steps_total):
            self._see(span.start_ns, span.end_ns or span.start_ns)

    def add_fetch(self, fetch: WorkerFetch) -> None:
        """A batch made by a worker."""
        self._hear(fetch.end_ns)
        if not self.stops.within(fetch.start_ns, fetch.end_ns):
            self.fetches.add(fetch)

    def add_tally(self, tally: StackTally) -> None:
        """A second of looks from outside. Charts begin with the loop over a loader: before it, nothing could wait."""
        self._see_outside(tally.start_ns, tally.end_ns)
        self.stacks.add(tally)
        if not self.is_exact and self.counts.first_ns is not None:
            self.tiers.add_tally(tally, has_batch_size=self.batch_size is not None)

    def add_count(self, count: BatchCount) -> None:
        """A reading of a loader's counter: it makes the steps of a trainer without a hook."""
        self._see_outside(count.time_ns, count.time_ns)
        growth = self.counts.add(count)
        if self.is_exact:
            return
        self.steps_total = self.counts.total
        self.last_step_ns = self.counts.last_growth_ns
        if self.steps_total >= _WARM_BATCHES and self.warm_up.over_ns is None:
            self.warm_up.over_ns = count.time_ns
        if growth is not None and growth.start_ns is not None:
            self.tiers.add_batches(growth.start_ns, growth.end_ns, growth.batches, self.batch_size)

    def other_loaders(self) -> set[int]:
        """The loaders that feed evaluations, and those that the training does not wait for beside the one it does."""
        loaders, slowest = self.facts.loaders if self.facts else (), self._loader_waits.slowest
        return {
            each.loader
            for each in loaders
            if each.role == "eval" or (each.role == "train" and slowest not in (None, each.loader))
        }

    def other_workers(self) -> set[int]:
        """The pids of their workers, as far as these report batches."""
        return self.fetches.workers_of(self.other_loaders())

    def see_process(self, sample: ProcessSample) -> None:
        """A look at the process itself: it may have been stopped, or have gone on."""
        is_unread = self.facts is not None and self.facts.rung in ("proc", "hardware")
        if is_unread or (sample.state in STOPPED_STATES and not self.is_exact):
            self._see(sample.time_ns, sample.time_ns)
        if sample.state is not None:
            self._mark_stop(self.stops.see(sample.time_ns, sample.state))

    def add_memory(self, memory: RunMemory) -> None:
        """A reading of the allocator."""
        self._hear(memory.time_ns)
        self.memory.add(memory, self.steps_total)

    def add_loss(self, loss: LinkLoss) -> None:
        """Records that did not arrive."""
        self.losses.append(loss)

    def end(self, ended: TrainerEnded) -> None:
        """The trainer is gone. What still comes afterwards, after a link was lost, takes that back."""
        self.seen_ns = max(self.seen_ns, ended.time_ns)
        self.ended = ended
        self.phases.close_all()

    def usual_step_seconds(self) -> float | None:
        """The median of the last 64 steps; of batches, where they are counted from outside."""
        times = self._usual or (() if self.is_exact else self.counts.usual)
        return median(times) if times else None

    def is_outside(self, now_ns: int) -> bool:
        """Whether no training loop runs, as its stack shows; where that is not read, as the end of its loader does."""
        standing = self.stacks.standing
        if standing is not None and standing.in_loop is not None and now_ns - standing.time_ns <= FRESH_NS:
            return not standing.in_loop
        return self.phases.is_open(OUTSIDE)

    @property
    def is_exact(self) -> bool:
        """Whether its hook speaks for it."""
        return self.facts is not None and self.facts.rung == "exact"

    @property
    def batch_size(self) -> int | None:
        """Samples per batch, as the training loader is set."""
        loader = self.train_loader()
        return loader.batch_size if loader is not None else None

    def train_loader(self) -> LoaderFacts | None:
        """The loader that the newest step read from, else one that says it trains.

        A semi-supervised training or a GAN reads from two in each step: of those it is the one that is waited for.
        """
        if self.facts is None:
            return None
        used = self.counts.train_loader
        if self.is_exact:
            used = self.steps["loader"][-1] if len(self.steps) else UNKNOWN
            used = self._loader_waits.slowest if self._loader_waits.slowest is not None else used
        by_id = {loader.loader: loader for loader in self.facts.loaders}
        return by_id.get(UNKNOWN if used is None else used) or next(
            (loader for loader in self.facts.loaders if loader.role == "train"), None
        )

    def prune(self, now_ns: int) -> None:
        """Drops raw rows that are too old although no new ones push them out."""
        for kept in (self.steps, self.memory, self.fetches.rows):
            kept.trim(now_ns)

    def _forget_estimates(self) -> None:
        """Starts over with the hook: no figure shall be half estimate, half measurement.

        Steps, warm-up, charts and phases that were seen from outside go; the stacks stay beside the hook's figures.
        """
        self.steps_total = int(self.steps["number"][-1]) if len(self.steps) else 0
        self.first_ns = self.steps.times[0] if len(self.steps) else None
        self.last_step_ns = self.steps.times[-1] if len(self.steps) else None
        self.warm_up = WarmUp()
        self.tiers = StepTiers()
        self.phases.take_back(self._outside_since_ns)

    def _see(self, start_ns: int, end_ns: int) -> None:
        """Something of the training itself: the windows begin with the first of it."""
        if self.first_ns is None or start_ns < self.first_ns:
            self.first_ns = start_ns
        self._hear(end_ns)

    def _see_outside(self, start_ns: int, end_ns: int) -> None:
        """Looks that go on after the hook's link was lost do not bring it back."""
        if self.is_exact:
            self.seen_ns = max(self.seen_ns, end_ns)
        else:
            self._see(start_ns, end_ns)

    def _hear(self, time_ns: int) -> None:
        self.seen_ns = max(self.seen_ns, time_ns)
        if self.ended is not None and self.ended.how == "lost" and time_ns > self.ended.time_ns:
            self.ended = None

    def _mark_stop(self, span: tuple[int, int | None] | None) -> None:
        if span is not None:
            self.phases.add(PhaseSpan(self.trainer, "stopped", *span), self.steps_total)

    def _is_settled(self, end_ns: int, position: int, loader: int, samples: float) -> bool:
        if self.warm_up.over_ns is None or end_ns <= self.warm_up.over_ns:
            return False
        return self._settling.holds(position, loader, samples)

    def _settle_again(self) -> None:
        """Judges the raw rows again; the tiers keep the first judgement."""
        settle(self.steps, self._is_settled)
