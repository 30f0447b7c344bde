"""The history of one trainer: its steps in full and in tiers, phases, workers, memory, and how it ended."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise
from statistics import median

from gpuwatch.samples import (
    NO_LOADER,
    BatchCount,
    BatchWait,
    CurrentLine,
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
from gpuwatch.timeline.columns import SECOND_NS, Table, number
from gpuwatch.timeline.host import WorkerFetches
from gpuwatch.timeline.phases import OUTSIDE, STOPPED_STATES, PhaseLog, StopLog
from gpuwatch.timeline.stacks import BatchCounts, StackLog
from gpuwatch.timeline.steps import (
    STEP_COLUMNS,
    UNKNOWN,
    Settling,
    StepPace,
    StepTiers,
    WarmUp,
    row_of,
    settle,
    step_row,
    wait_within,
    without_stop,
)
from gpuwatch.timeline.times import Span, covered_ns
from gpuwatch.timeline.windows import EpochTotals, LogHistogram, MemoryTotals, PeakGrowth, known

RAW_NS = 900 * SECOND_NS
"""Of steps and of the allocator: the longest window, 30 slow steps."""
_MOST_STEPS = 16_384
_MOST_LOSSES = 256
_USUAL_OF = 64
_GAPS_AHEAD = 256
_WARM_BATCHES = 10
_EARLY_STEPS = 100
FRESH_NS = 10 * SECOND_NS
"""How long the line that a thread was last seen on counts as where it is."""

ASIDE_SECONDS, ASIDE_STEPS = 5.0, 10.0
"""Code between two steps that runs for this long, and for this many slow (p99) steps, is part of neither."""
_ASIDE_SHARE = 0.01
_NEVER_ASIDE = frozenset({"wait", "start", "eval", "save"})
"""Waits, however long; and what is a phase already."""
_SLOW_SHARE = 0.99

_USUAL_KEPT = 512
_FIRSTS_KEPT = 256
_ASIDES_KEPT = 64

_FADING_NS = 60 * SECOND_NS
_CLEARLY = 1.5  # times the waits of the one that was slowest: two that are alike would alternate
_NO_LONGER_READ = 64  # batches of others since its last one: the loop has gone on to another loader
_MOST_LOADERS = 64

_MOST_READINGS = 2_048
_FEWEST_READINGS = 20


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
        self._may_wait = False
        self._batch_ns = 0  # when the newest batch of training arrived
        self._outside_since_ns = 0
        self.asides = Asides()

    def add_facts(self, facts: RunFacts) -> None:
        """The newest facts count, but nothing that is seen from outside counts against the hook while its link lives.

        New loader settings move the border of an epoch's start.
        """
        if self.is_exact and facts.visibility != "exact":
            if self.ended is None or self.ended.how != "lost":
                return
            self._outside_since_ns = self.ended.time_ns
        elif facts.visibility == "exact" and not self.is_exact and (self.facts is not None or self.counts.total):
            self._forget_estimates()
        if self.facts is not None and self.facts.hooked and facts.visibility in ("process", "hardware"):
            hint = facts.how_to_see_more if facts.hooked else self.facts.how_to_see_more
            facts = replace(facts, hooked=True, how_to_see_more=hint)
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
        step = self._without_asides(step)
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
        self._batch_ns = max(self._batch_ns, wait.end_ns)
        if wait.loader is not None:
            self._loader_waits.add(wait.loader, wait.end_ns, seconds)
        head = self._settling.epoch_head(UNKNOWN if wait.loader is None else wait.loader)
        self.epochs.batch(wait.epoch_position, seconds, head)

    def add_phase(self, span: PhaseSpan) -> None:
        """A phase that opens or closes."""
        if self.phases.add(span, self.steps_total):
            self._see(span.start_ns, span.end_ns or span.start_ns)

    def see_standing(self, current_line: CurrentLine) -> None:
        """Where its thread stands: that alone shows from outside that it has left its loop, or does something else."""
        self.stacks.see(current_line)
        unseen = {"save"} if self.is_exact and self.phases.current() is None else set()
        self.asides.see(current_line, lambda since_ns: self._is_aside(since_ns, current_line.time_ns), unseen)

    def add_fetch(self, fetch: WorkerFetch) -> None:
        """A batch made by a worker."""
        self._hear(fetch.end_ns)
        if not self.stops.within(fetch.start_ns, fetch.end_ns):
            self.fetches.add(fetch)

    def add_tally(self, tally: StackTally) -> None:
        """A second of samples from outside. Charts begin with the loop that trains, that of waits with the first wait.

        A loop over a loader may wait from its beginning on, whether it does or not.
        """
        self._see_outside(tally.start_ns, tally.end_ns)
        self.stacks.add(tally)
        if self.is_exact and self.first_ns is None:
            self.first_ns = self.stacks.waiting_since_ns
        self._may_wait = self._may_wait or tally.phases.get("wait", 0) > 0
        if not self.is_exact and self.counts.first_ns is not None:
            self.tiers.add_tally(tally, has_wait=self._may_wait, has_batch_size=self.batch_size is not None)

    def add_count(self, count: BatchCount) -> None:
        """A reading of a loader's counter: it makes the steps of a trainer without a hook."""
        self._see_outside(count.time_ns, count.time_ns)
        self._may_wait = self._may_wait or count.loader != NO_LOADER
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
        """The loaders that feed evaluations, and those that the training does not wait for, unlike the one it does."""
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
        is_unread = self.facts is not None and self.facts.visibility in ("process", "hardware")
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

    def open_wait_seconds(self, now_ns: int) -> float | None:
        """How long its training thread has been in the next() that has not returned; None where it is in none.

        It began after the last batch: a thread that waits nearly always is sampled at nothing else for many of them.
        """
        since_ns, seen_ns = self.stacks.waiting_since_ns, self.stacks.end_ns
        if since_ns is None or seen_ns is None or self.ended is not None or now_ns - seen_ns > FRESH_NS:
            return None
        return max(0.0, (now_ns - max(since_ns, self.last_step_ns or 0, self._batch_ns)) / SECOND_NS)

    def silent_since_ns(self, now_ns: int) -> int | None:
        """The end of the last step, if its hook has reported none for so long that what it does is part of no step.

        None where its stack says what it does.
        """
        current_line = self.stacks.current_line
        if current_line is not None and now_ns - current_line.time_ns <= FRESH_NS:
            return None
        last_ns = self.last_step_ns if self.is_exact else None
        return last_ns if last_ns is not None and self._is_aside(last_ns, now_ns) else None

    def is_outside(self, now_ns: int) -> bool:
        """Whether no training loop runs, as its stack shows; where that is not read, as the end of its loader does."""
        current_line = self.stacks.current_line
        if current_line is not None and current_line.in_loop is not None and now_ns - current_line.time_ns <= FRESH_NS:
            return not current_line.in_loop and now_ns - (self.last_step_ns or 0) > SECOND_NS
        return self.phases.is_open(OUTSIDE)

    @property
    def is_exact(self) -> bool:
        """Whether its hook speaks for it."""
        return self.facts is not None and self.facts.visibility == "exact"

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

        Steps, warm-up, charts and phases that were seen from outside go; the stacks stay, next to the hook's figures.
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
        """Samples that continue after the hook's link was lost do not bring it back."""
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

    def _is_aside(self, since_ns: int, now_ns: int) -> bool:
        """Whether what lasts since then, with no step, is none of what its steps are made of.

        What comes oftener than once in a hundred steps is: the rollouts of reinforcement learning.
        """
        if self.asides.count + 1 > self.steps_total * _ASIDE_SHARE:
            return False
        since_ns = max(since_ns, self.last_step_ns or 0)
        slow = self.session.quantile(_SLOW_SHARE) if self.is_exact else self.usual_step_seconds()
        return (now_ns - since_ns) / SECOND_NS > max(ASIDE_SECONDS, ASIDE_STEPS * (slow or 0.0))

    def asides_between(self, start_ns: int, now_ns: int) -> list[Span]:
        """Stretches of no step, the one under way included: without its stack a long silence of a hook is one.

        A hook reports a wait when it has ended, so the silence may be one; it counts as such once it has.
        """
        found = self.asides.spans(start_ns, now_ns)
        line, last_ns = self.stacks.current_line, self.last_step_ns
        unseen = self.is_exact and (line is None or now_ns - line.time_ns > FRESH_NS)
        if unseen and last_ns is not None and last_ns < now_ns and self._is_aside(last_ns, now_ns):
            found.append((last_ns, now_ns))
        return found

    def _without_asides(self, step: StepEnd) -> StepEnd:
        """The step less what the script did outside of its loop, or less all beyond a usual one where it took long.

        Waits for data stay: however long, they are what they are.
        """
        if step.end_ns - step.start_ns <= ASIDE_SECONDS * SECOND_NS:
            return step
        spans, waited = self.asides.spans(step.start_ns, step.end_ns), step.wait_seconds or 0.0
        training_ns = step.end_ns - step.start_ns - round((step.phase_seconds + waited) * SECOND_NS)
        if waited * SECOND_NS > training_ns:
            return step
        if not spans and self._is_aside(step.end_ns - training_ns, step.end_ns):
            self.asides.count += 1
            self.asides.add(step.end_ns - training_ns, step.end_ns)
            return without_stop(step, (self.usual_step_seconds() or 0.0) + waited)
        aside_ns = min(covered_ns(spans, step.start_ns, step.end_ns), max(0, training_ns))
        return without_stop(step, (training_ns - aside_ns) / SECOND_NS + waited)

    def _is_settled(self, end_ns: int, position: int, loader: int, samples: float) -> bool:
        if self.warm_up.over_ns is None or end_ns <= self.warm_up.over_ns:
            return False
        return self._settling.holds(position, loader, samples)

    def _settle_again(self) -> None:
        """Judges the raw rows again; the tiers keep the first judgement."""
        settle(self.steps, self._is_settled)


