"""Validation takes a large part of the run.

Means:
    While the model is evaluated it does not train. That is legitimate; it is worth a look where it takes a quarter
    of the time, or where evaluation itself waits for its data.
Evidence:
    The share of wall time in evaluation over at least two of them, and how much of it is spent waiting for batches. The
    hook times both; without it evaluation is what the training thread's stack shows in a loop over another loader, and
    the waits are the samples in that loader's next().
Fires:
    25% of the time; or 5% of which at least half is waiting for batches (then a warning).
Clears:
    Below 15% and not waiting; below 3% in any case; when none has come for 1.5 times the longest interval between two
    so far.
Not when:
    Only one evaluation was seen, such as a first sanity check. Its length alone is never a warning. Low utilization
    during evaluation alone: its metrics may compute on the CPU. Only waiting for batches makes it a warning.
Causes:
    An evaluation loader without workers, metrics that compute on the CPU, or evaluation too often.
Fix:
    Where it waits: workers for the evaluation loader. Else evaluate every k-th time so that it takes a tenth of the
    time, with a larger batch and torch.inference_mode().
Gain:
    1 / (1 - v (1 - 1/k)) for every k-th time, where v is, for the two ends of the range, the share of the window and
    one pause over the time from one to the next; 1 / (1 - w) for waits that are w of the wall time.
Verify:
    The share falls as predicted.
Source:
    ml-engineering (evaluation outside the loop); jobs that evaluate every 5 epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of, rarer_edit, worker_keywords
from gpuwatch.diagnosis.advice.gains import (
    from_rarer_phase,
    from_share,
    pauses_within_loader,
    phase_shares,
    rarer_times,
)
from gpuwatch.diagnosis.advice.lines import HotLine, hottest_of_thread, phase_measure
from gpuwatch.diagnosis.advice.pauses import has_ceased
from gpuwatch.diagnosis.advice.resources import allowed_cores
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import is_sampled, phase_samples, rests_on
from gpuwatch.diagnosis.advice.workers import filling_workers
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, ordinal, percent, seconds
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import PhaseTotals, RankWindow

TARGET_SHARE = 0.10
WAIT_SAMPLES = 100
"""Half of this many samples is 40 to 60%."""
MOST_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.25, "of the time passes with evaluation: reported from here on")
    clear_share: float = threshold(0.15, "until less does", bounded_by="fire_share")
    starved_share: float = threshold(0.05, "of the time, where the evaluation itself waits for data")
    clear_starved_share: float = threshold(0.03, "until less passes", bounded_by="starved_share")
    wait_share: float = threshold(0.50, "of an evaluation that waits for data: a warning from here on")
    clear_wait_share: float = threshold(0.35, "until less of it waits", bounded_by="wait_share")
    evaluations: int = threshold(2, "at least", least=1)


@rule("eval-stall", family="phases", subject="run", level=Level.E1, thresholds=Thresholds)
def eval_stall(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    total = rank.eval_cycles or rank.phases.get("eval")
    if total is None or total.count < limits.evaluations:
        return None
    if rank.eval_cycles is None and has_ceased(case, rank, total):
        return None
    waiting = _waiting(rank, total)
    starved = total.share >= limits.clear_starved_share and (waiting or 0.0) >= limits.clear_wait_share
    if not starved and total.share < limits.clear_share:
        return None
    warns = waiting is not None and total.share >= limits.starved_share and waiting >= limits.wait_share
    of_it = f" and waits for its data in {percent(waiting)} of that" if warns and waiting is not None else ""
    line = hottest_of_thread(rank.stacks, "eval")
    return Draft(
        summary=f"Validation takes {percent(total.share)} of the time{of_it}",
        severity=Severity.WARNING if warns else Severity.INFO,
        level=rests_on(rank, Level.E2),
        evidence=(
            *_evidence(rank, total, waiting),
            *((line.measure("hot_line", "validation"),) if line is not None else ()),
        ),
        fires=warns or total.share >= limits.fire_share,
        fix=_feed(case, total) if warns else _rarer(rank, total, line),
        gain=pauses_within_loader(
            case,
            from_share((waiting or 0.0) * total.share * 0.5, (waiting or 0.0) * total.share)
            if warns
            else _gain_of_rarer(total),
            total,
        ),
        ruled_out=idle_rivals(case, "phases"),
        verify="The share of validation falls as predicted, and the training step stays what it was",
        chart=("run.samples_per_second", "gpu.utilization_percent"),
    )


def _waiting(rank: RankWindow, total: PhaseTotals) -> float | None:
    """The part of evaluation that waits for batches; from stacks where too few samples tell it, None."""
    if total.wait_seconds is not None:
        return total.wait_seconds / total.seconds if total.seconds > 0.0 else 0.0
    if not is_sampled(rank):
        return 0.0
    stacks = rank.stacks
    return stacks.eval_wait_share if stacks is not None and phase_samples(stacks, "eval") >= WAIT_SAMPLES else None


def _evidence(rank: RankWindow, total: PhaseTotals, waiting: float | None) -> tuple[Measure, ...]:
    measures = [
        phase_measure(rank, "eval_share", total.share, "validation takes"),
        Measure("eval_count", total.count, f"{grouped(total.count)} times, at most {seconds(total.longest_seconds)}"),
    ]
    if waiting is not None and (total.wait_seconds is not None or waiting):
        measures.append(share_measure("eval_wait_share", waiting, "of it waiting for batches"))
    if total.every_steps is not None:
        measures.append(
            Measure("eval_every_steps", round(total.every_steps), f"every {grouped(total.every_steps)} steps")
        )
    return tuple(measures)


def _loader(case: RunCase, total: PhaseTotals) -> LoaderFacts | None:
    rank = case.run.critical
    return next((loader for loader in rank.eval_loaders if loader.loader == total.loader), None) or (
        rank.eval_loaders[0] if len(rank.eval_loaders) == 1 else None
    )


def _feed(case: RunCase, total: PhaseTotals) -> Fix:
    loader = _loader(case, total)
    now = loader.num_workers if loader else None
    room = filling_workers(allowed_cores(case))
    count = max(1, min(MOST_WORKERS, room, 2 * now if now else MOST_WORKERS))
    if now is not None and count <= now:
        return Fix(
            text="Make the items of the evaluation loader cheaper: it has as many workers as the cores carry",
            file=place_of(loader)[0] or total.file,
            line=place_of(loader)[1] or total.line,
        )
    keywords = worker_keywords(loader, count, on_gpu=case.run.critical.facts.device == "cuda")
    before = "" if now is None else f" instead of {now}"
    fix = loader_fix(loader, keywords, f"Give the evaluation loader {count} workers{before}", count)
    fix = replace(fix, can_be_tried=False)
    return fix if fix.file is not None else replace(fix, file=total.file, line=total.line)


def _rarer(rank: RankWindow, total: PhaseTotals, seen: HotLine | None) -> Fix:
    times = rarer_times(total, TARGET_SHARE)
    if total.every_steps is not None:
        every = round(total.every_steps * times)
        text = f"Evaluate every {grouped(every)} steps instead of every {grouped(total.every_steps)}"
        code = f"if step % {every} == 0:\n    evaluate(...)"
    else:
        text = f"Evaluate every {ordinal(times)} time"
        code = f"if (epoch + 1) % {times} == 0:\n    evaluate(...)"
    return Fix(
        text=f"{text}, or make it faster: a larger batch and torch.inference_mode()",
        code=code,
        file=total.file if total.file is not None or seen is None else seen.file,
        line=total.line if total.file is not None or seen is None else seen.line,
        value=times,
        edit=rarer_edit(rank, "evaluate", total, seen, times),
    )


def _gain_of_rarer(total: PhaseTotals) -> Gain:
    low, high = (round(from_rarer_phase(share, rarer_times(total, TARGET_SHARE)), 3) for share in phase_shares(total))
    return Gain(low, high, "training time only; the rest stays")
