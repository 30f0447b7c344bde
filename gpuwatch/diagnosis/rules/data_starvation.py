"""The GPU sits idle because the next batch is not ready.

Means:
    Loading and preparing batches is slower than training on them. A faster GPU, lower precision or a compiled model
    would only wait longer, so this comes before all of those.
Evidence:
    S, the share of training time in which the GPU idles because of the wait. Exact: two CUDA events around the loader's
    next(), or a hooked run that computes on the CPU, where nothing is queued. Estimated: the smaller of the wait in
    next() and of 100% less utilization. Without a hook the wait is the share of at least 600 samples of the training
    thread's stack that are in next(), given with its 95% interval; longer first waits of epochs are left out. For a
    loop that makes its own batches it is the share of the function that makes them. Where a thread makes them ahead,
    the loop waits for its queue or task, which the hook does not see: then the wait is a share of samples, with a hook
    too, and the threads are sampled as well. Stacks name the line of loading that costs most. In a process that reads a
    loader for 10 s and trains nothing (inference), batches count as steps. Before there are enough steps: how long it
    has waited for batches, including the present one as long as its workers are making it, and how long all workers
    together have taken per batch, compared with a step. Hardware readings alone prove nothing.
Fires:
    S of at least 10%, not counting the 1.2 ms that handing over a ready batch costs; critical from 20% and 50 steps.
    Time at the starts of epochs counts too where its own rule does not warn, because persistent workers would not win
    it back. At once, from eight settled steps on, where the 95% interval of S lies above 20%. With few steps or none:
    information after 20 s of waiting, a warning after 60 s, unless the workers make batches as fast as the first steps
    take them; once five steps are known, only where the workers' batches come so slowly that a fifth of the time is
    lost.
Clears:
    Below 6%, and over the last five minutes below 5% or more than twice the present loss: a few better minutes of a
    fluctuating run do not clear it. At once where nothing was lost for 20 s, and for three times as long as the losses
    ever paused before, unless a few slow items cause the loss: those can stay away that long by chance.
Not when:
    Warm-up and compilation; evaluation, checkpoints, logging and epoch starts, which have their own rules; a last,
    smaller batch; workers that are idle and hand over batches as fast as workers can; a wait that is hidden behind
    GPU work still queued (waiting 59% of the time cost 0% there). A loop without a loader that computes on the
    CPU and has less than a tenth of its cores idle. A first batch that takes long while its workers still import,
    or while nothing moves at all: that is step-stalled.
Causes:
    One of the seventeen data rules, checked in the order of the decision tree: no workers; shared memory that is full;
    epochs shorter than their workers; one slow worker; the thread that pins; single slow items; memory too short for
    the page cache; storage; a CPU quota; pinned workers; too many threads; too many workers; busy cores; too few
    workers; batches expensive to build or ship; expensive items; bursts. The first that fires is the cause; the others
    are listed with the number that rules them out. Checked before them: a thread of the training process that makes the
    batches without any DataLoader, one at a time, and shares the interpreter with the training.
Fix:
    That of the cause found: no workers, too few, too many, pinned to a core or with too many threads, busy cores, a
    CPU quota, storage, memory too short for the page cache, shared memory that is full, a slow worker, a thread
    that pins, single slow items, short epochs, expensive items, batches that are expensive to build or ship, bursts.
Gain:
    At most 1 / (1 - S); what the fix of the cause can deliver where one is found.
Verify:
    S below 6% for a minute, samples per second up by 3% or more, utilization up.
Source:
    TensorFlow profiler (5 and 20%), kineto (5%), MLPerf Storage (accelerators at least 90% busy); as a detector
    of truly starved jobs in simulation the event gap was right in 99% of its verdicts, num_workers < 2 in 58%.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.lines import HotLine, loading_line, loading_measures, watched, with_interval
from gpuwatch.diagnosis.advice.own_loading import OwnLoading, own_loading, thread_fix
from gpuwatch.diagnosis.advice.pauses import EPOCHS, epoch_edges, felt_by_gpu
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import is_sampled, rests_on, who_waits, worker_busy
from gpuwatch.diagnosis.advice.starvation import (
    AT_WORK_SHARE,
    WARNED_SECONDS,
    FirstBatches,
    Starvation,
    avoidable_share,
    first_batches,
    fluctuates,
    idle_share,
    is_at_handover_floor,
    is_early,
    is_over,
    lost_interval,
    starvation_of,
)
from gpuwatch.diagnosis.advice.stream import few_settled
from gpuwatch.diagnosis.advice.workers import worker_loads
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.diagnosis.rules.epoch_start_stall import epoch_start_stall, join_epochs
from gpuwatch.diagnosis.rules.io_bound import io_bound
from gpuwatch.diagnosis.rules.slow_samples import slow_samples
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.tree import SYMPTOM, WAITS
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.numbers import rate as rate_words
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import RankWindow, Share

BUSY_SHARE = 0.85
SHORT_SECONDS = 2.0
"""Workers are attached to once they are 0.1 s old, 6 a second: of shorter lives little is sampled."""
FEW_WAITED = 0.1
"""Of the waits, those that are over: less of them is left out of the sentence about the one that is not."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of the time is lost to waits for data: reported from here on")
    clear_share: float = threshold(0.06, "until less is lost", bounded_by="fire_share")
    critical_share: float = threshold(0.20, "critical from here on", bounded_by="fire_share")


