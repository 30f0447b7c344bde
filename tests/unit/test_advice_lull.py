"""When waits for data are over, and when a run merely has a better minute."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuwatch.diagnosis.advice.starvation import fluctuates, is_over, starvation_of
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.timeline.windows import RankWindow
from tests.unit.scene_builder import gpu, later, rank, run, run_case, scene
from tests.unit.stack_windows import sampled, watched

SECONDS = [1.0 / 8] * 480  # 60 s of steps of 125 ms


def losing(*, until: float, from_second: float = 0.0, every: int = 1, share: float = 0.4) -> RankWindow:
    """Loses `share` of each step, or of each `every`th eight times as much of one, up to a second of the window."""
    waits = [
        share * (1.0 if every == 1 else 8.0) * 0.125
        if from_second <= 0.125 * place < until and not place % every
        else 0.0
        for place in range(480)
    ]
    periods = [0.125 + wait for wait in waits] if every > 1 else SECONDS
    return rank(step=periods, wait=waits, gap=waits, steps=480)


def over(member: RankWindow, utilization: Sequence[float] = (60.0,)) -> bool:
    case = run_case(scene(run(member), gpus=[gpu(utilization=utilization)]))
    starvation = starvation_of(case)
    assert starvation is not None
    return is_over(case, starvation, starvation.share)


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        pytest.param(losing(until=60.0), False, id="goes on"),
        pytest.param(losing(until=50.0), False, id="ten seconds without a loss"),
        pytest.param(losing(until=38.0), True, id="twenty seconds without a loss"),
        pytest.param(losing(until=38.0, every=160), False, id="single slow items pause as long each time"),
        pytest.param(losing(until=0.0), True, id="never lost any"),
    ],
)
def test_losses_are_over_when_none_comes_for_longer_than_they_ever_paused(member: RankWindow, expected: bool) -> None:
    assert over(member) is expected


def seen(*waited: tuple[int, float]) -> RankWindow:
    """A minute of looks without a hook: this many seconds in which a share was waited, one stretch after the other."""
    waits = [(1.0, share) for seconds, share in waited for _ in range(seconds)]
    mean = sum(share for _, share in waits) / len(waits)
    return sampled(watched({"wait": mean}, samples=6000, seconds=60.0, waits=waits))


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        pytest.param(seen((60, 0.4)), False, id="goes on"),
        pytest.param(seen((45, 0.4), (15, 0.01)), False, id="fifteen seconds without a wait"),
        pytest.param(seen((40, 0.4), (20, 0.01)), True, id="twenty seconds without a wait"),
        pytest.param(
            seen((5, 0.9), (15, 0.01), (5, 0.9), (35, 0.01)), False, id="single slow items pause as long by chance"
        ),
        pytest.param(seen((60, 0.01)), True, id="never waited"),
        pytest.param(seen((3, 0.01)), False, id="too short to say"),
    ],
)
def test_without_a_hook_the_waits_of_the_looks_tell_the_same(member: RankWindow, expected: bool) -> None:
    assert over(member) is expected


def test_waits_that_the_gpus_queue_hides_are_no_loss() -> None:
    hidden = seen((35, 0.4), (25, 0.2))
    assert over(hidden, [60.0] * 70 + [99.0] * 50)
    assert not over(hidden, [60.0] * 70 + [80.0] * 50)
    assert not over(hidden, [60.0] * 90 + [99.0] * 30)


def test_few_steps_tell_no_end() -> None:
    assert not over(rank(step=0.125, wait=0.0, gap=0.0, steps=100))


@pytest.mark.parametrize(
    ("now", "lasting", "expected"),
    [
        pytest.param(0.05, 0.08, True, id="a better minute"),
        pytest.param(0.05, 0.04, False, id="calm for five minutes"),
        pytest.param(0.03, 0.30, False, id="far less than before"),
        pytest.param(0.05, None, False, id="five minutes are not known"),
    ],
)
def test_a_better_minute_of_a_run_that_loses_as_much_is_no_end(
    now: float, lasting: float | None, expected: bool
) -> None:
    member = rank(step=0.1, wait=0.1 * now, gap=0.1 * now, lasting_gap_share=lasting)
    starvation = starvation_of(run_case(scene(run(member))))
    assert starvation is not None
    assert fluctuates(member, starvation, starvation.share, 0.06) is expected


def test_a_wavering_run_is_said_once() -> None:
    engine = Engine()
    said = []
    for evaluation in range(60):
        share = 0.13 if evaluation // 10 % 2 == 0 else 0.06
        member = rank(step=0.1, wait=0.1 * share, gap=0.1 * share, lasting_gap_share=0.08)
        found = engine.evaluate(later(scene(run(member)), 5.0 * evaluation))
        said.append("data-starvation" in {finding.rule for finding in found})
    assert said == [False] + [True] * 59
