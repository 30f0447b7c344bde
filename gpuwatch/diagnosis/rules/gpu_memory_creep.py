"""GPU memory grows slowly step after step; it will run out later.

Means:
    Something keeps what each step leaves behind: a loss that is added up with its graph, outputs in a list, a hook.
Evidence:
    Hook: torch's peak of allocated memory over the last 15 minutes, from the run's 100th step on: its rise in each
    quarter of that time. Allocated, not reserved: the cache is no leak.
Fires:
    At least 800 steps; at least 512 MiB and 6% more; a rise in each quarter, none of them most of it; and either 1.5%
    per 100 steps, or no room left within an hour at this pace.
Clears:
    No rise in the last quarter.
Not when:
    Single jumps (the first evaluation, one long batch) and peaks that rise less and less, as those of random lengths
    do. Lengths that are made to grow (a curriculum) look the same. A rise that is given back: every quarter of the time
    must show one.
Causes:
    A loss summed up with its graph, outputs that are kept, or hooks that keep what they see.
Fix:
    total_loss += loss.detach() (or .item() every n steps); outputs.append(out.detach().cpu()); evaluation under
    torch.no_grad().
Gain:
    No speed; it prevents an out-of-memory error. The finding gives the time until then.
Verify:
    The peak does not grow.
Source:
    TraceML@d5cec51 (800 steps, 512 MiB, 6%, 1.5% per 100 steps); SageMaker's GPUMemoryIncrease; dgl#5302.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, grouped, percent, seconds
from gpuwatch.timeline.windows import PeakGrowth, RankWindow

LEAST_PART, MOST_PART = 0.10, 0.50
"""Of the rise, in any quarter: a steady one gives 0.25 each; of a leak that only evaluation shows, single jumps."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    steps: int = threshold(800, "over which it grew at least", least=100)
    grown_bytes: int = threshold(512 * 2**20, "that it grew at least", most=1099511627776)
    grown_share: float = threshold(0.06, "growth over what it was, at least", most=10.0)
    share_per_100_steps: float = threshold(0.015, "that it grows at least", most=1.0)
    soon_seconds: float = threshold(3600.0, "until memory is full: below this any growth counts")


@rule("gpu-memory-creep", family="memory", subject="run", level=Level.E2, thresholds=Thresholds)
def gpu_memory_creep(case: RunCase, limits: Thresholds) -> Draft | None:
    growing = [rank for rank in case.run.ranks if rank.memory is not None and _is_steady(rank.memory.growth, limits)]
    if not growing:
        return None
    rank = max(
        growing, key=lambda one: sum(one.memory.growth.quarters_bytes) if one.memory and one.memory.growth else 0
    )
    assert rank.memory is not None and rank.memory.growth is not None
    growth = rank.memory.growth
    gained = sum(growth.quarters_bytes)
    share = gained / growth.start_bytes
    left = _seconds_left(rank, growth, gained)
    per_hundred = share / growth.steps * 100
    ends = f"; at this pace it is full in {seconds(left)}" if left is not None else ""
    return Draft(
        summary=(
            f"{case.run.title} needs more and more GPU memory: {gibibytes(gained)} more in "
            f"{grouped(growth.steps)} steps{ends}"
        ),
        severity=Severity.WARNING,
        level=Level.E2,
        evidence=(
            Measure("growth_bytes", gained, f"{gibibytes(gained)} ({percent(share)}) in {seconds(growth.seconds)}"),
            Measure("growth_per_100_steps", round(per_hundred, 5), f"{percent(per_hundred)} per 100 steps"),
            Measure(
                "growth_by_quarter_bytes",
                max(growth.quarters_bytes),
                "by quarters " + ", ".join(f"{quarter / 2**20:.0f}" for quarter in growth.quarters_bytes) + " MiB",
            ),
            *((Measure("seconds_left", round(left), f"full in {seconds(left)}"),) if left is not None else ()),
        ),
        fires=_is_much(growth, gained, limits)
        and (per_hundred >= limits.share_per_100_steps or _is_soon(left, limits)),
        fix=Fix(
            text=(
                "Look for what keeps tensors from step to step: a loss added up without detach(), outputs in a list, "
                "evaluation without torch.no_grad()"
            ),
            code="total_loss += loss.detach()",
            file=rank.facts.model.backward_file,
            line=rank.facts.model.backward_line,
            value=None if left is None else round(left),
        ),
        hint="no speedup: it prevents an out-of-memory error",
        ruled_out=(
            RuledOut(
                "a single jump",
                f"the largest quarter accounts for {percent(max(growth.quarters_bytes) / gained)} of it",
            ),
            RuledOut("the allocator's cache", "these are bytes that tensors hold, not what the cache keeps"),
        ),
        verify="The peak of allocated memory does not grow",
        chart=("gpu.memory_used_bytes",),
    )


def _is_steady(growth: PeakGrowth | None, limits: Thresholds) -> bool:
    """Whether it rose in every quarter, as something does that each step adds to."""
    if growth is None or growth.start_bytes <= 0 or growth.steps < limits.steps:
        return False
    gained = sum(growth.quarters_bytes)
    return gained > 0 and all(LEAST_PART <= quarter / gained <= MOST_PART for quarter in growth.quarters_bytes)


def _is_much(growth: PeakGrowth, gained: int, limits: Thresholds) -> bool:
    return gained >= limits.grown_bytes and gained >= limits.grown_share * growth.start_bytes


def _seconds_left(rank: RankWindow, growth: PeakGrowth, gained: int) -> float | None:
    memory = rank.memory
    if memory is None or not memory.total_bytes or memory.allocated_peak_bytes is None or growth.seconds <= 0:
        return None
    return max(0, memory.total_bytes - memory.allocated_peak_bytes) / (gained / growth.seconds)


def _is_soon(left: float | None, limits: Thresholds) -> bool:
    return left is not None and left <= limits.soon_seconds