class Asides:
    """Stretches in which the training thread was outside of its loop, or for very long at something that is no step.

    The first call of a new graph, metrics after an epoch, a barrier at which others wait: what it does instead is known
    where its stack is sampled, and that it is over when the step has ended.
    """

    def __init__(self) -> None:
        self.count = 0
        """Of those within the loop."""
        self._open_ns: int | None = None
        self._since_ns = 0  # when it was first sampled at what it does,
        self._doing = ("", False)  # a phase, in its loop or outside
        self._spans: deque[Span] = deque(maxlen=_ASIDES_KEPT)

    def see(self, current_line: CurrentLine, is_aside: Callable[[int], bool], unseen: Collection[str] = ()) -> None:
        """Takes one sample.

        Args:
            current_line: where the thread is.
            is_aside: whether what lasts since then is no part of a step.
            unseen: phases that the hook should have reported and did not: saves by other libraries than torch.
        """
        left = current_line.in_loop is False
        if (current_line.phase, left) != self._doing:
            self._doing, self._since_ns = (current_line.phase, left), min(current_line.since_ns, current_line.time_ns)
        never = current_line.phase in _NEVER_ASIDE and current_line.phase not in unseen
        aside = left or (not never and is_aside(self._since_ns))
        if aside and self._open_ns is None:
            self.count += not left
            self._open_ns = self._since_ns
        elif not aside and self._open_ns is not None:
            self.add(self._open_ns, current_line.time_ns)
            self._open_ns = None

    def add(self, start_ns: int, end_ns: int) -> None:
        """One that is over."""
        self._spans.append((start_ns, end_ns))

    def spans(self, start_ns: int, end_ns: int) -> list[Span]:
        """Those that reach into the time between two moments."""
        found = [span for span in self._spans if span[1] > start_ns and span[0] < end_ns]
        if self._open_ns is not None and self._open_ns < end_ns:
            found.append((self._open_ns, end_ns))
        return found


