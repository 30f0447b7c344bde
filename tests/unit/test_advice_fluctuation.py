"""How much utilization and steps swing, and in which rhythm: signals whose answer is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from scene_builder import START_NS, check, gpu, gpu_case, rank, run, scene, stats

from gpuwatch.diagnosis.advice.fluctuation import (
    beat_of,
    blind_words,
    causes_in_loop,
    dips_of,
    owner_of,
    step_swings,
    swings_of,
)
from gpuwatch.timeline.windows import RankWindow, Stats
from gpuwatch.timeline.windows import stats as exact_stats

SECOND = 1_000_000_000

Series = list[tuple[int, float]]


def signal(values: list[float], spacing: float = 1.0) -> tuple[Stats, Series]:
    figures = exact_stats(values)
    assert figures is not None
    return figures, [(START_NS + round(place * spacing * SECOND), value) for place, value in enumerate(values)]


def spans(*seconds: tuple[float, float]) -> list[tuple[int, int]]:
    return [(START_NS + round(start * SECOND), START_NS + round(end * SECOND)) for start, end in seconds]


def at_steps(trained: RankWindow, every: int) -> list[int]:
    """The moments at which each n-th step begins."""
    columns = trained.columns
    return [
        end - round(period * SECOND) + 1
        for number, end, period in zip(columns.number, columns.end_ns, columns.period_seconds, strict=True)
        if number % every == 0
    ][1:]


class TestUtilization:
    def test_a_square_wave_has_the_figures_of_its_two_levels(self) -> None:
        swings = swings_of(*signal(([90.0] * 6 + [10.0] * 4) * 12))
        # Mean 58; deviations 32 and 48: sqrt(0.6 * 32^2 + 0.4 * 48^2) = 39.2, with n - 1 of 120 values 39.36.
        assert swings.sigma == pytest.approx(39.36, abs=0.01)
        assert (swings.swing, swings.lost) == (80.0, 32.0)
        assert swings.relative_sigma == pytest.approx(39.36 / 58, abs=0.001)
        assert len(swings.dips) == 12 and swings.dip_share == pytest.approx(0.4)
        assert swings.dips_per_minute == pytest.approx(12 * 60 / 119, abs=0.01)

    def test_a_flat_line_has_none_and_a_low_one_no_ratio(self) -> None:
        flat = swings_of(*signal([97.0] * 60))
        assert (flat.sigma, flat.swing, flat.lost, flat.dips, flat.dip_share) == (0.0, 0.0, 0.0, (), 0.0)
        assert swings_of(*signal([12.0, 14.0] * 30)).relative_sigma is None

    def test_a_dip_lasts_until_ten_points_above_where_it_began(self) -> None:
        # 95th percentile 100 and median 100: a dip is below 50, and over above 60.
        figures, series = signal([100.0] * 20 + [45.0, 58.0, 49.0, 61.0] + [100.0] * 20)
        assert dips_of(figures, series) == (*spans((20, 23)),)

    def test_a_dip_at_the_end_counts(self) -> None:
        assert len(dips_of(*signal([100.0] * 50 + [0.0]))) == 1

    def test_what_the_sensor_averages_away_is_said(self) -> None:
        fast = rank(step=0.12)
        assert blind_words(fast, 0.25) == (
            "a step of 120 ms is shorter than twice the sensor's window of 250 ms: fluctuation from step to step "
            "cannot be seen here"
        )
        assert blind_words(fast, 0.05) is None and blind_words(fast, None) is None


class TestSteps:
    def test_even_steps_do_not_swing(self) -> None:
        found = step_swings(rank(step=0.2))
        assert found is not None and (found.spread, found.spikes, found.spike_share) == (0.0, (), 0.0)

    def test_long_steps_cost_what_they_take_beyond_the_median(self) -> None:
        # One in 20 takes 0.5 s instead of 0.1 s: 0.4 s of each 19 * 0.1 + 0.5 = 2.4 s.
        found = step_swings(rank(step=[0.1] * 19 + [0.5], steps=400))
        assert found is not None and len(found.spikes) == 20
        assert found.spike_share == pytest.approx(0.4 / 2.4, rel=0.001)

    def test_the_spread_is_that_of_most_steps(self) -> None:
        draw = random.Random(5)
        steps = [draw.gauss(0.2, 0.02) for _ in range(2000)]
        found = step_swings(rank(step=steps, steps=2000))
        assert found is not None and found.spread == pytest.approx(0.1, rel=0.1)
        assert step_swings(rank(step=[*steps[:-20], *[9.0] * 20], steps=2000)).spread == pytest.approx(  # type: ignore[union-attr]
            found.spread, rel=0.05
        )

    def test_without_settled_steps_nothing_is_said(self) -> None:
        trained = rank()
        assert step_swings(replace(trained, columns=replace(trained.columns, settled=[False] * trained.steps))) is None


class TestRhythm:
    def varying(self) -> RankWindow:
        draw = random.Random(1)
        return rank(step=[0.1 * math.exp(draw.gauss(0.0, 0.8)) for _ in range(900)], steps=900)

    def test_what_comes_every_so_many_steps_is_exact_in_steps(self) -> None:
        trained = self.varying()
        beat = beat_of(at_steps(trained, 8), trained)
        assert beat is not None and beat.in_steps
        assert (beat.period_steps, beat.steps_spread) == (8, 0.0)
        assert beat.period_seconds == pytest.approx(8 * 0.138, rel=0.15) and beat.spread > 0.1

    def test_what_comes_every_so_many_seconds_is_exact_in_seconds(self) -> None:
        trained = self.varying()
        beat = beat_of([START_NS + 5 * each * SECOND for each in range(1, 20)], trained)
        assert beat is not None and not beat.in_steps
        assert (beat.period_seconds, beat.spread) == (5.0, 0.0)

    def test_what_comes_at_random_or_seldom_has_no_rhythm(self) -> None:
        trained, draw = self.varying(), random.Random(2)
        moments = sorted(START_NS + round(draw.uniform(1, 100) * SECOND) for _ in range(15))
        assert beat_of(moments, trained) is None
        assert beat_of([START_NS + 5 * each * SECOND for each in range(3)], trained) is None

    def test_without_steps_seconds_are_all_there_is(self) -> None:
        beat = beat_of([START_NS + 5 * each * SECOND for each in range(6)], None)
        assert beat is not None and (beat.period_steps, beat.in_steps) == (None, False)


class TestOwner:
    DIPS = spans((10, 12), (20, 22), (30, 32), (40, 42))

    def test_what_covers_the_dips_and_dips_owns_them(self) -> None:
        pauses = spans((9.8, 11.8), (20, 21.6), (30, 32), (40, 42))
        assert owner_of(self.DIPS, {"gc": pauses}) == ("gc", pytest.approx((1.8 + 1.6 + 2 + 2) / 8))

    def test_what_covers_them_but_mostly_comes_without_a_dip_does_not(self) -> None:
        often = spans(*((each, each + 2) for each in range(0, 100, 5)))
        assert owner_of(self.DIPS, {"user": often}) is None

    def test_what_covers_little_of_them_does_not(self) -> None:
        assert owner_of(self.DIPS, {"gc": spans((10, 11), (20, 21))}) is None

    def test_of_two_the_one_that_covers_more_owns_them(self) -> None:
        assert owner_of(
            self.DIPS, {"gc": spans((10, 11.6), (20, 21.6), (30, 31.6), (40, 41.6)), "eval": self.DIPS}
        ) == (
            "eval",
            1.0,
        )

    def test_a_loop_has_its_phases_its_epochs_and_its_long_steps(self) -> None:
        trained = rank(step=[0.1] * 19 + [0.5], steps=200, phase_spans=(("gc", START_NS, START_NS + SECOND),))
        trained = replace(trained, columns=replace(trained.columns, epoch_position=[i % 100 for i in range(200)]))
        causes = causes_in_loop(trained, 0.2)
        assert causes["gc"] == [(START_NS, START_NS + round(1.2 * SECOND))]
        assert len(causes["epoch start"]) == 2 and len(causes["long steps"]) == 10


class TestRules:
    def test_dips_of_collections_are_said_to_be_theirs_every_so_many_steps(self) -> None:
        draw = random.Random(3)
        trained = rank(step=[0.1 * math.exp(draw.gauss(0.0, 0.8)) for _ in range(440)], steps=440)
        starts = at_steps(trained, 50)
        pauses = [(start, start + SECOND) for start in starts]
        ends = trained.columns.end_ns[-1]
        times = range(START_NS, ends, SECOND // 10)
        values = [0.0 if any(start <= time < end for start, end in pauses) else 98.0 for time in times]
        seen = gpu(utilization=95, train_utilization_series=list(zip(times, values, strict=True)), window=60)
        seen = replace(seen, train_utilization=stats(values))
        trained = replace(trained, phase_spans=tuple(("gc", *pause) for pause in pauses))
        case = gpu_case(replace(scene(run(trained), gpus=[seen]), now_ns=ends))
        draft = check("periodic-dips", case)
        assert draft is not None and "dips every 50 steps (" in draft.summary
        said = {measure.name: measure.text for measure in draft.evidence}
        assert said["dip_period_steps"] == "that is exactly every 50 steps"
        assert "of the dips' time is garbage collection" in said["dips_owner"]
        assert draft.fix is not None and "every 50 steps: garbage collection" in draft.fix.text

    def test_fluctuation_states_dips_steps_and_sensor(self) -> None:
        waves = gpu(utilization=([95.0] * 14 + [5.0] * 6) * 6, sensor_window_seconds=0.25)
        trained = rank(step=[0.1] * 19 + [0.5], steps=500)
        draft = check("util-fluctuation", gpu_case(scene(run(trained), gpus=[waves])))
        assert draft is not None
        said = {measure.name: measure.text for measure in draft.evidence}
        assert said["sigma_points"].startswith("standard deviation 41 points")
        assert said["dips_per_minute"].endswith("dips a minute, 30% of the time")
        assert said["step_spread"] == "steps vary by 0%; 25 long ones cost 17% of the time"
        assert said["sensor_window_seconds"] == "the sensor averages over 250 ms"
        assert "cannot be seen here" in said["step_seconds"]
