"""How far a share of the steps may be believed, and what is said of a run that has made only a few."""

from __future__ import annotations

import random

import pytest
from scene_builder import check, later, loader, rank, run, run_case, scene

from gpuwatch.diagnosis.advice.starvation import EARLY_STEPS, lost_interval, starvation_of
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import Share
from tests.unit.stack_windows import from_outside, sampled, watched


def few(steps: int, waits: list[float], *, compute: float = 0.5, warm: bool = False, workers: int = 0) -> RunCase:
    """A run on the CPU that has made this many settled steps."""
    periods = [compute + wait for wait in waits]
    trained = rank(
        step=periods,
        wait=waits,
        window=sum(periods) + 0.001,
        device="cpu",
        warm=warm,
        loader=loader(num_workers=workers),
        workers=None,
    )
    assert trained.steps == steps
    return run_case(scene(run(trained), gpus=[]))


def interval_of(case: RunCase) -> Share | None:
    starvation = starvation_of(case)
    assert starvation is not None
    return lost_interval(case.run.critical, starvation)


def test_fewer_than_eight_steps_have_no_interval() -> None:
    assert interval_of(few(EARLY_STEPS - 1, [0.5] * (EARLY_STEPS - 1))) is None


def test_equal_steps_leave_nothing_open_and_wavering_ones_do() -> None:
    even, wavering = interval_of(few(8, [0.5] * 8)), interval_of(few(8, [0.1, 0.9] * 4))
    assert even is not None and wavering is not None
    assert (even.low, even.value, even.high) == pytest.approx((0.5, 0.5, 0.5))
    assert wavering.low < 0.4 and wavering.high > 0.6


def test_the_interval_holds_the_true_share_as_often_as_it_says() -> None:
    """Waits of an exponential law beside even computing: the share is known, the law has a heavy side."""
    chance, held, runs = random.Random(7), 0, 400
    for _ in range(runs):
        found = interval_of(few(12, [chance.expovariate(2.0) for _ in range(12)]))
        assert found is not None
        held += found.low <= 0.5 <= found.high
    assert held / runs == pytest.approx(0.93, abs=0.04)


def test_a_starved_run_is_named_from_its_eighth_step_on_at_once_with_what_is_still_open() -> None:
    case = few(8, [1.0, 1.4, 0.9, 1.2, 1.1, 1.3, 0.8, 1.0])
    draft = check("data-starvation", case)
    assert draft is not None and draft.is_certain and draft.severity is Severity.WARNING
    assert draft.evidence[0].text == "8 steps so far: waiting 65 % to 72 % of the time"
    assert draft.fix is not None and draft.fix.text == "What causes it is judged from 30 steps on"
    moment = scene(case.run, gpus=[])
    assert [finding.rule for finding in Engine().evaluate(moment)] == ["data-starvation"]


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param([0.02] * 8, id="hardly waits"),
        pytest.param([0.0] * 7 + [4.0], id="one long wait"),
        pytest.param([1.0] * 7, id="seven steps"),
    ],
)
def test_what_eight_steps_do_not_show_is_not_said(waits: list[float]) -> None:
    moment = scene(few(len(waits), waits).run, gpus=[])
    engine = Engine()
    assert [engine.evaluate(later(moment, 5.0 * place)) for place in range(3)] == [()] * 3


def attached(batches: int, seconds: list[tuple[float, float]]) -> RunCase:
    """A run on the CPU that is seen from outside for this many seconds of (training, waiting)."""
    share = sum(waited for _, waited in seconds) / sum(time for time, _ in seconds)
    seen = watched(
        {"wait": share, "forward": 1.0 - share},
        samples=70 * len(seconds),
        seconds=float(len(seconds)),
        batches_per_second=batches / len(seconds),
        waits=tuple(seconds),
    )
    return run_case(scene(run(sampled(seen, loader=from_outside(num_workers=0), device="cpu")), gpus=[]))


def test_slow_batches_seen_from_outside_are_named_before_thirty_of_them() -> None:
    draft = check("data-starvation", attached(12, [(1.0, 0.9), (1.0, 0.4)] * 10))
    assert draft is not None and draft.is_certain
    assert draft.evidence[0].text.startswith("12 batches so far: waiting ")
    assert draft.fix is not None and draft.fix.text == "What causes it is judged from 30 batches on"


def test_what_samples_of_a_few_batches_do_not_show_is_not_said() -> None:
    one_long_wait = [(1.0, 1.0)] * 8 + [(1.0, 0.0)] * 12
    assert check("data-starvation", attached(12, one_long_wait)) is None
    few = scene(attached(7, [(1.0, 0.9)] * 14).run, gpus=[])
    assert Engine().evaluate(few) == ()


def by_second(waits: list[float], compute: float) -> list[tuple[float, float]]:
    """Batches cut into seconds of (training, waiting)."""
    ends, clock = [], 0.0
    for wait in waits:
        ends.append((clock, clock + wait))
        clock += wait + compute
    return [
        (1.0, sum(max(0.0, min(end, second + 1) - max(start, second)) for start, end in ends))
        for second in range(int(clock))
    ]


def test_the_interval_of_samples_holds_the_true_share_as_often_as_it_says() -> None:
    """Waits of three seconds in the mean: second by second they would look like many proofs."""
    chance, held, runs = random.Random(3), 0, 300
    for _ in range(runs):
        seconds = by_second([chance.expovariate(1 / 3.0) for _ in range(24)], 2.0)
        found = interval_of(attached(24, seconds))
        assert found is not None
        held += found.low <= 0.6 <= found.high
    assert held / runs == pytest.approx(0.95, abs=0.03)