class EpochStarts:
    """Adds up the waits between two epochs and for the first batches of each, against the usual wait.

    Ending workers that do not persist took 28 ms of epochs of 360 ms, a third of what the start of the next took.

    The session's first epoch does not count: its workers have to be started whatever the settings. Where epochs end
    before each worker has had its turn, the usual wait is that for the batches behind the first.
    """

    __slots__ = (
        "_count",
        "_edge_seconds",
        "_firsts",
        "_head_batches",
        "_head_seconds",
        "_is_first",
        "_later",
        "_seen",
        "_usual",
    )

    def __init__(self) -> None:
        self._seen = False
        self._is_first = False
        self._count = 0
        self._edge_seconds = 0.0  # since the last batch
        self._head_batches = 0
        self._head_seconds = 0.0
        self._firsts: deque[float] = deque(maxlen=_FIRSTS_KEPT)
        self._later: deque[float] = deque(maxlen=_USUAL_KEPT)  # of an epoch's start, but for the first one
        self._usual: deque[float] = deque(maxlen=_USUAL_KEPT)

    def edge(self, seconds: float) -> None:
        """Takes the end of an epoch or the making of an iterator: no batch comes of it."""
        if self._seen:
            self._edge_seconds += seconds
            self._head_seconds += seconds

    def batch(self, position: int, wait_seconds: float, head: int) -> None:
        """Takes one training batch's wait; `head` is how many batches belong to the start of an epoch."""
        if position == 0:
            self._is_first = not self._seen
            if not self._is_first:
                self._count += 1
                self._firsts.append(self._edge_seconds + wait_seconds)
        self._seen = True
        self._edge_seconds = 0.0
        if position >= head:
            self._usual.append(wait_seconds)
        elif not self._is_first:
            self._head_batches += 1
            self._head_seconds += wait_seconds
            if position:
                self._later.append(wait_seconds)

    def totals(self, wall_seconds: float, batches_per_epoch: int | None) -> EpochTotals | None:
        """The cost so far; None before the second epoch, or where every epoch has one batch."""
        usual_waits = self._usual or self._later
        if not self._count or not usual_waits or wall_seconds <= 0:
            return None
        usual = median(usual_waits)
        excess = max(0.0, self._head_seconds - self._head_batches * usual)
        return EpochTotals(
            count=self._count,
            excess_seconds=excess,
            share=min(1.0, excess / wall_seconds),
            first_wait_seconds=median(self._firsts),
            usual_wait_seconds=usual,
            batches_per_epoch=batches_per_epoch,
        )


