"""How fast a run trains once it has settled, from its own steps."""

from __future__ import annotations

from typing import Any

import pytest
import sample_builder as build

from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.trial.runner import SETTLED_AT_LATEST, Meter


def metered(*samples: Any, seconds: float | None = 2.0, steps: int | None = None, most: float | None = None) -> Meter:
    """Everything at once: it is read in several looks all the same."""
    history = Timeline(started_ns=0)
    meter = Meter(history, seconds, steps, most)
    for sample in samples:
        history.add(sample)
        meter.update()
    return meter


def facts(workers: int, **more: Any) -> Any:
    loader = LoaderFacts(1, num_workers=workers, batch_size=16, role="train", prefetch_factor=2 if workers else None)
    return build.run_facts(loaders=(loader,), **more)


def test_counting_begins_once_the_steps_agree() -> None:
    slow, usual = build.steps(5, period=0.5), build.steps(60, period=0.1, start=2.5, first=6, samples=16)
    meter = metered(facts(0), *slow, *usual)
    steady = meter.steady()
    assert steady is not None and steady.steps < 60
    assert steady.samples_per_second == pytest.approx(160.0, rel=0.01)
    assert steady.steps_per_second == pytest.approx(10.0, rel=0.01)
    assert steady.batch_size == 16


def test_batches_that_the_workers_had_made_ahead_are_not_counted() -> None:
    without = metered(facts(0), *build.steps(60, period=0.1, samples=16)).steady()
    ahead = metered(facts(4), *build.steps(60, period=0.1, samples=16)).steady()
    assert without is not None and ahead is not None
    assert without.steps - ahead.steps == 7  # 4 workers x 2 batches against the 1 that any epoch begins with


def test_it_is_enough_after_the_seconds_or_the_steps_that_were_asked_for() -> None:
    some = (facts(0), *build.steps(40, period=0.1, samples=16))
    assert metered(*some, seconds=2.0).is_full
    assert not metered(*some, seconds=3.5).is_full
    assert metered(*some, seconds=None, steps=25).is_full
    assert not metered(*some, seconds=None, steps=39).is_full


def test_few_long_steps_are_not_enough_however_long_they_take() -> None:
    assert not metered(facts(0), *build.steps(15, period=5.0, samples=16), seconds=10.0).is_full


def test_after_the_most_seconds_fewer_steps_are_enough() -> None:
    some = (facts(0), *build.steps(60, period=2.0, samples=16))
    assert not metered(*some, seconds=10.0, steps=59).is_full
    assert metered(*some, seconds=10.0, steps=59, most=60.0).is_full


def test_samples_that_are_not_reported_make_no_figure() -> None:
    steady = metered(facts(0), *build.steps(60, period=0.1, samples=None)).steady()
    assert steady is not None
    assert (steady.samples_per_second, round(steady.steps_per_second)) == (None, 10)


def test_the_error_of_the_speed_comes_from_the_parts_of_the_run() -> None:
    even = metered(facts(0), *build.steps(80, period=0.1, samples=16)).steady()
    half = build.steps(40, period=0.1, samples=16)
    slower = build.steps(40, period=0.2, start=4.0, first=41, samples=16)
    uneven = metered(facts(0), *half, *slower).steady()
    assert even is not None and even.error == pytest.approx(0.0, abs=0.01)
    assert uneven is not None and uneven.error == pytest.approx(0.12, abs=0.03)  # ln 2 between two halves of eight


def test_evaluation_inside_a_step_is_no_training_time() -> None:
    steady = metered(facts(0), *build.steps(60, period=0.2, phase_seconds=0.1, samples=16)).steady()
    assert steady is not None
    assert steady.samples_per_second == pytest.approx(160.0, rel=0.01)


def test_a_run_that_never_settles_is_counted_all_the_same() -> None:
    periods = [0.001 * 1.06**place for place in range(SETTLED_AT_LATEST + 40)]  # five steps later a third longer
    wild = build.steps(len(periods), period=periods, samples=16)
    before = metered(facts(0), *wild[: SETTLED_AT_LATEST - 1], seconds=0.1)
    assert before.steady() is None
    assert metered(facts(0), *wild, seconds=0.1).steady() is not None


def test_the_ranks_of_a_job_are_added_up() -> None:
    ranks = [facts(0, pid=pid, group="job", rank=pid - 10, world_size=2) for pid in (10, 11)]
    own = [build.steps(60, period=0.1, samples=16, trainer=each.trainer) for each in ranks]
    other = facts(0, pid=12)
    meter = metered(*ranks, other, *(step for two in zip(*own, strict=True) for step in two))
    steady = meter.steady()
    assert steady is not None and steady.samples_per_second == pytest.approx(320.0, rel=0.01)
    assert meter.facts is not None and meter.facts.rank == 0


def test_nothing_is_known_before_the_first_step() -> None:
    meter = metered(facts(0))
    assert (meter.steady(), meter.is_full, meter.began_ns, meter.last_step_ns) == (None, False, None, None)
    assert meter.facts is not None
