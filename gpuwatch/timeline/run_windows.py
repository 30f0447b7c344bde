"""What runs and their ranks did in a window, cut from their histories."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from operator import eq

from gpuwatch.timeline.columns import Table
from gpuwatch.timeline.figures import (
    PARTS,
    STEPS,
    StepSums,
    critical_rank,
    quotient,
    rank_figures,
    run_rate,
    sampled_sums,
)
from gpuwatch.timeline.gpu import RAW_NS as GPU_RAW_NS
from gpuwatch.timeline.gpu import GpuHistory
from gpuwatch.timeline.host import ProcessHistory, with_batches
from gpuwatch.timeline.phases import LOST_TIME, OUTSIDE, PAUSES, STOPPED, recompiles
from gpuwatch.timeline.runs import Run, gpus_of_trainer
from gpuwatch.timeline.spans import Span, covered_ns, united
from gpuwatch.timeline.stacks import NOT_TRAINING
from gpuwatch.timeline.stats import median, stats
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.trainer import RAW_NS, TrainerHistory
from gpuwatch.timeline.windows import RankWindow, RunWindow, StackWindow, StepColumns, WorkerTotals

_MOST_COLUMNS = 4_096
_MOST_SPANS = 512
_SESSION_SHARE = 0.99
_LASTING_NS = 300 * SECOND_NS


def run_window(
    run: Run,
    gpus: Mapping[str, GpuHistory],
    gpu_uuids: tuple[str, ...],
    processes: Mapping[tuple[int, int], ProcessHistory],
    now_ns: int,
    window_ns: int,
) -> RunWindow:
    """One run over (now - window, now]."""
    ranks = []
    for trainer in run.trainers:
        assert trainer.facts is not None
        process = processes.get((trainer.facts.pid, trainer.facts.start_ticks))
        rank = rank_window(trainer, process, now_ns, window_ns)
        ranks.append(replace(rank, facts=replace(rank.facts, gpu_uuids=gpus_of_trainer(rank.facts, gpus))))
    return RunWindow(
        id=run.id,
        title=run.title,
        ranks=tuple(ranks),
        critical=critical_rank(ranks),
        gpu_uuids=gpu_uuids,
        samples_per_second=run_rate([(rank.ended is not None, rank.samples_per_second) for rank in ranks]),
        usual_power_watts=_usual_power(run, gpus, gpu_uuids),
    )


def pauses_of(run: Run, start_ns: int, now_ns: int) -> list[Span]:
    """When a GPU of this run has no training to show: warm-up, phases on any rank, outside of its loop, after the end.

    A checkpoint of rank 0 holds up the others too. A run of which neither steps nor stacks are seen pauses never, as
    far as is known; one whose stacks are read may be in an evaluation before the first batch is counted.
    """
    spans: list[Span] = []
    for trainer in run.trainers:
        spans += trainer.asides.spans(start_ns, now_ns)
        spans += trainer.phases.stretches(OUTSIDE, start_ns, now_ns)
        if not trainer.steps_total and trainer.stacks.end_ns is not None and not trainer.is_exact:
            spans += trainer.phases.stretches(PAUSES, start_ns, now_ns)
    stepping = [trainer for trainer in run.trainers if trainer.steps_total]
    for trainer in stepping:
        warm_ns = trainer.warm_up.over_ns
        spans.append((start_ns, now_ns if warm_ns is None else warm_ns))
        spans += trainer.phases.stretches(PAUSES, start_ns, now_ns)
    if stepping and run.has_ended:
        spans.append((max(trainer.seen_ns for trainer in run.trainers), now_ns))
    return united((start, end) for start, end in spans if end > start)


def training_start_ns(run: Run, now_ns: int, window_ns: int) -> int:
    """Where the figures of a run's ranks begin, with which the utilization of its GPUs is compared."""
    starts_ns = (bounds_of(trainer, now_ns, window_ns).start_ns for trainer in run.trainers)
    return min(now_ns - window_ns, *starts_ns)


