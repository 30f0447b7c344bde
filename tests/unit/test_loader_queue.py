"""What batches wait for each other in a DataLoader's queue, and what another queue is promised to bring."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from queued_runs import queued, waits
from scene_builder import host, loader, machine, process, run, run_case, scene, workers

from gpuwatch.diagnosis.advice.loader_queue import LoaderQueue, QueueModel, deeper_prefetches, queue_model, wait_seconds
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.timeline.windows import Scene


def one_dear(cost: float, others: float = 0.0) -> tuple[float, ...]:
    """A hundred batches, the fifty-first of which is dear."""
    return tuple(cost if place == 50 else others for place in range(100))


def waited(queue: LoaderQueue, making: tuple[float, ...]) -> float:
    """All seconds waited behind a full queue at a second a step."""
    return wait_seconds(queue, making, 1.0) * (len(making) - queue.depth)


@pytest.mark.parametrize(("prefetch", "expected"), [(1, 8.0), (2, 6.0), (4, 2.0), (8, 0.0)])
def test_an_expensive_batch_is_asked_for_as_many_steps_ahead_as_the_queue_is_deep(
    prefetch: int, expected: float
) -> None:
    assert waited(LoaderQueue(2, prefetch), one_dear(10.0)) == pytest.approx(expected)


def test_out_of_order_the_other_worker_goes_on_alone() -> None:
    assert waited(LoaderQueue(2, 2, in_order=False), one_dear(10.0, others=0.9)) == 0.0
    assert waited(LoaderQueue(2, 2), one_dear(10.0, others=0.9)) > 5.0


def test_workers_too_slow_on_average_make_every_queue_wait() -> None:
    for queue in (LoaderQueue(2, 2), LoaderQueue(2, 8), LoaderQueue(2, 2, in_order=False)):
        assert wait_seconds(queue, (3.0,) * 1000, 1.0) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("count", "prefetch"), [(1, 2), (2, 1), (4, 2), (4, 8), (7, 3)])
def test_batches_wait_as_in_torch_code(count: int, prefetch: int, *, in_order: bool) -> None:
    chance = random.Random(count)
    making = tuple(chance.lognormvariate(-1.0, 0.5) * chance.choice((1, 1, 1, 1, 20)) for _ in range(400))
    depth = count * prefetch
    # What is handed over at the end, with nothing left to ask for, depends on what was asked for before.
    counted = slice(depth, None if in_order else -depth)
    blocked = waits(making, 0.4, count=count, prefetch=prefetch, in_order=in_order)[counted]
    assert wait_seconds(LoaderQueue(count, prefetch, in_order), making, 0.4) == pytest.approx(fmean(blocked))


def tail(seconds: float, share: float = 0.08, usual: float = 0.005, steps: int = 800) -> list[float]:
    """Batches of which some take long, in the order of a shuffle."""
    chance = random.Random(7)
    return [seconds if chance.random() < share else usual for _ in range(steps)]


def model_of(moment: Scene) -> QueueModel | None:
    case = run_case(moment)
    starvation = starvation_of(case)
    assert starvation is not None
    return queue_model(case, starvation)


@pytest.mark.parametrize(
    "other",
    [LoaderQueue(4, 4), LoaderQueue(4, 8), LoaderQueue(4, 2, in_order=False), LoaderQueue(4, 8, in_order=False)],
)
def test_the_gain_is_what_the_same_batches_bring_in_the_other_queue(other: LoaderQueue) -> None:
    making = tail(0.5)
    model = model_of(queued(making, 0.02))
    assert model is not None
    before, after = (
        sum(waits(making, 0.02, prefetch=queue.prefetch, in_order=queue.in_order)[queue.depth :]) / (800 - queue.depth)
        for queue in (LoaderQueue(4, 2), other)
    )
    gain = model.gain(other)
    assert gain.low <= (0.02 + before) / (0.02 + after) <= gain.high
    assert gain.high <= 1.25 * gain.low


@pytest.mark.parametrize("other", [LoaderQueue(4, 8), LoaderQueue(4, 2, in_order=False)])
def test_the_range_of_a_short_window_holds_what_lasts(other: LoaderQueue) -> None:
    """Of minutes with 2 to 12 slow items each, whose numbers are chance."""
    chance = random.Random(5)

    def made(count: int) -> tuple[float, ...]:
        return tuple(0.6 if chance.random() < 0.02 else 0.01 for _ in range(count))

    lasting = made(40_000)
    before, after = (0.02 + wait_seconds(queue, lasting, 0.02) for queue in (LoaderQueue(4, 2), other))
    models = [model for model in (model_of(queued(list(made(300)), 0.02)) for _ in range(30)) if model is not None]
    gains = [model.gain(other) for model in models]
    inside = sum(gain.low <= before / after <= gain.high for gain in gains)
    assert len(models) >= 24 and inside >= 0.8 * len(gains)


def with_earlier(moment: Scene, earlier: Sequence[float]) -> Scene:
    member = moment.runs[0].critical
    assert member.workers is not None
    made = replace(member.workers, earlier_batch_seconds=tuple(earlier))
    return replace(moment, runs=(run(replace(member, workers=made)),))


def test_a_minute_with_many_slow_items_is_set_right_by_the_minutes_before_it() -> None:
    """Those with few are not reported: of the minutes that are, each has more than what lasts."""
    chance, other = random.Random(5), LoaderQueue(4, 2, in_order=False)

    def made(count: int) -> tuple[float, ...]:
        return tuple(0.6 if chance.random() < 0.02 else 0.01 for _ in range(count))

    lasting = made(40_000)
    before, after = (0.02 + wait_seconds(queue, lasting, 0.02) for queue in (LoaderQueue(4, 2), other))
    errors: dict[str, list[float]] = {"alone": [], "known": []}
    while len(errors["alone"]) < 12:
        minute, earlier = made(300), made(700)
        if sum(batch > 0.1 for batch in minute) < 8:
            continue
        moment = queued(list(minute), 0.02)
        for name, each in (("alone", moment), ("known", with_earlier(moment, earlier))):
            model = model_of(each)
            assert model is not None
            gain = model.gain(other)
            errors[name].append(math.sqrt(gain.low * gain.high) / (before / after) - 1.0)
    assert fmean(errors["alone"]) > 0.12
    assert fmean(errors["known"]) < 0.06


def test_batches_from_before_a_change_tell_nothing_of_what_comes() -> None:
    moment = queued([0.6 if place % 30 == 20 else 0.01 for place in range(300)], 0.02)
    model, changed = model_of(moment), model_of(with_earlier(moment, [0.01] * 700))
    assert model is not None and changed is not None
    other = LoaderQueue(4, 8)
    assert changed.gain(other) == model.gain(other)


def test_no_promise_where_the_queue_does_not_explain_the_loss() -> None:
    moment = queued(tail(0.5), 0.02)
    member = moment.runs[0].critical
    made = member.workers
    assert made is not None and model_of(moment) is not None
    for times in ((0.005,) * 800, tuple(tail(1.5)), ()):
        other = replace(member, workers=replace(made, newest_batch_seconds=times))
        assert model_of(scene(run(other))) is None


def test_an_expensive_batch_whose_loss_is_not_known_yet_is_not_looked_for_in_what_is_known() -> None:
    making = [0.5 if place % 50 == 20 else 0.005 for place in range(275)]
    making[-3:] = [3.0, 0.005, 0.005]
    moment = queued(making, 0.02)
    member = moment.runs[0].critical
    known = [*list(member.columns.gap_seconds)[:-3], math.nan, math.nan, math.nan]
    share = sum(known[:-3]) / sum(list(member.columns.period_seconds)[:-3])
    late = replace(member, columns=replace(member.columns, gap_seconds=known), gap_share=share)
    model = model_of(replace(moment, runs=(run(late),)))
    assert model is not None
    assert max(model.batch_seconds) == 0.5
    assert model.compute_seconds == pytest.approx(0.02, rel=0.15)
    assert model.missed_seconds < 0.1 * model.lost_seconds


def test_an_expensive_batch_weighs_the_same_wherever_in_the_window_it_is() -> None:
    places = (2, 50, 300, 540)
    for place in places:
        making = [0.005] * 8 + [3.0 if each == place else 0.005 for each in range(600)]
        model = model_of(queued(making, 0.02))
        assert model is not None, place
        assert model.missed_seconds < 0.1 * model.lost_seconds


def test_of_quick_steps_the_batches_are_set_beside_the_loss_of_just_those_steps() -> None:
    making = [0.005] * 3000 + tail(0.5, steps=1100)
    model = model_of(queued(making, 0.02))
    assert model is not None
    member = queued(making, 0.02).runs[0].critical
    assert member.gap_share is not None
    assert model.lost_seconds / model.period_seconds > 2 * member.gap_share
    assert model.missed_seconds < 0.1 * model.lost_seconds


def test_a_worse_queue_is_said_to_cost_speed() -> None:
    model = model_of(queued(tail(0.5), 0.02))
    assert model is not None
    assert model.gain(model.present) == replace(model.gain(model.present), low=1.0)
    fewer = model.gain(LoaderQueue(2, 2))
    assert fewer.high < 1.0
    alone = model.gain(LoaderQueue(1, 1))
    assert alone.high < fewer.low
    assert alone.cap == "then limited by the 1 worker"


def test_the_cores_bound_what_items_that_compute_can_gain() -> None:
    making = tail(0.2)
    free = model_of(queued(making, 0.02))
    made = workers(4, cpu_cores=0.9, busy_share=0.5, batch_seconds=0.02, batch_cpu_seconds=0.02)
    made = replace(made, newest_batch_seconds=tuple(making))
    few = process(cores=1, tree_cores=0.9, main_thread_cores=0.2)
    held = model_of(replace(queued(making, 0.02, workers=made, process=few), machine=machine(1)))
    assert free is not None and held is not None
    other = LoaderQueue(4, 8, in_order=False)
    assert held.gain(other).high < free.gain(other).high
    assert held.gain(other).cap == "then limited by the 1 CPU core"


def best(making: list[float], *, may_reorder: bool = True, depths: tuple[int, ...] = (4, 8)) -> LoaderQueue | None:
    model = model_of(queued(making, 0.02))
    assert model is not None
    return model.best(depths, may_reorder=may_reorder)


def test_the_queue_is_no_deeper_than_pays() -> None:
    short = [0.22 if place % 40 == 20 else 0.005 for place in range(800)]
    assert best(short) == LoaderQueue(4, 4)
    longer = [0.55 if place % 40 == 20 else 0.005 for place in range(800)]
    assert best(longer) == LoaderQueue(4, 8)


def test_the_order_is_given_up_only_for_clearly_more() -> None:
    longest = [2.0 if place % 80 == 20 else 0.005 for place in range(800)]
    assert best(longest) == LoaderQueue(4, 2, in_order=False)
    kept = best(longest, may_reorder=False)
    assert kept == LoaderQueue(4, 8)


def test_nothing_is_advised_where_nothing_pays() -> None:
    endless = [30.0 if place == 400 else 0.005 for place in range(800)]
    assert best(endless, may_reorder=False) is None
    assert best(endless, depths=()) == LoaderQueue(4, 2, in_order=False)


def test_only_what_shared_memory_holds_is_a_choice() -> None:
    moment = queued(tail(0.5), 0.02)
    assert deeper_prefetches(run_case(moment)) == (4, 8)
    small = host(latest={"shm_total_bytes": 30_000_000, "shm_used_bytes": 0})
    assert deeper_prefetches(run_case(replace(moment, host=small))) == (4,)
    deep = queued(tail(0.5), 0.02, loader=loader(num_workers=4, prefetch_factor=8))
    assert deeper_prefetches(run_case(deep)) == ()
