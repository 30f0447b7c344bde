"""Which trainers make one run, what it is called, which GPUs it uses, and what it did in a window."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from operator import eq
from pathlib import PurePath

from gpuwatch.samples import GpuProcess, HostSample, RunFacts, TrainerEnded
from gpuwatch.timeline.columns import SECOND_NS, Table
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
from gpuwatch.timeline.host import ProcessHistory
from gpuwatch.timeline.phases import LOST_TIME, OUTSIDE, PAUSES, STOPPED, recompiles
from gpuwatch.timeline.stacks import NOT_TRAINING
from gpuwatch.timeline.times import Span, covered_ns, united
from gpuwatch.timeline.trainer import RAW_NS, TrainerHistory
from gpuwatch.timeline.windows import RankWindow, RunWindow, StackWindow, StepColumns, WorkerTotals, median, stats

_GONE_NS = 5 * SECOND_NS
_LOST_SIGHT_NS = 5 * SECOND_NS
_OWN_MEMORY = 0.25  # of the most that a process holds on one GPU
_INTERPRETER_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


Identity = tuple[int, int]
"""Pid and start time in clock ticks: a pid alone is reused."""


class ProcessSet(frozenset[int]):
    """Processes that are chosen, as a set of their pids that knows when each began.

    A pid whose start time is not known stands for the process that has it.
    """

    _starts: dict[int, set[int]]

    @classmethod
    def of(cls, identities: Iterable[Identity], unknown: Iterable[int] = ()) -> ProcessSet:
        """Those processes, and those pids of which nothing more is known."""
        starts: dict[int, set[int]] = {}
        for pid, start_ticks in identities:
            starts.setdefault(pid, set()).add(start_ticks)
        loose = frozenset(unknown) - starts.keys()
        made = cls(starts.keys() | loose)
        made._starts = starts
        return made

    def holds(self, pid: int, start_ticks: int) -> bool:
        """Whether this very process is among them."""
        return pid in self and start_ticks in self._starts.get(pid, (start_ticks,))


def holds(chosen: frozenset[int], pid: int, start_ticks: int) -> bool:
    """Whether a process is chosen; by its pid alone where only pids are known."""
    return chosen.holds(pid, start_ticks) if isinstance(chosen, ProcessSet) else pid in chosen


@dataclass(frozen=True, slots=True)
class Run:
    """The trainers of one job, by rank; every one has facts."""

    id: str
    title: str
    trainers: tuple[TrainerHistory, ...]

    @property
    def pids(self) -> frozenset[int]:
        """Of its trainers."""
        return frozenset(trainer.facts.pid for trainer in self.trainers if trainer.facts)

    def is_of(self, chosen: frozenset[int]) -> bool:
        """Whether any of its trainers is among the chosen processes."""
        return any(
            trainer.facts is not None and holds(chosen, trainer.facts.pid, trainer.facts.start_ticks)
            for trainer in self.trainers
        )

    def is_watched(self, now_ns: int) -> bool:
        """Whether its figures are still being taken. A hook speaks when there is something to say.

        Seen from outside, a process that lives is sampled every second; once it is no longer sampled, its
        state is unknown.
        """
        return any(
            trainer.is_exact or trainer.ended or now_ns - trainer.seen_ns <= _LOST_SIGHT_NS for trainer in self.trainers
        )

    @property
    def seen_ns(self) -> int:
        """When any of them was heard last."""
        return max(trainer.seen_ns for trainer in self.trainers)

    @property
    def has_ended(self) -> bool:
        """Whether none of them lives."""
        return all(trainer.ended is not None for trainer in self.trainers)


def grouped(trainers: Iterable[TrainerHistory]) -> list[Run]:
    """The runs, oldest first. Trainers that have not introduced themselves belong to none yet."""
    members: dict[str, list[TrainerHistory]] = {}
    for trainer in trainers:
        if trainer.facts is not None:
            members.setdefault(run_id_of(trainer.facts), []).append(trainer)
    return [_run(run_id, found) for run_id, found in members.items()]


def newest(trainers: Collection[TrainerHistory], count: int) -> set[str]:
    """The trainers of `count` runs, living ones first, and as many that have not introduced themselves."""
    runs = sorted(grouped(trainers), key=lambda run: (run.has_ended, -run.seen_ns))
    ids = {run.id for run in runs[:count]}
    nameless = sorted((each for each in trainers if each.facts is None), key=lambda each: -each.seen_ns)
    named = {each.trainer for each in trainers if each.facts and run_id_of(each.facts) in ids}
    return named | {each.trainer for each in nameless[:count]}


def run_id_of(facts: RunFacts) -> str:
    """The run that a trainer belongs to."""
    return facts.group or facts.trainer


def _run(run_id: str, members: list[TrainerHistory]) -> Run:
    """Where a job was started again under its old address, a rank's newest trainer stands for it.

    Ranks beyond the newest trainer's world are those of the larger job before.
    """
    by_rank: dict[object, TrainerHistory] = {}
    world_size = None
    for trainer in members:
        assert trainer.facts is not None
        rank, world_size = trainer.facts.rank, trainer.facts.world_size
        by_rank[trainer.trainer if rank is None else rank] = trainer
    everyone = sorted(by_rank.values(), key=_rank)
    # A trainer may claim a rank beyond its own world.
    ordered = [each for each in everyone if world_size is None or _rank(each)[0] < world_size] or everyone
    first = ordered[0].facts
    assert first is not None
    return Run(run_id, title_of(first.command), tuple(ordered))


def _rank(trainer: TrainerHistory) -> tuple[int, int]:
    assert trainer.facts is not None
    rank = trainer.facts.rank
    return (0 if rank is None else rank, trainer.facts.pid)


def unhooked(pid: int, start_ticks: int, process: ProcessHistory, host: HostSample | None) -> Run:
    """A process without a hook, as a run without steps. Once the host goes on without it, it has ended."""
    sample = process.latest
    assert sample is not None
    trainer = TrainerHistory(f"{pid}.{start_ticks}")
    trainer.add_facts(
        RunFacts(
            time_ns=sample.time_ns,
            trainer=trainer.trainer,
            pid=pid,
            start_ticks=start_ticks,
            command=tuple((sample.command or f"process {pid}").split()),
            cpu_affinity=sample.affinity_cores,
            visibility="process",
        )
    )
    trainer.first_ns = process.rows.times[0]
    if host is not None and host.time_ns - sample.time_ns > _GONE_NS:
        trainer.end(TrainerEnded(trainer.trainer, sample.time_ns, "exited"))
    return _run(trainer.trainer, [trainer])


def title_of(command: tuple[str, ...]) -> str:
    """What a user calls the run: the script's or module's name, without the interpreter and its options."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, word)
        if word == "-c":
            return f"{PurePath(command[0]).name} -c"
        if word in _INTERPRETER_OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return PurePath(word).name
    return PurePath(command[0]).name if command else "unknown command"