@rule("data-starvation", family="data", subject="run", level=Level.E3, early=True, by_loss=True, thresholds=Thresholds)
def data_starvation(case: RunCase, limits: Thresholds) -> Draft | None:
    own = own_loading(case)
    if own is not None:
        return _made_by_the_loop(case, own, limits)
    return _by_steps(case, limits) or _by_first_batches(case, limits)


def _by_steps(case: RunCase, limits: Thresholds) -> Draft | None:
    """By what the steps of the window, or the samples of its stacks, show to be lost."""
    starvation, rank = starvation_of(case), case.run.critical
    if starvation is None or is_at_handover_floor(rank):
        return None
    share, interval = avoidable_share(rank, starvation), lost_interval(rank, starvation)
    is_certain = interval is not None and min(interval.low, share) >= limits.critical_share
    if is_early(rank) or few_settled(rank):
        is_lost = is_certain or (not is_early(rank) and interval is not None and interval.low >= limits.fire_share)
        return _early(rank, starvation, interval, limits) if interval is not None and is_lost else None
    at_starts = _lost_at_epoch_starts(case, starvation) if share < limits.fire_share else 0.0
    settled_share, share = share, share + at_starts
    has_ended = share < limits.clear_share and not fluctuates(rank, starvation, share, limits.clear_share)
    if has_ended or (not at_starts and is_over(case, starvation, share) and not _pauses_between_slow_items(case)):
        return None
    by_thread = thread_fix(case, starvation)
    cause, draft = _cause(case) if by_thread is None else ("a thread that makes the batches", None)
    if draft is None and at_starts > settled_share:
        cause, by_thread = "the starts of epochs", join_epochs(rank)
    starvation = replace(starvation, share=min(1.0, starvation.share + at_starts))
    return Draft(
        summary=_summary(rank, starvation, loading_line(rank)),
        severity=Severity.CRITICAL if share >= limits.critical_share else Severity.WARNING,
        level=starvation.level,
        evidence=(
            *_evidence(case, starvation),
            *((share_measure("epoch_start_share", at_starts, "at the starts of epochs"),) if at_starts else ()),
            Measure("cause", cause, f"cause: {cause or 'not found'}"),
        ),
        fires=share >= limits.fire_share,
        is_certain=is_certain,
        fix=draft.fix if draft is not None else by_thread or _how_to_find_out(case, is_complete=_asks_all(case)),
        gain=draft.gain if draft is not None else from_share(0.0, starvation.share, _cap(by_thread)),
        hint=draft.hint if draft is not None else None,
        ruled_out=draft.ruled_out if draft is not None else rivals(case),
        verify=_verify(limits),
        chart=_chart(starvation),
    )


def _lost_at_epoch_starts(case: RunCase, starvation: Starvation) -> float:
    """What the starts of epochs cost where persistent workers would not recover it, so their rule does not warn.

    In a simulated job of 8 workers on 2 cores batches were late for 5% of the time within epochs and 10% at their
    starts: an ideal loader made it 1.21 times as fast, workers that persist 1.00 times.
    """
    rank, noted = case.run.critical, epoch_start_stall.check(replace(case, holding=case.holding - {SYMPTOM}))
    edges = epoch_edges(rank)
    if edges is None or (noted is not None and noted.severity is not Severity.INFO):
        return 0.0
    lost = edges.share * felt_by_gpu(rank)
    idle = idle_share(case) if starvation.on_gpu and starvation.level < Level.E3 else None
    return lost if idle is None else min(lost, max(0.0, idle.value - starvation.share))


