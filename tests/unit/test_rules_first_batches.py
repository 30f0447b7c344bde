"""Starvation before there are steps enough: a next() that has not returned, and batches that come in bursts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gpuwatch.diagnosis.advice.starvation import lost_interval, starvation_of
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.samples import GpuGap, LineCount, Sample, StackTally, WorkerCount, WorkerSample
from tests.unit.sample_builder import (
    at,
    fetch,
    loader,
    process,
    rank_at,
    run_facts,
    sampled_facts,
    scene,
    steps,
    tallies,
    tally,
    timeline,
)
from tests.unit.scene_builder import check, run_case

WORKERS = 4
LOADER = loader(num_workers=WORKERS, prefetch_factor=2, batch_size=64)
ITEM = LineCount("item", "/home/user/data.py", 41, "__getitem__", 80, text="image = augment(image)")


def waiting(until: int, *, start: int = 0, phase: str = "item", cores: float = 0.9, blocked: float = 0.0) -> list[Any]:
    """Seconds in which the training thread is in next() and all four workers are in one phase."""
    return [
        *tallies(
            until - start,
            {"wait": 25},
            start=float(start),
            workers=WORKERS,
            worker_samples=80,
            worker_phases={phase: 80},
            worker_lines=(ITEM,) if phase == "item" else (),
            by_worker=tuple(WorkerCount(9000 + worker, 20, 20 if phase == "idle" else 0) for worker in range(WORKERS)),
            first_wait_samples=25,
        ),
        *processes(until, start=start, cores=cores, blocked=blocked),
    ]


def processes(until: int, *, start: int = 0, cores: float = 0.9, blocked: float = 0.0) -> list[Any]:
    """What /proc shows each second."""
    workers = tuple(
        WorkerSample(pid=9000 + worker, cpu_cores=cores, state="R", blocked_share=blocked) for worker in range(WORKERS)
    )
    used = {"tree_cores": cores * WORKERS, "main_thread_cores": 0.0, "state": "S", "workers": workers}
    return [process(second + 1.0, **used) for second in range(start, until)]


def said(samples: list[Sample], last: int) -> dict[int, Finding]:
    """What data-starvation said at each evaluation, by its second."""
    coming, history, engine = deque(sorted(samples, key=_when)), timeline(), Engine()
    found: dict[int, Finding] = {}
    for second in range(5, last + 1, 5):
        while coming and _when(coming[0]) <= at(second):
            history.add(coming.popleft())
        for finding in engine.evaluate(scene(history, second)):
            if finding.rule == "data-starvation":
                found[second] = finding
    return found


def _when(sample: Sample) -> int:
    if isinstance(sample, GpuGap):
        return at(3.2 * sample.number)
    end = getattr(sample, "end_ns", None)
    return int(sample.time_ns if end is None else end)  # type: ignore[union-attr]


def hooked(*samples: list[Any]) -> list[Any]:
    return [run_facts(device="cuda", loaders=(LOADER,)), *(each for some in samples for each in some)]


def test_a_wait_for_the_first_batch_is_noted_and_then_warned_of() -> None:
    found = said(hooked(waiting(95)), 95)
    assert min(found) == 25
    assert {second: finding.severity.value for second, finding in found.items() if second in (25, 55, 60, 95)} == {
        25: "info",
        55: "info",
        60: "warning",
        95: "warning",
    }
    finding = found[95]
    assert finding.summary == ("Training has waited 95 s for its first batch: 100% of the workers' time is data.py:41")
    assert finding.gain is None and finding.fix is not None and finding.fix.line == 41
    assert "If only the first item is slow" in finding.fix.text
    numbers = {measure.name: measure.value for measure in finding.evidence}
    assert numbers["open_wait_seconds"] == 95.0 and numbers["batches"] == 0


def test_the_same_is_said_of_a_run_without_a_hook() -> None:
    samples = [sampled_facts(loaders=()), *waiting(95)]
    finding = said(samples, 95)[95]
    assert finding.severity.value == "warning" and finding.level.name == "E1"
    assert finding.summary.startswith("The loop has waited 95 s for its first batch")


@pytest.mark.parametrize(("made_seconds", "severity"), [(8.0, "info"), (40.0, "warning")])
def test_a_second_wait_behind_workers_that_make_batches_faster_than_a_step_is_only_noted(
    made_seconds: float, severity: str
) -> None:
    """A first batch after 60 s, a step of 5 s, and 40 s of waiting for the next one; four workers make batches."""
    made = [
        fetch(worker, 90.0 - made_seconds * (number + 1), 90.0 - made_seconds * number, loader=1)
        for worker in range(WORKERS)
        for number in range(2)
    ]
    first = steps(1, period=65.0, wait=60.0, first=1, epoch_position=0)
    finding = said(hooked(waiting(60), made, first, waiting(105, start=65)), 105)[105]
    assert finding.severity.value == severity
    assert "waited 100 s, trained 5 s so far" in {measure.text for measure in finding.evidence}


def test_workers_that_wait_for_storage_are_named_with_their_cause() -> None:
    finding = said(hooked(waiting(95, cores=0.2, blocked=0.7)), 95)[95]
    assert finding.summary.endswith("its 4 workers wait for storage 70% of the time")
    assert {measure.name: measure.value for measure in finding.evidence}["cause"] == "io-bound"


def test_a_wait_in_which_nothing_moves_or_workers_import_is_no_loading() -> None:
    assert said(hooked(waiting(95, cores=0.0)), 95) == {}
    assert said(hooked(waiting(95, phase="other")), 95) == {}
    assert said(hooked(waiting(95, phase="idle")), 95) == {}


def test_a_burst_is_judged_by_what_its_batches_took_the_workers() -> None:
    made = [fetch(worker, 0.0, 100.0, loader=1) for worker in range(WORKERS)]
    first = steps(1, period=100.2, wait=100.0, first=1, epoch_position=0)
    later = [
        step for place in range(1, 8) for step in steps(1, start=100.0 + 0.2 * place, period=0.2, first=place + 1,
                                                         epoch_position=place)
    ]  # fmt: skip
    samples = hooked(waiting(100), made, first, later, waiting(125, start=102))
    finding = said(samples, 125)[125]
    assert finding.severity.value == "warning"
    assert "all 4 workers together make a batch in 25 s; step time: 200 ms" in finding.summary
    assert finding.gain is not None and finding.gain.high > 10.0


def test_a_slow_first_item_is_over_with_the_first_batches() -> None:
    began = [fetch(worker, 0.0, 70.0, loader=1) for worker in range(WORKERS)]
    made = [fetch(place % WORKERS, 70.0 + 0.1 * place, 70.3 + 0.1 * place, loader=1) for place in range(1_000)]
    first = steps(1, period=70.2, wait=70.0, first=1, epoch_position=0)
    later = steps(200, start=70.2, period=0.2, first=2)
    samples = hooked(waiting(70), began, made, first, later, processes(110, start=70))
    found = said(samples, 110)
    assert found[70].severity.value == "warning"
    assert found[75].state == "clearing"
    assert 110 not in found


def test_waits_behind_a_busy_gpu_are_none() -> None:
    # A batch takes the training thread 2.9 s, and the GPU computes for 3.1 s: it idles for 60 ms of each wait.
    alone = [run_facts(device="cuda", loaders=(loader(num_workers=0),))]
    made = [each for each in waiting(70) if not isinstance(each, StackTally)]
    seconds = [tally(second + 1.0, {"wait": 25}) for second in range(70)]
    waits = steps(21, period=3.2, wait=2.9, epoch_position=30)
    gaps = [GpuGap(step.trainer, step.number, 0.06) for step in waits]
    assert said([*alone, *made, *seconds, *waits], 70) != {}
    assert said([*alone, *made, *seconds, *(each for pair in zip(waits, gaps, strict=True) for each in pair)], 70) == {}


def test_the_open_wait_begins_after_the_last_batch_and_ends_with_the_next() -> None:
    history = timeline(hooked(waiting(40), steps(1, period=30.0, wait=30.0), waiting(60, start=40)))
    assert rank_at(history, 60).open_wait_seconds == 30.0
    history.extend(tallies(1, {"wait": 20, "forward": 5}, start=60.0))
    assert rank_at(history, 61).open_wait_seconds is None


def test_an_open_wait_is_not_known_once_samples_stop() -> None:
    history = timeline(hooked(waiting(30)))
    assert rank_at(history, 35).open_wait_seconds == 35.0
    assert rank_at(history, 45).open_wait_seconds is None


def test_eight_steps_behind_the_first_round_are_judged_before_eight_are_settled() -> None:
    periods = [3.0, 0.5, 0.5, 0.5] + [0.9, 1.1, 1.0, 0.8] * 3
    waits = [2.5, 0.0, 0.0, 0.0] + [0.4, 0.6, 0.5, 0.3] * 3
    made, clock = list[Any](), 0.0
    for place, (period, wait) in enumerate(zip(periods, waits, strict=True)):
        made += steps(1, start=clock, period=period, wait=wait, first=place + 1, epoch_position=place)
        made.append(GpuGap(made[-1].trainer, place + 1, wait))
        clock += period
    history = timeline(hooked(made))
    assert sum(rank_at(history, clock).columns.settled) < 8
    case = run_case(scene(history, clock))
    found = starvation_of(case)
    assert found is not None and found.level.name == "E3"
    assert found.share == pytest.approx(5.4 / 11.4)
    interval = lost_interval(case.run.critical, found)
    assert interval is not None and interval.low > 0.2
    assert check("data-starvation", case) is not None
