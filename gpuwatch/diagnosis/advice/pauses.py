"""What of a pause a run really loses: steps that come quicker after it make up for the rest.

While a thread collects garbage the GPU works through what is queued. In simulation a GPU that was busy all the time
lost nothing to pauses of 0.62 s behind steps of 0.75 s: the step after each took 0.16 s.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import fmean, pstdev

from gpuwatch.diagnosis.advice.gains import phase_shares
from gpuwatch.timeline.windows import PhaseTotals, RankWindow

QUEUED_STEPS = 4
"""Steps that a thread runs ahead of its GPU at most: the driver's queue takes 1,024 launches, a step 300 or more."""
LEAST_STEPS = 8
"""Other steps than those behind a pause, for a mean that they can be compared with."""
SIGMAS = 2.0


def lost_to_pauses(rank: RankWindow, total: PhaseTotals) -> tuple[float, float]:
    """The least and the most of the time that pauses of one kind cost, less what the steps after them make up for."""
    least, most = phase_shares(total)
    low, high = _felt(rank, total.kind)
    return least * low, most * high


def _felt(rank: RankWindow, kind: str) -> tuple[float, float]:
    """The part of the pauses that no quicker step makes up for; all of it where steps are not known one by one."""
    columns = rank.columns
    periods, behind, others = columns.period_seconds, set[int](), set[int]()
    for name, start, _ in rank.phase_spans:
        first = bisect_right(columns.end_ns, start)
        after = range(first, min(first + QUEUED_STEPS, len(periods)))
        (behind if name == kind else others).update(after)
    usual = [
        each
        for place, (each, settled) in enumerate(zip(periods, columns.settled, strict=True))
        if settled and place not in behind and place not in others
    ]
    paused = sum(end - start for name, start, end in rank.phase_spans if name == kind) / 1e9
    quicker = [periods[place] for place in behind - others]
    if len(usual) < LEAST_STEPS or paused <= 0.0:
        return 1.0, 1.0
    caught = sum(fmean(usual) - each for each in quicker)
    reach = SIGMAS * pstdev(usual) * math.sqrt(len(quicker) * (1.0 + len(quicker) / len(usual)))
    low, high = (1.0 - (caught + error) / paused for error in (reach, -reach))
    return min(1.0, max(0.0, low)), min(1.0, max(0.0, high))