def _cap(by_thread: Fix | None) -> str:
    return "once the cause is found" if by_thread is None else "if enough cores are free"


def _early(rank: RankWindow, starvation: Starvation, interval: Share, limits: Thresholds) -> Draft:
    """What a few steps show beyond doubt; what causes it takes more of them."""
    name, what = _figure(starvation)
    reach = f"{what} {percent(interval.low)} to {percent(interval.high)} of the time"
    counted = rank.steps if is_sampled(rank) or few_settled(rank) else sum(rank.columns.settled)
    unit = "batches" if is_sampled(rank) else "steps"
    said = f"{counted} {unit} so far: {reach}"
    file, line = place_of(rank.train_loader)
    return Draft(
        summary=_summary(rank, starvation, loading_line(rank)),
        severity=Severity.WARNING,
        level=starvation.level,
        evidence=(Measure(name, round(starvation.share, 4), said), *loading_measures(rank)),
        is_certain=True,
        fix=Fix(text=_later(rank, unit), file=file, line=line),
        gain=from_share(0.0, starvation.share, "once the cause is found"),
        verify=_verify(limits),
        chart=_chart(starvation),
    )


def _by_first_batches(case: RunCase, limits: Thresholds) -> Draft | None:
    """By how long a run of few steps or none has waited for its batches, while its workers were making them."""
    rank, found = case.run.critical, first_batches(case)
    if found is None:
        return None
    blocked = rank.workers.blocked_share if rank.workers is not None else None
    reads = blocked is not None and blocked >= AT_WORK_SHARE
    behind, line = found.behind_share, loading_line(rank)
    file, number = (line.file, line.line) if line is not None else place_of(rank.train_loader)
    is_long = found.waited_seconds >= WARNED_SECONDS and not found.seems_to_keep_up
    return Draft(
        summary=_waited(rank, found, blocked if reads else None, line),
        severity=Severity.WARNING if is_long else Severity.INFO,
        level=rests_on(rank, Level.E2),
        evidence=(
            *_first_batches_measures(found),
            *_workers_measures(rank, found),
            *loading_measures(rank),
            *((Measure("cause", io_bound.id, f"cause: {io_bound.id}"),) if reads else ()),
        ),
        fix=Fix(text=_cheaper(found, line, reads=reads), file=file, line=number),
        gain=None if behind is None else from_share(0.0, behind, "once the cause is found"),
        verify=_verify(limits),
        chart=("run.wait_share",),
    )


def _waited(rank: RankWindow, found: FirstBatches, blocked: float | None, line: HotLine | None) -> str:
    """Training has waited 95 s for its first batch: its 16 workers wait for storage 76% of the time."""
    who, made = who_waits(rank), found.all_workers_seconds
    if made is not None and found.step_seconds is not None:
        return (
            f"{who} waited {seconds(found.waited_seconds)} and trained {seconds(found.trained_seconds)}: all "
            f"{found.workers} workers together make a batch in {seconds(made)}; step time: "
            f"{seconds(found.step_seconds)}"
        )
    if found.waited_seconds - found.open_seconds > FEW_WAITED * found.waited_seconds:
        waited = f"{who} has waited {seconds(found.waited_seconds)} for batches and trained "
        waited += seconds(found.trained_seconds)
    else:
        waited = f"{who} has waited {seconds(found.open_seconds)} for its {'next' if found.batches else 'first'} batch"
    whose = f"its {found.workers} workers" if found.workers > 1 else "its worker" if found.workers else "it"
    if blocked is not None:
        return f"{waited}: {whose} wait{'' if found.workers > 1 else 's'} for storage {percent(blocked)} of the time"
    if line is not None:
        return f"{waited}: {percent(line.share.value)} of {line.whose} is {line.place}"
    return f"{waited}: {whose} {'are' if found.workers > 1 else 'is'} at work on it"


