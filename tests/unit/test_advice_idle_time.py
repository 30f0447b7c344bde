"""What a GPU idles, over the steps whose waits it is compared with, each second given to one cause."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scene_builder import SECOND, START_NS, check, gpu, loader, phase, rank, run, run_case, scene, workers
from stack_windows import watched

from gpuwatch.diagnosis.advice.starvation import (
    has_some_steps,
    idle_outside_waits,
    lost_interval,
    starvation_of,
    train_busy_percent,
)
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.timeline.windows import GpuWindow, RankWindow


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
    assert draft.fix is not None and "once the queue of its workers has been filled" in draft.fix.text
    assert has_some_steps(starved.run.critical)
    starvation = starvation_of(starved)
    assert starvation is not None
    interval = lost_interval(starved.run.critical, starvation)
    assert interval is not None and interval.low == pytest.approx(0.75)
    wavering = beginning([5.0] + ([0.0] * 9 + [0.4]) * 4)
    assert check("data-starvation", case_of(wavering, gpu(utilization=60))) is None, "29 % on average, or chance"
