"""The waits for data: what the GPU idles for them, how sure the figure is, and when they are over."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuwatch.diagnosis.advice.starvation import (
    EARLY_STEPS,
    fluctuates,
    has_some_steps,
    idle_outside_waits,
    is_over,
    lost_interval,
    starvation_of,
    train_busy_percent,
)
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import GpuWindow, RankWindow, Share
from tests.unit.scene_builder import (
    SECOND,
    START_NS,
    check,
    gpu,
    later,
    loader,
    phase,
    rank,
    run,
    run_case,
    scene,
    workers,
)
from tests.unit.stack_windows import from_outside, sampled, watched


def case_of(trained: RankWindow, *gpus: GpuWindow):  # type: ignore[no-untyped-def]
    return run_case(scene(run(trained), gpus=gpus or [gpu()]))


def test_the_utilization_is_that_of_the_steps_whose_waits_are_known() -> None:
    """Forty steps of 7 s end at 280 s; in the wait of the next one the GPU idles, and no step has told of it yet."""
    trained = rank(step=7.0, wait=5.0, gap=5.0, steps=40, window=300.0)
    times = [START_NS + second * SECOND for second in range(1, 341)]
    values = [30.0 if second <= 280 else 0.0 for second in range(1, 341)]
    seen = gpu(train_utilization_series=list(zip(times, values, strict=True)), utilization=0.0)
    assert train_busy_percent(case_of(trained, seen)) == pytest.approx(30.0)
    few = gpu(train_utilization_series=list(zip(times[:20], values, strict=False)), utilization=12.0)
    assert train_busy_percent(case_of(trained, few)) == pytest.approx(12.0), "too few: all that are known"


@pytest.mark.parametrize(
    ("idle_in_pause", "idle_in_waits", "expected"),
    [
        pytest.param(1.0, 0.0, 0.0, id="the GPU idles in a pause and works through what is queued in the waits"),
        pytest.param(0.0, 0.3, 0.2, id="it idles in the waits"),
    ],
)
def test_idle_time_in_which_nothing_is_waited_for_is_not_the_waits(
    idle_in_pause: float, idle_in_waits: float, expected: float
) -> None:
    """A minute: 20 s in which the thread does something else, then 40 s of which it waits 45% for batches."""
    waits = tuple((1.0, 0.0 if second < 20 else 0.45) for second in range(60))
    outside = sampled(watched({"wait": 0.3, "forward": 0.7}, waits=waits), device="cuda")
    times = [START_NS + second * SECOND for second in range(1, 61)]
    busy = [100.0 * (1.0 - (idle_in_pause if second < 20 else idle_in_waits)) for second in range(60)]
    seen = gpu(train_utilization_series=list(zip(times, busy, strict=True)), utilization=sum(busy) / 60.0)
    starvation = starvation_of(case_of(outside, seen))
    assert starvation is not None and starvation.share == pytest.approx(expected, abs=0.03)
    known = rank(step=1.0, wait=[second[1] for second in waits], gap=float("nan"), steps=60, window=60.0)
    starvation = starvation_of(case_of(replace(known, gap_share=None), seen))
    assert starvation is not None and starvation.share == pytest.approx(expected, abs=0.05)


def test_what_collections_and_compiling_take_is_not_idle_time_of_the_steps() -> None:
    collecting = rank(train_seconds=45.0, phases={"gc": phase("gc", seconds=15.0, share=0.25)})
    assert train_busy_percent(case_of(collecting, gpu(utilization=60.0))) == pytest.approx(80.0)
    outside = rank(
        wait_share=0.1, facts={"visibility": "sampled"}, stacks=watched({"compile": 0.2, "eval": 0.2, "forward": 0.6})
    )
    assert train_busy_percent(case_of(outside, gpu(utilization=60.0))) == pytest.approx(80.0, abs=0.1)


def test_idle_time_in_logging_is_no_other_causes() -> None:
    logging = rank(gap=0.0, stacks=watched({"log": 0.2, "forward": 0.8}))
    starvation = starvation_of(case_of(logging))
    assert starvation is not None
    assert idle_outside_waits(logging, starvation, 70.0) == pytest.approx(0.1)


def beginning(waits: list[float], **fields: object) -> RankWindow:
    """Steps of 0.1 s of a loader of eight workers, from the first of an epoch on, none of them settled yet."""
    trained = rank(
        step=[0.1 + wait for wait in waits],
        wait=waits,
        steps=len(waits),
        loader=loader(num_workers=8, prefetch_factor=8),
        workers=workers(8),
        settled_wait_share=None,
        **fields,  # type: ignore[arg-type]
    )
    columns = replace(
        trained.columns,
        epoch_position=list(range(len(waits))),
        settled=[False] * len(waits),
        gap_seconds=[math.nan] * len(waits),
    )
    return replace(trained, columns=columns)


def test_the_first_batch_of_each_worker_is_no_starvation() -> None:
    """All are begun at once; after 5 s they come together, and the run never waits again."""
    fed = beginning([5.0] + [0.0] * 39)
    starvation = starvation_of(case_of(fed, gpu(utilization=45)))
    assert starvation is not None and starvation.share == 0.0
    assert check("data-starvation", case_of(fed, gpu(utilization=45))) is None


def test_before_the_queue_was_full_only_a_loss_beyond_doubt_is_said() -> None:
    starved = case_of(beginning([5.0] + [0.3] * 39), gpu(utilization=20))
    draft = check("data-starvation", starved)
    assert draft is not None and draft.fires and draft.severity is Severity.WARNING
    assert draft.fix is not None and "once its workers have filled their queue" in draft.fix.text
    assert has_some_steps(starved.run.critical)
    starvation = starvation_of(starved)
    assert starvation is not None
    interval = lost_interval(starved.run.critical, starvation)
    assert interval is not None and interval.low == pytest.approx(0.75)
    wavering = beginning([5.0] + ([0.0] * 9 + [0.4]) * 4)
    assert check("data-starvation", case_of(wavering, gpu(utilization=60))) is None, "29% on average, or chance"


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
    assert draft.evidence[0].text == "8 steps so far: waiting 65% to 72% of the time"
    assert draft.fix is not None and draft.fix.text == "Its cause is determined after 30 steps"
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
    assert draft.fix is not None and draft.fix.text == "Its cause is determined after 30 batches"


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
