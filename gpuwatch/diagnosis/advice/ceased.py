"""Whether what stops a run once in a while has come for the last time, though the window remembers it for a minute.

The only honest sign is that it stays away: 1.5 times as long as it ever did. With the six evaluations that clear a
finding nothing may come for another 25 s, so one that comes at random is not cleared between two of them.
"""

from __future__ import annotations

from itertools import pairwise

from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import PhaseTotals, RankWindow

TIMES_LONGER = 1.5
HEAVY_SHARE = 0.25
"""Of the longest one: collections of a millisecond come between those of a second and tell nothing of their end."""
SECOND_NS = 1_000_000_000
STILL_NS = 10 * SECOND_NS
"""Without a batch: from outside a run that stands still is not distinguishable from one that merely stopped pausing."""


def has_ceased(case: RunCase, rank: RankWindow, total: PhaseTotals) -> bool:
    """Whether a phase stays away: in seconds, and in steps where they are known, for a run may become slower."""
    spans = [(start, end) for kind, start, end in rank.phase_spans if kind == total.kind]
    heavy = [(start, end) for start, end in spans if end - start >= HEAVY_SHARE * total.longest_seconds * SECOND_NS]
    if not heavy:
        return False
    away = [after - end for (_, end), (after, _) in pairwise(heavy)]
    if len(heavy) == len(spans) and total.every_seconds is not None:
        away.append(round(total.every_seconds * SECOND_NS))
    last_ns = heavy[-1][1]
    if not away or case.now_ns - last_ns <= TIMES_LONGER * max(away):
        return False
    if not rank.columns.end_ns:
        return rank.last_step_ns is not None and case.now_ns - rank.last_step_ns <= STILL_NS
    since = sum(end_ns > last_ns for end_ns in rank.columns.end_ns)
    return since > TIMES_LONGER * (total.every_steps or 0.0)


def has_stopped_logging(rank: RankWindow) -> bool:
    """The same of logging, which samples of the stack show: in seconds of training, for an evaluation logs nothing."""
    stacks = rank.stacks
    if stacks is None or stacks.log_quiet_seconds is None or stacks.log_pause_seconds is None:
        return False
    return stacks.log_quiet_seconds > TIMES_LONGER * stacks.log_pause_seconds
