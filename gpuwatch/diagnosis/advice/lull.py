"""Whether waits for data are over or merely pause: the window remembers them for a minute, and a run may waver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gpuwatch.diagnosis.advice.starvation import Starvation
from gpuwatch.diagnosis.advice.stream import settled
from gpuwatch.diagnosis.finding import Level
from gpuwatch.timeline.windows import RankWindow

BLOCK_SECONDS = 5.0
CLEAN_SHARE = 0.02
OVER_SECONDS, CHANGED_SECONDS = 20.0, 10.0
"""Without a loss: the end of one, or soon the end, where the window mixes two times that are alike in no shape."""
TIMES_LONGER = 3.0
CALM_SHARE = 5.0 / 6.0
"""Of the clearing threshold, over five minutes: a run that loses 8 % there, 10 % in its worst minutes and 6 % in its
best, was reported and cleared 3.8 times an hour by its minutes alone, once by this (20 simulated hours)."""
FALLEN_SHARE = 0.5
UNLIKELY = 0.05


def is_over(rank: RankWindow, starvation: Starvation, avoidable: float, over_seconds: float = OVER_SECONDS) -> bool:
    """Whether nothing is lost any more: for 20 s of training, and three times as long as it ever paused before.

    After a cause has gone a minute's mean still holds it: a run that lost half of its time falls below 6 % after 53 s.
    Where single items take long, the time without a loss is no end but the usual pause.
    """
    most = CLEAN_SHARE + starvation.share - avoidable
    if starvation.wait is not None:
        return _is_over_outside(rank, most, over_seconds)
    lost = rank.columns.gap_seconds if _is_of_gpu(starvation) else rank.columns.wait_seconds
    clean = [share <= most for share in _block_shares(settled(rank, rank.columns.period_seconds, lost))]
    runs = [(is_clean, len(list(run))) for is_clean, run in groupby(clean)]
    if not runs or not runs[-1][0]:
        return False
    paused = max((length for is_clean, length in runs[:-1] if is_clean), default=0)
    return runs[-1][1] * BLOCK_SECONDS >= over_seconds and runs[-1][1] >= TIMES_LONGER * paused


def _is_over_outside(rank: RankWindow, most: float, over_seconds: float) -> bool:
    """The same of waits that samples show: this many blocks with a loss would hardly all be so old by chance.

    Steps are not seen one by one, so slow items that come at random are distinguished from other waits by that alone.
    """
    lost = [share > most for share in _block_shares(rank.stacks.waits if rank.stacks else ())]
    if True not in lost:
        return bool(lost) and len(lost) * BLOCK_SECONDS >= over_seconds
    calm = lost[::-1].index(True)
    chance = (1.0 - calm / len(lost)) ** sum(lost)
    return calm * BLOCK_SECONDS >= over_seconds and chance < UNLIKELY


def fluctuates(rank: RankWindow, starvation: Starvation, avoidable: float, clear_share: float) -> bool:
    """Whether a minute below the threshold is one of the better ones of a run that loses as much as before."""
    lasting = rank.lasting_gap_share if _is_of_gpu(starvation) else rank.lasting_wait_share
    if lasting is None or starvation.level < Level.E3:
        return False
    lasting -= starvation.share - avoidable
    return lasting >= CALM_SHARE * clear_share and avoidable >= FALLEN_SHARE * lasting


def _is_of_gpu(starvation: Starvation) -> bool:
    return starvation.on_gpu and starvation.level is Level.E3


def _block_shares(rows: Sequence[tuple[float, ...]]) -> list[float]:
    """What was lost of each stretch of 5 s of training, oldest first; the newest steps fill the last one."""
    shares, trained, lost = [], 0.0, 0.0
    for period, wait in reversed(rows):
        trained, lost = trained + period, lost + wait
        if trained >= BLOCK_SECONDS:
            shares.append(lost / trained)
            trained = lost = 0.0
    return shares[::-1]