class LoaderWaits:
    """The seconds waited for each loader, those of a minute ago counting a third."""

    def __init__(self) -> None:
        self.slowest: int | None = None
        self._waited: dict[int, tuple[int, float]] = {}
        self._others = 0
        """Batches of other loaders since the last one of the slowest."""

    def add(self, loader: int, end_ns: int, seconds: float) -> None:
        """One wait for a batch of it."""
        if len(self._waited) >= _MOST_LOADERS and loader not in self._waited:
            self._waited.clear()
        self._waited[loader] = end_ns, self._seconds(loader, end_ns) + seconds
        self._others = 0 if loader == self.slowest else self._others + 1
        if self.slowest is None or self._others > _NO_LONGER_READ or self._is_slower(loader, end_ns):
            self.slowest, self._others = loader, 0

    def _is_slower(self, loader: int, now_ns: int) -> bool:
        assert self.slowest is not None
        return self._seconds(loader, now_ns) > _CLEARLY * self._seconds(self.slowest, now_ns)

    def _seconds(self, loader: int, now_ns: int) -> float:
        last_ns, seconds = self._waited.get(loader, (now_ns, 0.0))
        return seconds * math.exp(min(0, last_ns - now_ns) / _FADING_NS)


class MemoryLog:
    """The newest reading, whose peaks are of the whole run, and 15 min of the counter of retries and of the peak."""

    __slots__ = ("_latest", "_rows")

    def __init__(self) -> None:
        self._latest: RunMemory | None = None
        columns = dict.fromkeys(("alloc_retries", "peak", "steps"), "d")
        self._rows = Table(columns, max_age_ns=RAW_NS, max_rows=_MOST_READINGS)

    def add(self, memory: RunMemory, steps: int = 0) -> None:
        """Takes one reading, made after this many steps."""
        self._latest = memory
        row = (number(memory.alloc_retries), number(memory.allocated_peak_bytes), steps)
        self._rows.add(memory.time_ns, row)

    def totals(self, start_ns: int, end_ns: int) -> MemoryTotals | None:
        """The allocator over (start, end]; None before its first reading."""
        latest = self._latest
        if latest is None:
            return None
        low = max(0, self._rows.since(start_ns) - 1)
        retries = known(self._rows["alloc_retries"][low : self._rows.until(end_ns)])
        return MemoryTotals(
            allocated_peak_bytes=latest.allocated_peak_bytes,
            reserved_peak_bytes=latest.reserved_peak_bytes,
            total_bytes=latest.total_bytes,
            alloc_retries=round(max(0.0, retries[-1] - retries[0])) if len(retries) > 1 else None,
            out_of_memory=latest.out_of_memory,
            growth=self._growth(end_ns),
        )

    def _growth(self, end_ns: int) -> PeakGrowth | None:
        """The peak's rise by quarters of the time; None where one of them holds no reading."""
        low, high = bisect_left(self._rows["steps"], _EARLY_STEPS), self._rows.until(end_ns)
        times, peaks, steps = self._rows.times[low:high], self._rows["peak"][low:high], self._rows["steps"][low:high]
        if len(times) < _FEWEST_READINGS or any(peak != peak for peak in peaks):
            return None
        bounds = [times[0] + (times[-1] - times[0]) * part // 4 for part in range(5)]
        at = [peaks[bisect_right(times, bound) - 1] for bound in bounds]
        first, second, third, fourth = (round(after - before) for before, after in pairwise(at))
        return PeakGrowth(
            seconds=(times[-1] - times[0]) / SECOND_NS,
            steps=round(steps[-1] - steps[0]),
            start_bytes=round(at[0]),
            quarters_bytes=(first, second, third, fourth),
        )

    def trim(self, now_ns: int) -> None:
        """Drops what is too old."""
        self._rows.trim(now_ns)