def _usual_power(run: Run, gpus: Mapping[str, GpuHistory], gpu_uuids: tuple[str, ...]) -> Mapping[str, float]:
    """Median power of each GPU over the 10 min up to the run's last step, from the tier that reaches so far back."""
    ends = [trainer.last_step_ns for trainer in run.trainers if trainer.last_step_ns is not None]
    if not ends:
        return {}
    last_ns = max(ends)
    first_ns = max(last_ns - GPU_RAW_NS, min(began_ns(trainer) for trainer in run.trainers))
    powers = {uuid: median(gpus[uuid].tiers["power_watts"].means(first_ns, last_ns)) for uuid in gpu_uuids}
    return {uuid: power for uuid, power in powers.items() if power is not None}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The stretch that is looked at: not before the trainer began, not after it ended."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / SECOND_NS


def bounds_of(history: TrainerHistory, now_ns: int, window_ns: int) -> Bounds:
    """The window of this trainer, stretched to what 30 of its steps take, 15 min at most."""
    window_ns = max(window_ns, min(_thirty_steps_ns(history, now_ns), RAW_NS))
    end_ns = min(now_ns, history.ended.time_ns) if history.ended else now_ns
    start_ns = max(now_ns - window_ns, began_ns(history))
    return Bounds(min(start_ns, end_ns), end_ns)


def _thirty_steps_ns(history: TrainerHistory, now_ns: int) -> int:
    """How long ago 30 steps began, with the pauses between them; of fewer, at their pace.

    The step under way is added up to the longest of them: a run that makes no more steps is left behind.
    """
    ends = history.steps.times[-STEPS - 1 :]
    if len(ends) < 2:
        return round(STEPS * (history.usual_step_seconds() or 0.0) * SECOND_NS)
    longest_ns = max(end - before for before, end in pairwise(ends))
    return STEPS * (ends[-1] - ends[0]) // (len(ends) - 1) + min(max(0, now_ns - ends[-1]), longest_ns)


def began_ns(history: TrainerHistory) -> int:
    """When the first step or batch began that was seen; before one, when the trainer was first heard of.

    From outside, the imports of the first half minute are seen too: they are no part of the loop.
    """
    if not history.is_exact and history.counts.first_ns is not None:
        return history.counts.first_ns
    return history.first_ns if history.first_ns is not None else history.seen_ns


def sums_over(history: TrainerHistory, stacks: StackWindow | None, bounds: Bounds, *, most_rows: int) -> StepSums:
    """The sums of a stretch: from its steps where they are all there and few enough, else from whole buckets.

    Without a hook, they are those of the stacks, which do not know the parts of a step one by one.
    """
    if not history.is_exact:
        return _sampled_sums(history, stacks, bounds)
    rows = rows_of(history, bounds)
    if history.steps.reaches(bounds.start_ns) and rows.stop - rows.start <= most_rows:
        return sums_of_rows(history.steps, rows)
    return history.tiers.sums(bounds.start_ns, bounds.end_ns)


def rows_of(history: TrainerHistory, bounds: Bounds) -> slice:
    """The steps of a stretch that are kept one by one; none without a hook."""
    steps = history.steps
    return slice(steps.since(bounds.start_ns), steps.until(bounds.end_ns)) if history.is_exact else slice(0, 0)


