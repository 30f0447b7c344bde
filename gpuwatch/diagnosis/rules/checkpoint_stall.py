"""Saving checkpoints blocks training.

Means:
    torch.save copies the weights to memory, pickles and writes them while nothing trains.
Evidence:
    The share of wall time inside checkpoint writes, over at least two of them, with their bytes where known. The hook
    times them; without it they are the stretches in which the training thread's stack is in saving.
Fires:
    5% of the time.
Clears:
    Below 3%, or when none has come for 1.5 times the longest interval between two so far.
Not when:
    Only one checkpoint was seen, such as the last one.
Causes:
    The storage where it writes less than 200 MB/s; else much to write, many small tensors, or saving too often.
Fix:
    torch.distributed.checkpoint.async_save: copies to memory, then writes in the background (one at a time, memory
    for a copy per rank). Or save every k-th time so that it takes 2% of the time, which is what the patch does; or
    write to a local disk and copy from there.
Gain:
    At most 1 / (1 - c), where c is the share of the window or one pause over the time from one to the next, whichever
    is more; at least 1 / (1 - c (1 - 1/k)) with whichever is less, minus what quicker steps after it make up for. An
    asynchronous save keeps the copy to memory. torch.save took 0.28 s for 50 MB, 1.5 s for 200 MB, 7.4 s for 800 MB.
Verify:
    Checkpoints below 3% of the time.
Source:
    PyTorch's asynchronous checkpoint recipe; measured as above.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import rarer_edit
from gpuwatch.diagnosis.advice.gains import from_rarer_phase, pauses_within_loader, rarer_times, without
from gpuwatch.diagnosis.advice.lines import at, hottest_of_thread, phase_measure
from gpuwatch.diagnosis.advice.pauses import has_ceased, lost_to_pauses
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import rests_on
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, megabytes, ordinal, percent, seconds
from gpuwatch.timeline.windows import PhaseTotals, RankWindow

TARGET_SHARE = 0.02
SLOW_BYTES_PER_SECOND = 200e6


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time passes with saving: reported from here on")
    clear_share: float = threshold(0.03, "until less does", bounded_by="fire_share")
    checkpoints: int = threshold(2, "in the window at least", least=1)


@rule("checkpoint-stall", family="phases", subject="run", level=Level.E1, thresholds=Thresholds)
def checkpoint_stall(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    total = rank.phases.get("checkpoint")
    if total is None or total.count < limits.checkpoints or total.share < limits.clear_share:
        return None
    if has_ceased(case, rank, total):
        return None
    times = rarer_times(total, TARGET_SHARE)
    least, most = lost_to_pauses(rank, total)
    line = hottest_of_thread(rank.stacks, "save")
    file, number = (total.file, total.line) if total.file is not None or line is None else (line.file, line.line)
    return Draft(
        summary=(
            f"Saving checkpoints stops training {percent(total.share)} of the time, "
            f"up to {seconds(total.longest_seconds)} at a time{at(file, number)}"
        ),
        severity=Severity.WARNING,
        level=rests_on(rank, Level.E2),
        evidence=(*_evidence(rank, total), *((line.measure("hot_line", "the saving"),) if line is not None else ())),
        fires=total.share >= limits.fire_share,
        fix=Fix(
            text=_text(total, times),
            code=(
                "import torch.distributed.checkpoint as dcp\n"
                "# wait for the future before the next save\n"
                'future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=path)'
            ),
            file=file,
            line=number,
            value=times,
            edit=rarer_edit(rank, "save", total, line, times),
        ),
        gain=pauses_within_loader(
            case,
            Gain(round(from_rarer_phase(least, times), 3), round(without(most), 3)),
            total,
        ),
        ruled_out=idle_rivals(case, "phases"),
        verify="Checkpoints below 3% of the time",
        chart=("run.samples_per_second", "gpu.utilization_percent"),
    )


def _rate(total: PhaseTotals) -> float | None:
    return total.bytes / total.seconds if total.bytes and total.seconds > 0.0 else None


def _evidence(rank: RankWindow, total: PhaseTotals) -> tuple[Measure, ...]:
    measures = [
        phase_measure(rank, "checkpoint_share", total.share, "checkpoints take"),
        Measure(
            "checkpoint_count", total.count, f"{grouped(total.count)} saves, at most {seconds(total.longest_seconds)}"
        ),
    ]
    rate = _rate(total)
    if rate is not None and total.bytes is not None:
        text = f"{megabytes(total.bytes / total.count)} each at {megabytes(rate)}/s"
        measures.append(Measure("checkpoint_bytes_per_second", round(rate), text))
    if total.every_steps is not None:
        measures.append(
            Measure("checkpoint_every_steps", round(total.every_steps), f"every {grouped(total.every_steps)} steps")
        )
    return tuple(measures)


def _text(total: PhaseTotals, times: int) -> str:
    text = "Save in the background with torch.distributed.checkpoint.async_save"
    if total.every_steps is not None:
        text += f", or every {grouped(total.every_steps * times)} steps instead of every {grouped(total.every_steps)}"
    else:
        text += f", or every {ordinal(times)} time"
    rate = _rate(total)
    if rate is not None and rate < SLOW_BYTES_PER_SECOND:
        text += f"; {megabytes(rate)}/s is slow storage: write to a local disk and copy from there"
    return text