def gpus_of(
    run: Run, gpus: Mapping[str, GpuHistory], processes: Mapping[tuple[int, int], ProcessHistory]
) -> tuple[str, ...]:
    """The UUIDs of its GPUs, by index: what the trainers say, else where NVML sees their processes."""
    said = {uuid for trainer in run.trainers if trainer.facts for uuid in trainer.facts.gpu_uuids}
    if said:
        return _by_index(_known(said, gpus), gpus)
    pids = set(run.pids)
    for trainer in run.trainers:
        assert trainer.facts is not None
        process = processes.get((trainer.facts.pid, trainer.facts.start_ticks))
        if process is not None and process.latest is not None:
            pids.update(worker.pid for worker in process.latest.workers)
    return _by_index({uuid for uuid, gpu in gpus.items() if pids & _pids_on(gpu)}, gpus)


def gpus_of_trainer(facts: RunFacts, gpus: Mapping[str, GpuHistory]) -> tuple[str, ...]:
    """The UUIDs of one trainer's GPUs: what it says, else, by index, where NVML sees most of its memory.

    Each rank of a job may have a small context on the first GPU, in addition to its own.
    """
    if facts.gpu_uuids:
        return _by_index(_known(facts.gpu_uuids, gpus), gpus) or facts.gpu_uuids
    held = {
        uuid: process.memory_bytes
        for uuid, gpu in gpus.items()
        for process in _processes_on(gpu)
        if process.pid == facts.pid
    }
    most = max((held_bytes for held_bytes in held.values() if held_bytes is not None), default=0)
    return _by_index({uuid for uuid, bytes_ in held.items() if bytes_ is None or bytes_ >= _OWN_MEMORY * most}, gpus)


def _pids_on(gpu: GpuHistory) -> set[int]:
    return {process.pid for process in _processes_on(gpu) if process.pid is not None}


def _processes_on(gpu: GpuHistory) -> tuple[GpuProcess, ...]:
    status = gpu.latest_status
    return () if status is None or status.processes is None else status.processes


def _known(said: Iterable[str], gpus: Iterable[str]) -> set[str]:
    """Those as NVML names them: it writes "GPU-1f2e...", torch the same without the prefix."""
    plain = {uuid.removeprefix("GPU-").lower() for uuid in said}
    return {uuid for uuid in gpus if uuid.removeprefix("GPU-").lower() in plain}


def _by_index(uuids: set[str], gpus: Mapping[str, GpuHistory]) -> tuple[str, ...]:
    def index(uuid: str) -> tuple[int, str]:
        facts = gpus[uuid].facts
        return (facts.index if facts else len(gpus), uuid)

    return tuple(sorted(uuids, key=index))


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
        spans += trainer.asides_between(start_ns, now_ns)
        spans += trainer.phases.stretches(OUTSIDE, start_ns, now_ns)
        silent_ns = trainer.silent_since_ns(now_ns)
        if silent_ns is not None:
            spans.append((silent_ns, now_ns))
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

    Sums are of the whole window; where it is longer than the raw steps reach (15 min or 16,384 steps), distributions,
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
        open_wait_seconds=history.open_wait_seconds(now_ns),
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
    workers = process.workers(bounds.start_ns, bounds.end_ns) if process else None
    return history.fetches.added_to(workers, began_ns, bounds.end_ns, phases, without=history.other_loaders())


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
