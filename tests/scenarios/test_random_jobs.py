"""Random jobs without labels: each finding is compared with what the same job does once its fix is applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenarios.judged import Judged, Promise, Said
from tests.scenarios.playing import play_one
from tests.scenarios.random_jobs import RANDOM, lines_of, scored_random
from tests.scenarios.scenario import draw
from tests.scenarios.score import GAIN_TOLERANCE
from tests.scenarios.truth import factor, speed

NUMBERS = range(1, 9)
PLAYED = (1, 3, 4, 5, 6, 8)
"""Without two that last for long: `python -m tests.scenarios --random` plays as many as are asked for."""


@pytest.mark.parametrize("way", RANDOM)
def test_findings_of_random_jobs_hold_when_their_fixes_are_replayed(way: str) -> None:
    results = [play_one((way, number)) for number in PLAYED]
    for judged in results:
        drawn = draw(RANDOM[way], judged.seed)
        if drawn.job.ranks == 1:  # else GPUs spin while they wait for another rank
            assert judged.together <= (1.0 + GAIN_TOLERANCE) / drawn.truth.busy_share, judged.seed
    score = scored_random(results)
    assert score.starved >= 2 and score.warnings >= 3, "else nothing is tried here"
    assert not score.missed and not score.undeserved and not score.wrong, lines_of(way, score)
    assert score.centred == len(score.promises)


@pytest.mark.parametrize("number", [*NUMBERS, 74, 80])
def test_no_more_work_is_done_than_the_cores_can_do(number: int) -> None:
    drawn = draw(RANDOM["random"], number)
    loading, host = drawn.job.loading, drawn.job.host
    batches_per_second = speed(drawn.job, drawn.name)[0] / loading.batch_size
    assert batches_per_second * loading.cpu_seconds <= min(host.cores, host.quota or host.cores)


def test_what_a_change_brings_is_measured_over_as_many_steps_with_it_as_without() -> None:
    """Its 128 workers set the pace, which rises for a thousand steps: logging ten times as rarely brings nothing."""
    drawn = draw(RANDOM["random"], 614)
    (log,) = drawn.job.pauses
    rarer = replace(drawn.job, pauses=(replace(log, every_steps=10 * log.every_steps),))
    assert factor(drawn.job, rarer, drawn.name) == pytest.approx(1.0, abs=0.02)


def said(rule: str) -> Said:
    return Said(rule, 10.0, "warning", None, "as it was said", {})


def test_misses_undeserved_warnings_and_broken_promises_are_counted() -> None:
    starved = next(number for number in range(1, 40) if draw(RANDOM["random"], number).truth.data_loss > 0.3)
    silent = Judged("random", starved, 0, 0.4)
    wrong = Judged("random", starved, 0, 0.4, cause="io-bound")
    wrong.said = {rule: said(rule) for rule in ("data-starvation", "io-bound")}
    wrong.brought = {"data-starvation": 1.5, "io-bound": 1.0}
    wrong.promises = [Promise("io-bound", 1.2, 1.6, 1.0, exact=True)]
    score = scored_random([silent, wrong])
    assert (score.starved, score.found, len(score.missed)) == (2, 1, 1)
    assert (score.warnings, len(score.undeserved)) == (2, 1)
    assert (score.causes, score.right_causes) == (1, 0)
    assert (score.inside, score.centred) == (0, 0)
    assert any("io-bound brings 1.00x" in line for line in lines_of("Hooked", score))
