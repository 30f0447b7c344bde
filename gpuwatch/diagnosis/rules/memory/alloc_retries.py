"""PyTorch repeatedly runs out of cached GPU memory and has to flush and retry.

Means:
    Each retry waits for the GPU, gives all cached blocks back to the driver and asks again: a step that hits it takes
    many times its usual time.
Evidence:
    Hook: torch.cuda.memory_stats counts at least one retry per 100 steps, or an out-of-memory error.
Fires:
    One retry per 100 steps and more than one in the window, or an out-of-memory error.
Clears:
    No retry in the window.
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
    The counter stands still.
Source:
    torch.cuda.memory_stats documentation; PyTorch tuning guide (preallocate for variable lengths).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides, as far as it may be set."""

    retries_per_step: float = threshold(0.01, "said from here on", most=1.0)


@rule("alloc-retries", subject="run", level=Level.E2, thresholds=Thresholds)
def alloc_retries(case: RunCase, limits: Thresholds) -> Draft | None:
    """Fires on a run whose allocator retries or fails again and again."""
    rank = max(case.run.ranks, key=lambda one: (one.memory.alloc_retries or 0) if one.memory else 0)
    memory = rank.memory
    if memory is None or (not memory.alloc_retries and not memory.out_of_memory):
        return None
    retries, failures = memory.alloc_retries or 0, memory.out_of_memory or 0
    return Draft(
        summary=(
            f"The CUDA allocator of {case.run.title} flushed its cache {retries} times in {rank.steps} steps"
            + (f" and failed {failures} times" if failures else "")
        ),
        severity=Severity.WARNING,
        level=Level.E2,
        evidence=(
            Measure("alloc_retries", retries, f"{retries} retries in {rank.steps} steps"),
            Measure("out_of_memory", failures, f"{failures} out-of-memory errors"),
        ),
        fires=(retries > 1 and retries >= limits.retries_per_step * rank.steps) or failures > 0,
        fix=Fix(
            text=(
                "Let segments grow instead of fragmenting, and take torch.cuda.empty_cache() out of the loop; "
                "sort batches by length or run the longest one first"
            ),
            code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        hint="at most the time of the steps that stand out",
        verify="alloc_retries stands still",
        chart=("gpu.memory_used_bytes", "run.step_seconds"),
    )
