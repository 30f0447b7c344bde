"""How much of loading stands in lines that read files while hardly anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cores import batch_cpu_share, line_factor, worker_line_factor
from gpuwatch.diagnosis.advice.items import READS
from gpuwatch.diagnosis.advice.lines import HotLine, hottest
from gpuwatch.diagnosis.advice.rivals import SWITCHES_PER_WORKER, THROTTLED_SHARE, is_cpu_exhausted
from gpuwatch.diagnosis.advice.sampled import WORKER_SAMPLES, busy_worker_samples, phase_samples, share_of
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import LineShare, Share

COMPUTING_SHARE = 0.5
"""Items that compute less of their time than this are waiting in the lines where they are seen."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The lines that read, as a share of the `of` samples of loading, and the first of them."""

    share: Share
    of: int
    line: HotLine
    in_workers: bool


def reading_of(case: RunCase, *, on_gpu: bool) -> Reading | None:
    """The share, where stacks tell it and making a batch leaves its core idle; None otherwise."""
    rank = case.run.critical
    stacks, count = rank.stacks, rank.train_loader.num_workers if rank.train_loader else None
    if stacks is None or count is None or _lacks_cores(case, count):
        return None
    computing = batch_cpu_share(rank, count, on_gpu=on_gpu)
    of = busy_worker_samples(stacks) if count else phase_samples(stacks, "wait")
    in_line = max(line_factor(rank), worker_line_factor(rank) if count else 1.0)
    if computing is None or computing * in_line >= COMPUTING_SHARE or of < WORKER_SAMPLES:
        return None
    phases = ("item",) if count else ("wait",)
    lines = [line for line in (stacks.worker_lines if count else stacks.lines) if line.phase in phases and _reads(line)]
    chief = hottest(lines, of, *phases)
    if chief is None:
        return None
    return Reading(share_of(sum(line.samples for line in lines), of), of, chief, bool(count))


def _lacks_cores(case: RunCase, workers: int) -> bool:
    """Whether a line may wait for a core: all are busy, a quota stops the run, or workers push each other off."""
    process = case.run.critical.process
    throttled = (process.throttled_period_share if process else None) or 0.0
    switches = (process.involuntary_switches_per_second if process else None) or 0.0
    return is_cpu_exhausted(case) or throttled > THROTTLED_SHARE or switches >= SWITCHES_PER_WORKER * max(1, workers)


def _reads(line: LineShare) -> bool:
    return bool(READS.search(f"{line.leaf or ''} {line.text or ''}"))