def _first_batches_measures(found: FirstBatches) -> Iterator[Measure]:
    if found.open_seconds:
        said = f"in next() for {seconds(found.open_seconds)}"
        yield Measure("open_wait_seconds", round(found.open_seconds, 1), said)
    if found.batches:
        said = f"waited {seconds(found.waited_seconds)}, trained {seconds(found.trained_seconds)} so far"
        yield Measure("waited_seconds", round(found.waited_seconds, 1), said)
    count = f"{grouped(found.batches)} batch{'' if found.batches == 1 else 'es'}" if found.batches else "no batch"
    yield Measure("batches", found.batches, f"{count} so far")
    made = found.all_workers_seconds
    if found.batch_seconds is not None and made is not None:
        said = f"a worker takes {seconds(found.batch_seconds)} for a batch: one in {seconds(made)} from all of them"
        yield Measure("batch_seconds", round(found.batch_seconds, 3), said)
    if found.step_seconds is not None:
        said = f"step time: {seconds(found.step_seconds)} without the wait"
        yield Measure("step_seconds_without_wait", round(found.step_seconds, 4), said)


def _workers_measures(rank: RankWindow, found: FirstBatches) -> Iterator[Measure]:
    """What the workers use, by /proc; without any, the training thread."""
    workers, process = rank.workers, rank.process
    if not found.workers:
        if process is not None and process.main_thread_cores is not None:
            said = f"the training thread, which makes it, uses {percent(process.main_thread_cores)} of a core"
            yield Measure("main_thread_cores", round(process.main_thread_cores, 3), said)
    elif workers is not None and workers.cpu_cores is not None:
        said = f"{found.workers} workers compute {percent(workers.cpu_cores)} of the time each"
        if workers.blocked_share is not None:
            said += f" and wait for storage {percent(workers.blocked_share)}"
        yield Measure("worker_cpu_cores", round(workers.cpu_cores, 3), said)


def _cheaper(found: FirstBatches, line: HotLine | None, *, reads: bool) -> str:
    """What makes a batch arrive earlier; what would be an index read once is said, for that passes by itself."""
    text = "Make an item cheaper: decode smaller, cache, precompute"
    if reads:
        text = (
            "Read large pieces instead of many small files: shards (WebDataset, streaming), or a copy on a local disk"
        )
    if line is not None:
        text += f"; {percent(line.share.value)} of {line.whose} is spent in {line.words}"
    if found.behind_share is None:
        text += ". If only the first item is slow (an index, a download), it is over with the first batches"
    return text


def _later(rank: RankWindow, unit: str) -> str:
    if is_early(rank):
        return f"Its cause is determined after {STEPS} {unit}"
    return "Its cause is determined once its workers have filled their queue"


def _verify(limits: Thresholds) -> str:
    share = percent(limits.clear_share)
    return f"Less than {share} lost to waits for a minute, and samples per second up by 3% or more"


def _chart(starvation: Starvation) -> tuple[str, ...]:
    return ("gpu.utilization_percent", "run.wait_share") if starvation.on_gpu else ("run.wait_share",)


def _cause(case: RunCase) -> tuple[str | None, Draft | None]:
    """The first cause of the tree that fires, each seeing those asked before it as holding."""
    case = replace(case, holding=case.holding | {SYMPTOM})
    for cause in WAITS:
        if cause.rule in case.settings.ignored:
            continue
        draft: Draft | None = rule_by_id(cause.rule).check(case)
        if draft is not None and draft.fires and _explains(case, cause.rule, draft):
            return cause.rule, draft
    return None, None


def _pauses_between_slow_items(case: RunCase) -> bool:
    """Whether 20 s without a loss are no end of it: single items take long, and the next one will come."""
    return slow_samples.id not in case.settings.ignored and slow_samples.check(case) is not None


def _asks_all(case: RunCase) -> bool:
    return not any(cause.rule in case.settings.ignored for cause in WAITS)


def _explains(case: RunCase, cause: str, draft: Draft) -> bool:
    """Whether what a rule found makes this run wait: two of them fire on runs that wait for something else too."""
    if cause == "shm-pressure":
        return draft.severity is Severity.CRITICAL
    if cause == "host-memory-pressure":
        storage: Draft | None = io_bound.check(case)
        return storage is not None and storage.fires
    return True


