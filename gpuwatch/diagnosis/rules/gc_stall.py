"""Python's garbage collection pauses the training thread.

Means:
    A full collection looks at every Python object of the process; millions of them (lists of samples) take a
    second, at a moment of Python's choosing. In a job of several ranks each pauses at another step and all wait for
    it.
Evidence:
    Time inside collections, from Python's own callbacks: their share of the wall time and the longest one.
Fires:
    2% of the time, or a pause of half a second, seen over a minute; 10% over any time. A warning with several ranks.
Clears:
    Below 1% and no pause of a quarter of a second, or when none that counts has come for 1.5 times the longest
    interval between two so far.
Not when:
    Imports and set-up: what they leave behind is collected in the first seconds of the run.
Causes:
    Millions of Python objects in the training process, such as the dataset's index in lists and dicts.
Fix:
    After set-up: gc.collect(), gc.freeze(), gc.disable(), and gc.collect(1) every n steps at the same step on
    all ranks. Better, keep the dataset's index in an array instead of millions of objects.
Gain:
    1 / (1 - g), where g is the share of time in which any rank collects, less what quicker steps after a pause make up
    for: while the thread collects, the GPU works through its queue. A full collection over 5 million lists took 1.27 s,
    and no time after gc.freeze().
Verify:
    The pauses are gone, memory stays flat.
Source:
    ml-engineering, torchtitan (every 50 steps), Megatron's manual collection; measured as above.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import from_share, pauses_within_loader
from gpuwatch.diagnosis.advice.pauses import has_ceased, lost_to_pauses
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.timeline.times import united

SECONDS = 55.0
"""What set-up left to collect weighs heavily in the first seconds of a run, and not at all later."""
EVERY_STEPS = 100
REMAINING = 0.2
"""Of the pauses, what collecting the young generations by hand may keep."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.02, "of the time passes with collecting: reported from here on")
    clear_share: float = threshold(0.01, "until less does", bounded_by="fire_share")
    obvious_share: float = threshold(0.10, "reported at once, before the window is full", bounded_by="fire_share")
    fire_seconds: float = threshold(0.5, "of one pause: reported from here on")
    clear_seconds: float = threshold(0.25, "until all are shorter", bounded_by="fire_seconds")


@rule("gc-stall", family="phases", subject="run", level=Level.E2, thresholds=Thresholds)
def gc_stall(case: RunCase, limits: Thresholds) -> Draft | None:
    seen = [(rank, rank.phases["gc"]) for rank in case.run.ranks if "gc" in rank.phases]
    found = [(rank, total) for rank, total in seen if not has_ceased(case, rank, total)]
    if not found:
        return None
    rank, total = max(found, key=lambda pair: pair[1].share)
    longest = max(one.longest_seconds for _, one in found)
    if total.share < limits.clear_share and longest < limits.clear_seconds:
        return None
    least, most = lost_to_pauses(rank, total)
    ranks = len(case.run.ranks)
    among = f" in each of {ranks} ranks, and the others wait each time" if ranks > 1 else ""
    return Draft(
        summary=(
            f"Garbage collection pauses training {percent(total.share)} of the time, "
            f"up to {seconds(longest)} at once{among}"
        ),
        severity=Severity.WARNING if ranks > 1 else Severity.INFO,
        level=Level.E2,
        evidence=(
            share_measure("gc_share", total.share, "garbage collection"),
            Measure("gc_longest_seconds", round(longest, 3), f"longest pause {seconds(longest)}"),
            Measure("gc_count", total.count, f"{grouped(total.count)} pauses"),
        ),
        fires=total.share >= limits.obvious_share
        or (case.window_seconds >= SECONDS and (total.share >= limits.fire_share or longest >= limits.fire_seconds)),
        fix=Fix(
            text=(
                f"Freeze what set-up left behind and collect by hand, every {EVERY_STEPS} steps on all ranks at the "
                "same step; better, keep the dataset's index in an array instead of millions of Python objects"
            ),
            code=(
                "import gc\n"
                "gc.collect(); gc.freeze(); gc.disable()  # before the loop\n"
                f"if step % {EVERY_STEPS} == 0:\n    gc.collect(1)"
            ),
            value=EVERY_STEPS,
        ),
        gain=pauses_within_loader(
            case,
            from_share((1.0 - REMAINING) * least, _times(case) * most),
            total,
        ),
        ruled_out=idle_rivals(case, "phases"),
        verify="The pauses are gone and memory stays flat",
        chart=("run.step_seconds",),
    )


def _times(case: RunCase) -> float:
    """How many times as long any rank collects as one does: each stops all of them, unless they do so together."""
    spans = [[(start, end) for kind, start, end in rank.phase_spans if kind == "gc"] for rank in case.run.ranks]
    longest = max(sum(end - start for start, end in own) for own in spans)
    together = sum(end - start for start, end in united(span for own in spans for span in own))
    return together / longest if longest else float(len(spans))