def rank_window(history: TrainerHistory, process: ProcessHistory | None, now_ns: int, window_ns: int) -> RankWindow:
    """One trainer over (now - window, now].

    Sums are of the whole window; where it is longer than the raw steps reach (15 min or 16 384 steps), distributions,
    columns and stacks are of its newest part. Without a hook there are no steps one by one, so no columns, and the
    figures are those of the stacks. `history.facts` must be known.
    """
    facts = history.facts
    assert facts is not None
    bounds = bounds_of(history, now_ns, window_ns)
    steps, rows, stacks = history.steps, rows_of(history, bounds), stacks_over(history, bounds)
    sums = sums_over(history, stacks, bounds, most_rows=len(steps))
    if history.is_exact:
        sums = replace(sums, steps_wall=bounds.seconds)
        if not steps.reaches(bounds.start_ns):
            sums = with_parts(sums, sums_of_rows(steps, rows))
    asides = history.asides.spans(bounds.start_ns, bounds.end_ns)
    lasting = _lasting_sums(history, bounds.end_ns)
    train_loader = history.train_loader()
    return RankWindow(
        trainer=history.trainer,
        facts=facts,
        window_seconds=bounds.seconds,
        **rank_figures(sums),
        steps_total=history.steps_total,
        warm=history.warm_up.over_ns is not None,
        columns=_columns(history, rows),
        step_seconds=stats(steps["period"][rows]),
        step_p99_session_seconds=history.session.quantile(_SESSION_SHARE),
        wait_cpu_share=quotient(*_paired(steps["wait_cpu"][rows], steps["wait"][rows])),
        last_step_ns=history.last_step_ns,
        open_phase=history.phases.current(),
        eval_cycles=history.phases.cycles("eval", bounds.end_ns),
        outside=history.is_outside(now_ns),
        aside_seconds=covered_ns(asides, bounds.start_ns, bounds.end_ns) / SECOND_NS,
        phase_spans=history.phases.newest(bounds.start_ns, bounds.end_ns, _MOST_SPANS),
        phases=history.phases.totals(bounds.start_ns, bounds.end_ns) if bounds.seconds > 0 else {},
        train_loader=train_loader,
        eval_loaders=tuple(loader for loader in facts.loaders if loader.role == "eval"),
        workers=_workers(history, process, rows, bounds),
        process=process.totals(bounds.start_ns, bounds.end_ns) if process else None,
        memory=history.memory.totals(bounds.start_ns, bounds.end_ns),
        pace=history.pace.pace(),
        recompiles=recompiles(history.phases, history.hundredth_ns, bounds.end_ns),
        epochs=history.epochs.totals(
            _session_seconds(history), train_loader.batches_per_epoch if train_loader else None
        ),
        ended=history.ended.how if history.ended else None,
        dropped_records=sum(loss.dropped for loss in history.losses if loss.time_ns > bounds.start_ns),
        stacks=stacks,
        watched_seconds=None if history.first_ns is None else max(0.0, (now_ns - history.first_ns) / SECOND_NS),
        lasting_wait_share=lasting.settled_wait_share,
        lasting_gap_share=lasting.gap_share,
    )


def _workers(
    history: TrainerHistory, process: ProcessHistory | None, rows: slice, bounds: Bounds
) -> WorkerTotals | None:
    """What the workers' processes show, and their own records say of the batches since the first of these steps."""
    began_ns = _began_ns(history, rows, bounds.start_ns)
    phases = history.phases.stretches(LOST_TIME, began_ns, bounds.end_ns)
    fetched = history.fetches.totals(began_ns, bounds.end_ns, phases, without=history.other_loaders())
    return with_batches(process.workers(bounds.start_ns, bounds.end_ns) if process else None, fetched)


def _lasting_sums(history: TrainerHistory, end_ns: int) -> StepSums:
    """The sums of the last five minutes or since the run began: the report's window, next to the rules' minute."""
    return history.tiers.sums(max(end_ns - _LASTING_NS, began_ns(history)), end_ns)


def stacks_over(history: TrainerHistory, bounds: Bounds, *, with_lines: bool = True) -> StackWindow | None:
    """The stacks of a stretch; with a hook without the loader's counter, because the hook counts exactly."""
    if history.is_exact:
        return history.stacks.window(bounds.start_ns, bounds.end_ns, with_lines=with_lines)
    stops = history.phases.stretches(STOPPED, bounds.start_ns, bounds.end_ns)
    return history.stacks.window(bounds.start_ns, bounds.end_ns, history.counts, stops, with_lines=with_lines)


