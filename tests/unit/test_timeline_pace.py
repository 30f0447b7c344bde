"""What a session remembers of a run's pace, of its compilations and of how its memory grew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.samples import ModelFacts, RunMemory
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import RankWindow
from tests.unit.sample_builder import TRAINER, at, loader, phase, run_facts, scene, steps, timeline


def rank_of(history: Timeline, end: float) -> RankWindow:
    return scene(history, end).runs[0].ranks[0]


def test_the_pace_is_the_newest_pair_against_the_best_pair() -> None:
    history = timeline(
        run_facts(),
        steps(600, period=0.1, forward_seconds=0.04, backward_seconds=0.03),
        steps(400, start=60.0, first=601, period=0.15, forward_seconds=0.09, backward_seconds=0.03),
    )
    pace = rank_of(history, 120).pace
    assert pace is not None
    assert pace.best.step_seconds == pytest.approx(0.1)
    assert pace.now.step_seconds == pytest.approx(0.15)
    assert pace.now.parts_seconds["forward"] - pace.best.parts_seconds["forward"] == pytest.approx(0.05)
    assert "copy" not in pace.now.parts_seconds, "not measured is not zero"


def test_the_mean_step_holds_what_no_part_holds_and_leaves_hiccups_out() -> None:
    history = timeline(
        run_facts(),
        steps(300, period=0.1, forward_seconds=0.04),
        steps(1, start=30.0, first=301, period=5.0),
        steps(900, start=35.0, first=302, period=0.1, forward_seconds=0.04),
        steps(600, start=125.0, first=1202, period=0.15, forward_seconds=0.04),
    )
    pace = rank_of(history, 215).pace
    assert pace is not None
    assert pace.now.mean_step_seconds == pytest.approx(0.15)
    assert pace.best.mean_step_seconds == pytest.approx(0.1)


def test_one_slow_block_is_not_the_pace_yet() -> None:
    history = timeline(run_facts(), steps(700, period=0.1), steps(80, start=70.0, first=701, period=0.15))
    pace = rank_of(history, 82).pace
    assert pace is not None and pace.now.step_seconds == pytest.approx(0.1)


def test_one_lucky_block_is_not_the_best() -> None:
    history = timeline(
        run_facts(),
        steps(310, period=0.1),
        steps(120, start=31.0, first=311, period=0.084),
        steps(400, start=41.1, first=431, period=0.1),
    )
    pace = rank_of(history, 82).pace
    assert pace is not None and pace.best.step_seconds > 0.095


def test_a_block_of_fast_steps_lasts_ten_seconds() -> None:
    history = timeline(run_facts(), steps(5_000, period=0.002))
    assert rank_of(history, 10).pace is None
    history = timeline(run_facts(), steps(12_000, period=0.002))
    pace = rank_of(history, 24).pace
    assert pace is not None and pace.now.steps > 4_000


def test_another_batch_size_begins_the_pace_anew() -> None:
    history = timeline(
        run_facts(),
        steps(300, period=0.1, samples=32),
        steps(900, start=30.0, first=301, period=0.2, samples=64),
    )
    pace = rank_of(history, 210).pace
    assert pace is not None and pace.best.step_seconds == pytest.approx(0.2)


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32)])
def test_a_batch_size_that_is_new_after_thousands_of_steps_counts_after_a_hundred(sizes: tuple[int, int]) -> None:
    before, after = sizes
    history = timeline(
        run_facts(),
        steps(3000, period=0.1, samples=before),
        steps(800, start=300.0, first=3001, period=0.1 * after / before, samples=after),
    )
    pace = rank_of(history, 300.0 + 80.0 * after / before).pace
    assert pace is not None
    assert pace.best.step_seconds == pytest.approx(0.1 * after / before)


@pytest.mark.parametrize(
    "change",
    [{"optimizer": "AdamW"}, {"parameters": 25_000_000}, {"trained_parameters": 9_000_000}, {"backward_line": 140}],
    ids=str,
)
def test_another_kind_of_training_begins_the_pace_anew(change: dict[str, object]) -> None:
    usual = ModelFacts(parameters=11_000_000, optimizer="SGD", backward_line=70)
    history = timeline(run_facts(model=usual), steps(600, period=0.1))
    history.add(run_facts(model=replace(usual)))
    assert rank_of(history, 60).pace is not None
    history.add(run_facts(model=replace(usual, **change)))
    assert rank_of(history, 60).pace is None


def test_a_last_batch_that_is_smaller_does_not_count() -> None:
    history = timeline(run_facts(loaders=(loader(),)), steps(600, period=0.1, samples=32))
    best = rank_of(history, 60).pace
    history.extend(steps(60, start=60.0, first=601, period=0.02, samples=8))
    assert rank_of(history, 62).pace == best


def test_compilations_count_from_the_hundredth_step_on() -> None:
    history = timeline(run_facts(), phase("compile", 1.0, 5.0), steps(100, period=0.1))
    found = rank_of(history, 10.1).recompiles
    assert found is not None and found.count == 0
    history.extend([*steps(500, start=10.0, first=101, period=0.1), phase("compile", 20.0, 26.0)])
    found = rank_of(history, 60).recompiles
    assert found is not None
    assert (found.count, found.seconds, found.over_seconds) == (1, 6.0, 50.0)
    assert found.share == pytest.approx(0.12)


def test_what_an_evaluation_compiles_does_not_count() -> None:
    history = timeline(run_facts(), steps(600, period=0.1), phase("compile", 31.0, 35.0), phase("eval", 30.0, 40.0))
    found = rank_of(history, 60).recompiles
    assert found is not None and found.count == 0


def test_noise_is_how_blocks_usually_differ_and_no_lasting_change() -> None:
    wavering = [0.1 + 0.01 * (number // 100 % 2) for number in range(1_000)]
    history = timeline(run_facts(), steps(1_000, period=wavering))
    pace = rank_of(history, 110).pace
    assert pace is not None and pace.noise is not None and pace.noise > 0.05
    stepped = timeline(run_facts(), steps(600, period=0.1), steps(600, start=60.0, first=601, period=0.15))
    pace = rank_of(stepped, 150).pace
    assert pace is not None and pace.noise == pytest.approx(0.0, abs=1e-3)
    assert rank_of(timeline(run_facts(), steps(500, period=0.1)), 50).pace.noise is None


def test_compilations_are_unknown_before_the_hundredth_step() -> None:
    assert rank_of(timeline(run_facts(), steps(99, period=0.1)), 10).recompiles is None


def test_compilations_of_more_than_ten_minutes_ago_are_forgotten() -> None:
    history = timeline(run_facts(), steps(7_000, period=0.1), phase("compile", 50.0, 60.0))
    found = rank_of(history, 700).recompiles
    assert found is not None and (found.count, found.over_seconds) == (0, 600.0)


def memories(*peaks: float, spacing: float = 1.0) -> list[RunMemory]:
    return [
        RunMemory(TRAINER, at(20 + spacing * place), allocated_peak_bytes=int(peak)) for place, peak in enumerate(peaks)
    ]


def test_growth_of_the_peak_comes_in_quarters() -> None:
    history = timeline(run_facts(), steps(200, period=0.1), memories(*range(1_000, 1_401, 10)))
    memory = rank_of(history, 60).memory
    assert memory is not None and memory.growth is not None
    assert memory.growth.quarters_bytes == (100, 100, 100, 100)
    assert (memory.growth.start_bytes, memory.growth.seconds) == (1_000, 40.0)


def test_growth_is_unknown_on_few_readings_and_before_the_hundredth_step() -> None:
    few = timeline(run_facts(), steps(200, period=0.1), memories(*range(10)))
    early = timeline(run_facts(), steps(50, period=0.1), memories(*range(100)))
    for history in (few, early):
        memory = rank_of(history, 120).memory
        assert memory is not None and memory.growth is None
