"""PyTorch repeatedly runs out of cached GPU memory and has to flush and retry.

Means:
    Each retry waits for the GPU, gives all cached blocks back to the driver and asks again: a step that hits it takes
    many times its usual time.
Evidence:
    Hook: torch.cuda.memory_stats counts at least one retry per 100 steps, or an out-of-memory error.
Fires:
    One retry per 100 steps and more than one in the window, or an out-of-memory error.
Clears:
    No retry in the window. An out-of-memory error counts since the process started, so it stays.
Not when:
    A single retry at the first long batch. The window counts, not the minutes before it; calls of
    torch.cuda.empty_cache() are not seen, only the retries that they cause.
Causes:
    Lengths that vary, which fragments the memory; memory that is full; or torch.cuda.empty_cache() in the loop.
Fix:
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, one step with the longest batch at the start, no
    torch.cuda.empty_cache() inside the loop, batches of similar length.
Gain:
    A hint: at most the share of the steps that stand out.
Verify:
    The counter does not grow.
Source:
    torch.cuda.memory_stats documentation; PyTorch tuning guide (preallocate for variable lengths).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped
from gpuwatch.timeline.windows import MemoryTotals, RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    retries_per_step: float = threshold(0.01, "reported from here on", most=1.0)


@rule("alloc-retries", family="memory", subject="run", level=Level.E2, thresholds=Thresholds)
def alloc_retries(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = max(case.run.ranks, key=_troubles)
    memory = rank.memory
    if memory is None or (not memory.alloc_retries and not memory.out_of_memory):
        return None
    retries, failures = memory.alloc_retries or 0, memory.out_of_memory or 0
    return Draft(
        summary=_summary(case.run.title, retries, failures, rank.steps),
        severity=Severity.WARNING,
        level=Level.E2,
        evidence=(*_measures(memory, rank.steps),),
        fires=(retries > 1 and retries >= limits.retries_per_step * rank.steps) or failures > 0,
        fix=Fix(
            text=(
                "Let segments grow instead of fragmenting, and take torch.cuda.empty_cache() out of the loop; "
                "sort batches by length or run the longest one first"
            ),
            code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        hint="at most the time of the steps that stand out",
        verify="alloc_retries does not grow",
        chart=("gpu.memory_used_bytes", "run.step_seconds"),
    )


def _troubles(rank: RankWindow) -> tuple[int, int]:
    memory = rank.memory
    return (0, 0) if memory is None else (memory.alloc_retries or 0, memory.out_of_memory or 0)


def _summary(title: str, retries: int, failures: int, steps: int) -> str:
    failed = f"failed {_times(failures)} since its start"
    if not retries:
        return f"The CUDA allocator of {title} {failed}"
    flushed = f"The CUDA allocator of {title} flushed its cache {_times(retries)} in {grouped(steps)} steps"
    return f"{flushed}, and {failed}" if failures else flushed


def _measures(memory: MemoryTotals, steps: int) -> tuple[Measure, ...]:
    measures = []
    if memory.alloc_retries is not None:
        count = memory.alloc_retries
        measures.append(
            Measure(
                "alloc_retries", count, f"{grouped(count)} retr{'y' if count == 1 else 'ies'} in {grouped(steps)} steps"
            )
        )
    if memory.out_of_memory is not None:
        count = memory.out_of_memory
        measures.append(
            Measure(
                "out_of_memory",
                count,
                f"{grouped(count)} out-of-memory error{'' if count == 1 else 's'} since its start",
            )
        )
    return tuple(measures)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{grouped(count)} times"
