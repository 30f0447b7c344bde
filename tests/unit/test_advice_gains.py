"""What a change of the steps or pauses can bring while the loader's workers have no time to spare."""

from __future__ import annotations

import pytest
from scene_builder import (
    check,
    findings,
    gpu,
    host,
    loader,
    machine,
    phase,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)
from stack_windows import line, watched

from gpuwatch.diagnosis.advice.gains import LOADER_CAP, from_share, pauses_within_loader, within_loader
from gpuwatch.diagnosis.advice.starvation import idle_outside_waits, starvation_of
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import RankWindow

HALF = from_share(0.0, 0.5)
PAUSES = phase("eval", count=2, seconds=12.0, share=0.2)


def case_of(one: RankWindow, cpu_percent: float = 20.0) -> RunCase:
    return run_case(scene(run(one), host=host(cpu_percent=cpu_percent)))


def test_busy_workers_leave_nothing_to_win() -> None:
    assert within_loader(case_of(rank(workers=workers(4, busy_share=1.0))), HALF) == Gain(1.0, 1.0, LOADER_CAP)


def test_workers_with_time_to_spare_deliver_as_much_faster() -> None:
    bounded = within_loader(case_of(rank(workers=workers(4, busy_share=0.8))), HALF)
    assert (bounded.low, bounded.high) == pytest.approx((1.0, 1.25))
    assert within_loader(case_of(rank(workers=workers(4, busy_share=0.4))), HALF) == HALF


def test_workers_that_still_fill_a_deep_queue_bound_nothing() -> None:
    """Each batch takes one of 128 workers 100 s, a step 2 s: they would deliver one in 0.8 s."""
    filling = rank(
        step=2.0,
        loader=loader(num_workers=128),
        workers=workers(128, busy_share=1.0, batch_seconds=100.0, cpu_cores=0.01),
    )
    assert within_loader(case_of(filling), HALF).high == HALF.high


def test_what_workers_idle_is_no_room_while_the_run_waits_for_them_or_for_the_cores() -> None:
    def bounded(busy_share: float, *, lost: float = 0.4, cores_full: bool = False) -> tuple[float, float]:
        waiting = rank(wait=0.2 * lost, gap=0.2 * lost, workers=workers(4, busy_share=busy_share))
        gain = within_loader(case_of(waiting, cpu_percent=99.0 if cores_full else 20.0), from_share(0.1, 0.5))
        return gain.low, gain.high

    assert bounded(0.9) == pytest.approx((1.0, 1.0 / 0.9), abs=0.001)
    assert bounded(0.8) == pytest.approx((1.0 / 0.9, 1.25), abs=0.001)
    assert bounded(0.8, cores_full=True) == pytest.approx((1.0, 1.25), abs=0.001)
    assert bounded(0.9, lost=0.0, cores_full=True) == pytest.approx((1.0 / 0.9, 1.0 / 0.9), abs=0.001)


def test_batches_cost_the_cores_as_much_however_long_workers_stand_in_line_for_them() -> None:
    """32 workers that are at work 61% of their time keep 15.2 of 16 cores busy: 1.05x is left, not 1.64x."""
    crowded = rank(
        loader=loader(num_workers=32), workers=workers(32, busy_share=0.61, cpu_cores=0.475), process=process()
    )
    case = run_case(scene(run(crowded), machine=machine(16), host=host(cpu_percent=99.0)))
    assert within_loader(case, HALF).high == pytest.approx(16 / 15.2, abs=0.001)
    assert pauses_within_loader(case, from_share(0.2, 0.2), PAUSES).high == pytest.approx(16 / 15.2, abs=0.001)


@pytest.mark.parametrize(
    "unbounded", [rank(loader=loader(num_workers=0), workers=None), rank(workers=workers(4, busy_share=None))]
)
def test_nothing_is_taken_off_where_no_worker_is_known_to_be_busy(unbounded: RankWindow) -> None:
    assert within_loader(case_of(unbounded), HALF) == HALF
    assert pauses_within_loader(case_of(unbounded), HALF, PAUSES) == HALF


def test_batches_made_in_a_pause_have_to_be_made_without_it_too() -> None:
    """A fifth of the time is paused, 6 s at a time; the steps leave the workers nothing."""
    busy = workers(4, busy_share=1.0, batch_seconds=1.5)
    gain = from_share(0.2, 0.2)
    filling = pauses_within_loader(case_of(rank(workers=busy)), gain, PAUSES)
    assert (filling.low, filling.high) == pytest.approx((1 / 0.9, 1 / 0.9), abs=0.001), "two batches each, half a pause"
    shallow = rank(step=0.0025, workers=workers(4, busy_share=1.0, batch_seconds=0.01))
    assert pauses_within_loader(case_of(shallow), gain, PAUSES).high == pytest.approx(1 / 0.8007, abs=0.001)


def test_without_the_time_of_a_batch_the_filling_is_between_none_and_all() -> None:
    unknown = rank(workers=workers(4, busy_share=1.0, batch_seconds=None))
    bounded = pauses_within_loader(case_of(unknown), from_share(0.2, 0.2), PAUSES)
    assert (bounded.low, bounded.high) == pytest.approx((1.0, 1 / 0.8))


def test_a_warning_that_promises_next_to_nothing_is_none() -> None:
    def said(busy_share: float) -> set[str]:
        storing = phase("checkpoint", count=4, seconds=12.0, share=0.2)
        made = workers(4, busy_share=busy_share, batch_seconds=3.0)
        return {each.rule for each in findings(scene(run(rank(phases={"checkpoint": storing}, workers=made))))}

    assert "checkpoint-stall" in said(0.5)
    assert "checkpoint-stall" not in said(1.0)


def test_the_starts_of_epochs_explain_what_the_gpu_idles_then() -> None:
    """Ten steps of 0.1 s, of which the first waits: it is left out of the share within epochs."""
    waits = [1.0] + [0.0] * 9
    epoch = rank(step=[1.1] + [0.1] * 9, wait=waits, gap=waits, steps=200, settled_wait_share=0.0, gap_share=0.0)
    case = run_case(scene(run(epoch), gpus=[gpu(utilization=45)]))
    starvation = starvation_of(case)
    assert starvation is not None and starvation.share == 0.0
    assert idle_outside_waits(epoch, starvation, 45.0) == pytest.approx(0.05)


@pytest.mark.parametrize("share", [0.0, None], ids=["settled steps", "epochs of fewer batches than workers"])
def test_asking_for_numbers_is_not_blamed_for_what_the_starts_of_epochs_cost(share: float | None) -> None:
    waits = [1.0] + [0.0] * 9
    asking = line("sync", 70, 0.25, text="loss.item()")
    stacks = watched({"sync": 0.25, "wait": 0.5, "forward": 0.2}, lines=[asking])
    epoch = rank(
        step=[1.1] + [0.1] * 9,
        wait=waits,
        gap=waits,
        steps=200,
        settled_wait_share=share,
        wait_share=share,
        gap_share=share,
        stacks=stacks,
    )
    assert check("sync-per-step", run_case(scene(run(epoch), gpus=[gpu(utilization=49)]))) is None