def _summary(rank: RankWindow, starvation: Starvation, line: HotLine | None) -> str:
    about = "about " if starvation.level < Level.E3 else ""
    share = f"{about}{percent(starvation.share)}"
    where = ""
    if line is not None:
        whose = "the wait" if line.phase == "wait" else line.whose
        where = f": {percent(line.share.value)} of {whose} is {line.place}"
    if starvation.on_gpu:
        return f"The GPU idles {share} of the time waiting for the next batch{where}"
    return f"{who_waits(rank)} waits {share} of the time for the next batch{where}"


def _figure(starvation: Starvation) -> tuple[str, str]:
    """The name and the word of S: a GPU idles; where none computes, the training thread waits."""
    return ("gpu_idle_from_wait_share", "GPU idle") if starvation.on_gpu else ("wait_share", "waiting")


def _evidence(case: RunCase, starvation: Starvation) -> tuple[Measure, ...]:
    rank = case.run.critical
    made = f"{grouped(starvation.steps)} {'batches' if starvation.wait else 'steps'}"
    name, what = _figure(starvation)
    share = f"{what} {percent(starvation.share)} of {starvation.seconds:.0f} s"
    measures = [Measure(name, round(starvation.share, 4), f"{share} ({made})")]
    if starvation.wait is not None and rank.stacks is not None:
        text = f"waits for data {with_interval(starvation.wait)} {watched(rank.stacks)}"
        sampled = Measure("wait_share", round(starvation.wait.value, 4), text)
        measures = [*measures, sampled] if starvation.on_gpu else [sampled]
    elif starvation.on_gpu and starvation.wait_share is not None:
        measures.append(share_measure("wait_share", starvation.wait_share, "DataLoader wait"))
    measures += loading_measures(rank)
    if starvation.busy_percent is not None:
        measures.append(
            Measure(
                "utilization_percent", round(starvation.busy_percent, 1), f"GPU {starvation.busy_percent:.0f}% busy"
            )
        )
    if rank.step_seconds is not None:
        measures.append(
            Measure(
                "step_seconds",
                round(rank.step_seconds.mean, 6),
                f"step time: {seconds(rank.step_seconds.mean)}",
            )
        )
    elif rank.stacks is not None and rank.stacks.batches_per_second:
        rate = rank.stacks.batches_per_second
        unit = "batches" if rank.stacks.batches_of_loader else "iterations"
        measures.append(Measure("batches_per_second", round(rate, 3), f"{rate_words(rate)} {unit} a second"))
    if len(case.run.ranks) > 1:
        waiting = "unknown" if rank.facts.rank is None else str(rank.facts.rank)
        measures.append(Measure("rank", rank.facts.rank, f"rank {waiting} waits longest, the others wait for it"))
    return tuple(measures)


