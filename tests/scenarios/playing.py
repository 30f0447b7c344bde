"""Many streams at a time. A module of its own: worker processes import it by name, as they cannot a `__main__`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.scenarios.attached import EVERY
from tests.scenarios.judged import Judged, judge
from tests.scenarios.random_jobs import RANDOM
from tests.scenarios.scenario import draw

_ALL = {**EVERY, **RANDOM}


def play(streams: Sequence[tuple[str, int]], jobs: int) -> list[Judged]:
    """Judges streams of (scenario, seed), the longest first, in this many processes."""
    longest = sorted(streams, key=lambda one: -_ALL[one[0]].seconds * max(1, _ALL[one[0]].job.ranks))
    if jobs <= 1:
        results = [play_one(one) for one in longest]
    else:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(play_one, longest))
    place = {one: number for number, one in enumerate(streams)}
    return sorted(results, key=lambda one: place[one.key])


def play_one(stream: tuple[str, int], *, clearing: bool = True) -> Judged:
    """Judges one, as `judge` does."""
    name, seed = stream
    return judge(draw(_ALL[name], seed), clearing=clearing)
