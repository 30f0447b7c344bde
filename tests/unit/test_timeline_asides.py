"""What the training thread does between its steps for very long is no part of them, nor of the GPU's training."""

from __future__ import annotations

import pytest

from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    GPU,
    at,
    count,
    counts,
    current_line,
    gpu_at,
    gpu_facts,
    gpu_processes,
    phase,
    polls,
    rank_at,
    run_facts,
    sampled_facts,
    steps,
    timeline,
)

COUNTED = [*counts(30, 10.0), *(count(second, 300) for second in range(31, 61))]
"""Ten batches a second for half a minute, then none."""


def interrupted(period: float, *, before: int = 300, **parts: float) -> Timeline:
    """Steps of 0.1 s, one that takes `period` seconds, and a hundred more."""
    known = {"forward_seconds": 0.04, "backward_seconds": 0.05}
    start = before * 0.1
    return timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(before, **known),
        steps(1, start=start, period=period, first=before + 1, **(known | parts)),
        steps(100, start=start + period, first=before + 2, **known),
        polls(range(1, round(start + period + 10.0) + 1), utilization_percent=50.0),
    )


@pytest.mark.parametrize("part", ["forward_seconds", "backward_seconds", "optimizer_seconds"])
def test_one_step_that_takes_a_minute_by_a_compilation_or_a_barrier_is_no_pace(part: str) -> None:
    rank = rank_at(interrupted(60.0, **{part: 59.9}), 100.0)
    assert rank.step_seconds is not None
    assert rank.step_seconds.max == pytest.approx(0.1, rel=0.02)
    assert rank.backward_share is not None and rank.backward_share < 0.6


def test_gpu_samples_beside_own_code_of_the_script_are_no_training() -> None:
    window = gpu_at(interrupted(60.0), 100.0)
    assert window.train_utilization is not None
    assert window.train_utilization.count < 15


def test_a_wait_for_data_stays_however_long_it_is() -> None:
    rank = rank_at(interrupted(60.0, wait_seconds=59.9), 100.0)
    assert rank.step_seconds is not None and rank.step_seconds.max == pytest.approx(60.0)
    assert rank.wait_share is not None and rank.wait_share > 0.8


def test_what_comes_every_ten_steps_is_what_the_loop_is_made_of() -> None:
    """The rollouts of reinforcement learning."""
    history = timeline(run_facts(), steps(200, period=[8.0, *[0.1] * 9], backward_seconds=0.05))
    rank = rank_at(history, 178.0)
    assert rank.step_seconds is not None and rank.step_seconds.max == pytest.approx(8.0)


def test_steps_that_are_all_long_are_steps() -> None:
    rank = rank_at(timeline(run_facts(), steps(120, period=40.0, backward_seconds=30.0)), 4800.0)
    assert rank.step_seconds is not None and rank.step_seconds.p50 == pytest.approx(40.0)


@pytest.mark.parametrize("hooked", [True, False])
def test_a_thread_that_has_left_its_loop_trains_no_gpu(hooked: bool) -> None:
    trained = steps(300) if hooked else COUNTED
    seen = [current_line(float(second), in_loop=second <= 30, since=second - 0.1) for second in range(1, 61)]
    facts = run_facts(gpu_uuids=(GPU,)) if hooked else sampled_facts()
    on_gpu = gpu_processes(1.0, 4711)
    history = timeline(gpu_facts(), on_gpu, facts, trained, seen, polls(range(1, 61), utilization_percent=50.0))
    series = gpu_at(history, 60.0).train_utilization_series
    assert series and max(time for time, _ in series) <= at(32)
    assert rank_at(history, 60.0).outside


def test_seen_from_outside_own_code_in_the_loop_is_no_training_and_a_wait_is() -> None:
    def busy(phase: str) -> int:
        seen = [
            current_line(float(second), "forward" if second <= 30 else phase, in_loop=True, since=second - 0.1)
            for second in range(1, 61)
        ]
        history = timeline(
            gpu_facts(),
            gpu_processes(1.0, 4711),
            sampled_facts(),
            COUNTED,
            seen,
            polls(range(1, 61), utilization_percent=50.0),
        )
        return len(gpu_at(history, 60.0).train_utilization_series)

    assert busy("other") < 35
    assert busy("wait") > 50


@pytest.mark.parametrize("reads_stacks", [True, False])
def test_a_silence_of_the_hook_is_no_training_unless_its_stack_shows_a_wait(reads_stacks: bool) -> None:
    """Rank 0 samples for two minutes and the others spin in a collective: each GPU is as busy as it likes."""
    seen = [current_line(float(second), "wait", in_loop=True, since=30.0) for second in range(31, 61)]
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(300),
        seen if reads_stacks else [],
        polls(range(1, 61), utilization_percent=50.0),
    )
    window = gpu_at(history, 60.0)
    assert window.train_utilization is not None
    assert (window.train_utilization.count < 35) is not reads_stacks


def evaluated(until: float, *, length: float = 60.0, every: float = 100.0) -> Timeline:
    """Steps of 0.1 s with an evaluation at the end of every n seconds."""
    starts = [start for start in (every * place + every - length for place in range(9)) if start + length <= until]
    spans = [phase("eval", start, start + length) for start in starts]
    return timeline(run_facts(), steps(round(10 * until)), spans)


def test_a_save_that_the_hook_does_not_see_is_no_training() -> None:
    seen = [current_line(float(second), phase="save", since=30.0) for second in range(31, 61)]
    history = timeline(
        gpu_facts(), run_facts(gpu_uuids=(GPU,)), steps(300), seen, polls(range(1, 61), utilization_percent=0.0)
    )
    window = gpu_at(history, 60.0, window=29.0)
    assert window.train_utilization is None


def test_a_silence_of_which_no_stack_tells_is_no_training_until_a_step_ends_it_with_a_wait() -> None:
    def silent(*after: object) -> Timeline:
        gpu = polls(range(1, 61), utilization_percent=0.0)
        return timeline(gpu_facts(), run_facts(gpu_uuids=(GPU,)), steps(300), gpu, *after)

    assert gpu_at(silent(), 60.0, window=29.0).train_utilization is None
    waited = silent(steps(1, start=30.0, period=29.0, first=301, wait_seconds=28.9))
    window = gpu_at(waited, 60.0, window=29.0)
    assert window.train_utilization is not None and window.train_utilization.count > 20


def test_an_evaluation_takes_its_share_of_whole_cycles_wherever_the_window_lies() -> None:
    for until in (300.0, 310.0, 330.0, 355.0):
        cycles = rank_at(evaluated(until), until).eval_cycles
        assert cycles is not None and cycles.share == pytest.approx(0.6)
    assert rank_at(evaluated(250.0), 250.0).eval_cycles is None, "two are no cycle that repeats"


def test_evaluations_that_stay_away_make_no_cycle() -> None:
    history = timeline(run_facts(), steps(4000), [phase("eval", start, start + 60.0) for start in (40.0, 140.0, 240.0)])
    assert rank_at(history, 350.0).eval_cycles is not None
    assert rank_at(history, 365.0).eval_cycles is None