def _made_by_the_loop(case: RunCase, own: OwnLoading, limits: Thresholds) -> Draft | None:
    """The same of a loop that makes its batches itself; what it does is seen in its stacks alone."""
    if own.share < limits.clear_share or case.run.critical.stacks is None:
        return None
    share, busy = percent(own.share), own.busy_percent
    on_gpu = busy is not None
    made = f"{own.function} takes {with_interval(own.made)} of the training thread {watched(case.run.critical.stacks)}"
    idle = Measure("gpu_idle_from_wait_share", round(own.share, 4), f"GPU idle {share} at most from it")
    waiting = Measure("wait_share", round(own.share, 4), f"waiting {share} of the time for it")
    return Draft(
        summary=(
            f"{'The GPU idles' if on_gpu else 'Training waits'} about {share} of the time while the loop makes its own "
            f"batch: {own.function}{' at' if own.line.callee is None else ', most of it in'} {own.line.place}"
        ),
        severity=Severity.WARNING,
        level=Level.E1,
        evidence=(
            idle if on_gpu else waiting,
            Measure("own_loading_share", round(own.made.value, 4), made),
            own.line.measure("hot_line", "that"),
            *(() if busy is None else (Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy"),)),
        ),
        fires=own.share >= limits.fire_share and own.made.value >= limits.fire_share,
        fix=Fix(
            text=(
                f"Prepare the next batch while {'the GPU' if on_gpu else 'training'} computes: put {own.function} into "
                "a Dataset that a DataLoader with workers reads, or into a thread that stays a batch ahead"
                + (", with pinned memory and non_blocking copies" if on_gpu else "")
            ),
            code=f"DataLoader(dataset, batch_size=None, num_workers=2{', pin_memory=True' if on_gpu else ''})",
            file=own.line.file,
            line=own.line.line,
        ),
        gain=from_share(
            0.0, own.share, "if the GPU had nothing queued in the meantime" if on_gpu else "if enough cores are free"
        ),
        ruled_out=rivals(case),
        verify=f"{'Utilization up, and ' if on_gpu else ''}{own.function} gone from the training thread's stack",
        chart=("gpu.utilization_percent",) if on_gpu else ("run.step_seconds",),
    )


def _how_to_find_out(case: RunCase, *, is_complete: bool = True) -> Fix:
    """The next step: the line that loading spends its time in, where stacks name it.

    `is_complete`: whether all causes were asked; of those that the user ignores nothing is said.
    """
    rank = case.run.critical
    line, lived = loading_line(rank), _lifetime_seconds(rank)
    if is_complete and lived is not None and lived < SHORT_SECONDS:
        text = (
            f"Its workers live for {seconds(lived)}, one epoch: they start, make a few batches and end, too soon to be "
            "sampled often. Keep them, and join short epochs into longer ones with a repeating sampler"
        )
        if line is not None:
            text += f"; {_where(line)}"
        return loader_fix(rank.train_loader, {"persistent_workers": "True"}, text, "True")
    unknown = _unknown(rank) if is_complete else "No enabled rule explains it; some rules are ignored"
    file, number = place_of(rank.train_loader)
    if line is not None:
        return Fix(text=f"{unknown}; {_where(line)}", file=line.file, line=line.line)
    look = "" if rank.stacks is not None else f": look at its stacks for a minute (gpuwatch stacks {rank.facts.pid})"
    return Fix(text=f"{unknown}{look}", file=file, line=number)


def _lifetime_seconds(rank: RankWindow) -> float | None:
    """How long workers live that are started for each epoch: about as long as one takes; None of those that persist."""
    loader, stacks, epochs = rank.train_loader, rank.stacks, rank.epochs
    if loader is None or not loader.num_workers or loader.persistent_workers is not False:
        return None
    if epochs is not None:
        long = rank.watched_seconds
        return long / epochs.count if long is not None and epochs.count >= EPOCHS else None
    return stacks.seconds / stacks.epochs if stacks is not None and stacks.epochs >= EPOCHS else None


def _unknown(rank: RankWindow) -> str:
    loader, busy = rank.train_loader, worker_busy(rank)
    if loader is None and rank.facts.visibility == "exact":
        return "Its batches come not from a DataLoader that the hook sees, but from what the loop does before each step"
    if loader is not None and loader.num_workers is None and rank.facts.visibility == "exact":
        return (
            "Its batches come from an iterator that is not a DataLoader: if it makes each batch only on request, "
            "have the workers of a DataLoader, or a thread, make them ahead"
        )
    if loader is None or loader.num_workers is None:
        return "Its loader's settings are not known: start the script with gpuwatch run, so that the hook sees them"
    if loader.num_workers == 0:
        return (
            "Loading in workers would not be faster here, because training needs the same CPU cores: "
            "make an item cheaper (decode smaller, cache, precompute)"
        )
    if busy is None:
        return "It is not known what its workers do"
    loads = sorted(worker_loads(rank), key=lambda each: each.busy)
    if loads and loads[-1].busy >= BUSY_SHARE > 2.0 * loads[-2].busy:
        return (
            f"One worker, process {loads[-1].pid}, is busy {percent(loads[-1].busy)} of the time and the others at "
            f"most {percent(loads[-2].busy)}: it is slow, or it got the slow items, and the others wait for it"
        )
    if busy.value < BUSY_SHARE:
        return (
            f"Its workers are busy only {percent(busy.value)} of the time, so the time goes into collating or "
            "shipping batches, or into bursts"
        )
    return "Its workers are busy, and no limit of the machine explains the wait"


def _where(line: HotLine) -> str:
    return (
        f"{percent(line.share.value)} of {line.whose} {'are' if line.phase == 'wait' else 'is'} spent in {line.words}"
    )
