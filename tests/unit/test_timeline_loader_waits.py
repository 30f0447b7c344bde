"""Which loader a training waits for that reads from several."""

from __future__ import annotations

import random

import pytest

from gpuwatch.samples import BatchWait, WorkerFetch
from gpuwatch.timeline.trainer import LoaderWaits
from tests.unit.sample_builder import TRAINER, at, loader, rank_at, run_facts, steps, timeline

SECOND = 1_000_000_000


def test_a_step_that_reads_from_two_waits_for_the_slow_one() -> None:
    labeled, unlabeled = loader(loader=1, num_workers=2, line=20), loader(loader=2, num_workers=1, line=21)
    waits = [
        BatchWait(TRAINER, number, "train", at(step), at(step + seconds), step)
        for step in range(60)
        for number, seconds in ((2, 0.6), (1, 0.001))
    ]
    fetches = [
        WorkerFetch(TRAINER, 100 + number, 0, at(step), at(step + 0.5), loader=number)
        for step in range(60)
        for number in (1, 2)
    ]
    history = timeline(
        run_facts(loaders=(labeled, unlabeled)), steps(60, period=1.0, wait=0.601, loader=1), *waits, fetches
    )
    rank = rank_at(history, 60)
    assert rank.train_loader is not None and rank.train_loader.line == 21
    assert rank.workers is not None and rank.workers.count == 1


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_that_are_alike_none_takes_turns(first: int) -> None:
    waits, chance, seen = LoaderWaits(), random.Random(5), set()
    waits.add(first, 0, 0.05)
    for step in range(2_000):
        for number in (1, 2):
            waits.add(number, step * SECOND // 10, chance.expovariate(20.0))
            seen.add(waits.slowest)
    assert seen == {first}


def test_a_loop_that_has_gone_on_to_another_loader_waits_for_that() -> None:
    waits = LoaderWaits()
    for step in range(300):
        waits.add(1, step * SECOND, 0.5)
    for step in range(300, 400):
        waits.add(2, step * SECOND, 0.001)
    assert waits.slowest == 2
