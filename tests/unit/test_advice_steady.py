"""A number of workers that was advised stands while the new one is no different within what it is known to."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from scene_builder import gpu, host, later, loader, machine, rank, run, run_case, scene, workers

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.workers import advise
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, Finding
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import Scene

COMPUTE = 0.1


def fed_by(count: int, needed: float) -> Scene:
    """A run for which this many workers make batches with a fifth of margin, before that number is rounded."""
    making = needed * COMPUTE / 1.2
    wait = making / count - COMPUTE if count else making
    made = workers(count, cpu_cores=0.5, batch_seconds=making, batch_cpu_seconds=0.5 * making) if count else None
    trained = rank(
        step=COMPUTE + wait,
        wait=wait,
        gap=wait,
        loader=loader(num_workers=count, batch_bytes=1_000_000),
        workers=made,
        wait_cpu_share=None if count else 0.5,
    )
    busy = gpu(utilization=100.0 * COMPUTE / (COMPUTE + wait))
    return scene(run(trained), gpus=[busy], host=host(cpu_percent=10), machine=machine(64))


def judged(moments: Iterable[Scene]) -> list[tuple[Finding, ...]]:
    engine = Engine()
    said = [engine.evaluate(later(moment, 5.0 * place)) for place, moment in enumerate(moments)]
    return said[1:]  # a cause is said at its second evaluation


def numbers(said: tuple[Finding, ...], rule: str) -> set[object]:
    """Whatever of a finding names the number: its value, its patch, its code, its words, and its gain's limit."""
    (finding,) = [each for each in said if each.rule == rule]
    fix = finding.fix
    assert fix is not None and isinstance(fix.edit, CallEdit) and fix.code is not None
    named: set[object] = {fix.value, int(fix.edit.keywords["num_workers"])}
    assert f"num_workers={fix.value}" in fix.code
    assert f" {fix.value} " in fix.text
    return named


@pytest.mark.parametrize(("count", "rule"), [(0, "workers-zero"), (4, "workers-too-few")])
@pytest.mark.parametrize(("first", "other", "stays"), [(11.98, 12.02, 12), (12.02, 11.98, 13), (12.3, 11.8, 13)])
def test_the_number_does_not_turn_on_the_last_digit(
    count: int, rule: str, first: float, other: float, stays: int
) -> None:
    said = judged(fed_by(count, first if place % 2 == 0 else other) for place in range(12))
    assert len(said) == 11
    for each in said:
        assert numbers(each, rule) == {stays}
        assert numbers(each, "data-starvation") == {stays}, "which repeats the fix of its cause"


def test_a_run_that_changes_is_given_the_new_number() -> None:
    said = judged(fed_by(4, needed) for needed in (12.02, 12.02, 14.0, 14.0, 9.0, 9.0))
    assert [numbers(each, "workers-too-few") for each in said] == [{13}, {14}, {14}, {9}, {9}]


def test_a_slow_drift_is_followed_once_it_is_more_than_the_error() -> None:
    said = judged(fed_by(4, 12.02 + 0.05 * place) for place in range(40))
    named = [number for each in said for number in numbers(each, "workers-too-few")]
    assert named[0] == 13 and named[-1] == 14, "13.97 at the end"
    assert sum(a != b for a, b in pairwise(named)) == 1


def test_the_gain_is_that_of_the_number_that_is_named() -> None:
    said = judged(fed_by(4, needed) for needed in (12.02, 12.02, 11.9))
    (finding,) = [each for each in said[-1] if each.rule == "workers-too-few"]
    assert finding.fix is not None and finding.fix.value == 13
    assert finding.gain == cost_of(run_case(fed_by(4, 11.9))).gain(13)


def test_a_number_that_is_kept_says_the_margin_that_it_has() -> None:
    case = run_case(fed_by(4, 12.3))
    kept = advise(case, cost_of(case), earlier=12)
    assert kept.arithmetic == "12 workers keep up with 17 % of margin"
    assert advise(case, cost_of(case), earlier=13).arithmetic == "13 workers keep up with a fifth of margin"


def test_what_differs_by_more_than_the_error_is_not_kept() -> None:
    case = run_case(fed_by(4, 12.3))
    assert {advise(case, cost_of(case), earlier=earlier).count for earlier in (None, 5, 11, 14, 64)} == {13}


def loading(*seconds: float) -> RunCase:
    """A run without workers whose batches take so long alternately, 25 at a time."""
    wait = [seconds[place // 25 % len(seconds)] for place in range(300)]
    trained = rank(step=[COMPUTE + each for each in wait], wait=wait, gap=wait, loader=loader(num_workers=0))
    return run_case(scene(run(trained), gpus=[gpu(utilization=33)], machine=machine(64)))


def test_stretches_that_differ_leave_more_open() -> None:
    even, wavering = loading(0.19), loading(0.14, 0.24)
    assert [advise(case, cost_of(case)).count for case in (even, wavering)] == [3, 3]
    assert [advise(case, cost_of(case), earlier=2).count for case in (even, wavering)] == [3, 2]
    assert advise(wavering, cost_of(wavering), earlier=1).count == 3, "which would not keep up"


def test_a_limit_of_the_machine_stands_too_and_its_reason_names_the_number() -> None:
    each = 1_000_000 * 2
    for free in (12.4 * each, 12.6 * each, 13.2 * each):
        moment = fed_by(4, 40.0)
        small = host(cpu_percent=10, latest={"shm_total_bytes": int(free / 0.8), "shm_used_bytes": 0})
        case = run_case(scene(*moment.runs, gpus=moment.gpus, host=small, machine=machine(64)))
        kept = advise(case, cost_of(case), earlier=13)
        assert kept.count == 13
        assert kept.cap is not None and kept.cap.name == "shm" and "holds the batches of 13" in kept.cap.reason


def cost_of(case: RunCase) -> StepCost:
    starvation = starvation_of(case)
    assert starvation is not None
    cost = step_cost(case, starvation)
    assert cost is not None
    return cost