def _sampled_sums(history: TrainerHistory, stacks: StackWindow | None, bounds: Bounds) -> StepSums:
    """What stack samples and the loader's counter say of a stretch.

    Where it is longer than the stacks reach (15 min), sums are of the tiers, parts of its newest stretch.
    """
    if stacks is None:
        return StepSums()
    rate = stacks.batches_per_second
    parts = {phase: share.value for phase, share in stacks.train_phases.items()}
    sums = sampled_sums(
        stacks.seconds,
        1.0 - sum(stacks.phases[phase].value for phase in NOT_TRAINING) if stacks.phases else 0.0,
        parts,
        steps=float(stacks.batches),
        counted_seconds=stacks.batches / rate if rate else None if rate is None else stacks.seconds,
        reads_loader=rate is not None and stacks.batches_of_loader,
        batch_size=history.batch_size,
    )
    if history.stacks.reaches(bounds.start_ns):
        return sums
    longer = history.tiers.sums(bounds.start_ns, bounds.end_ns)
    wait_steps = longer.steps * (quotient(longer.wait_train, longer.train) or 0.0)
    longer = replace(longer, wait_steps=wait_steps, steps_wall=bounds.seconds)
    return with_parts(longer, sums)


def with_parts(sums: StepSums, others: StepSums) -> StepSums:
    """The sums of a stretch with the parts of steps of its newest stretch."""
    names = [name for part in PARTS for name in (part, f"{part}_train")]
    return replace(sums, **{name: getattr(others, name) for name in names})


def sums_of_rows(steps: Table, rows: slice) -> StepSums:
    """The same sums as the tiers', exactly within the window."""
    period, settled = steps["period"][rows], steps["settled"][rows]
    waits = steps["wait"][rows]
    wait, wait_train = _paired(waits, period)
    samples, samples_train = _paired(steps["samples"][rows], period)
    settled_period = array("f", compress(period, settled))
    settled_wait, settled_wait_train = _paired(array("f", compress(waits, settled)), settled_period)
    gap, gap_train = _paired(array("f", compress(steps["gap"][rows], settled)), settled_period)
    train, parts = sum(period), {}
    for name in PARTS:
        parts[name], parts[f"{name}_train"] = _paired(steps[name][rows], period)
    return StepSums(
        steps=float(len(period)),
        steps_train=train,
        train=train,
        wait=wait,
        wait_train=wait_train,
        wait_steps=float(sum(map(eq, waits, waits))),
        samples=samples,
        samples_train=samples_train,
        batches=sum(steps["batches"][rows]),
        settled_wait=settled_wait,
        settled_wait_train=settled_wait_train,
        settled_gap=gap,
        settled_gap_train=gap_train,
        **parts,
    )


def _paired(amounts: array[float], seconds: array[float]) -> tuple[float, float]:
    """The sum of the known amounts, and of the seconds that belong to them."""
    total = sum(amounts)
    if total == total:
        return total, sum(seconds)
    is_known = list(map(eq, amounts, amounts))
    return sum(compress(amounts, is_known)), sum(compress(seconds, is_known))


def _began_ns(history: TrainerHistory, rows: slice, start_ns: int) -> int:
    """When the first of these steps began: it may have waited for a batch that was done just before the window."""
    if rows.start >= rows.stop:
        return start_ns
    ended_ns, seconds = int(history.steps.times[rows.start]), float(history.steps["period"][rows.start])
    return min(start_ns, ended_ns - round(seconds * SECOND_NS))


def _columns(history: TrainerHistory, rows: slice) -> StepColumns:
    steps = history.steps
    newest = slice(max(rows.start, rows.stop - _MOST_COLUMNS), rows.stop)
    return StepColumns(
        number=steps["number"][newest],
        end_ns=steps.times[newest],
        period_seconds=steps["period"][newest],
        wait_seconds=steps["wait"][newest],
        gap_seconds=steps["gap"][newest],
        samples=steps["samples"][newest],
        epoch_position=steps["epoch_position"][newest],
        settled=[bool(each) for each in steps["settled"][newest]],
    )


def _session_seconds(history: TrainerHistory) -> float:
    if history.last_step_ns is None or history.first_ns is None:
        return 0.0
    return (history.last_step_ns - history.first_ns) / SECOND_NS
