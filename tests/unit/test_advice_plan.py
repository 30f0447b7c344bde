"""The plan: what each fix still brings after those before it, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene_builder import findings, gpu, loader, phase, rank, run, scene

from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE
from gpuwatch.diagnosis.finding import Finding, Gain, Level, PlanStep, Severity
from gpuwatch.diagnosis.plan import TimeShares, planned
from gpuwatch.timeline.windows import Share


def said(rule: str, low: float, high: float | None = None, *, run: str = "a", behind: str | None = None) -> Finding:
    gain = Gain(low, low if high is None else high) if low else None
    return Finding(rule, Severity.WARNING, Level.E3, rule, (), "firing", 0, run=run, gain=gain, behind=behind)


def steps(*findings: Finding, phases: float = 0.0) -> dict[str, PlanStep | None]:
    return {finding.rule: finding.plan for finding in planned(findings, {"a": TimeShares(1.0 - phases, 1.0 - phases)})}


def numbers(found: dict[str, PlanStep | None]) -> dict[str, int]:
    return {rule: step.number for rule, step in found.items() if step is not None}


def then(step: PlanStep | None) -> tuple[float, float]:
    assert step is not None
    return step.then.low, step.then.high


def together(step: PlanStep | None) -> tuple[float, float]:
    assert step is not None
    return step.together.low, step.together.high


def test_a_later_fix_brings_more_than_alone_because_its_share_of_what_is_left_is_larger() -> None:
    # Half of the time, a fifth and a tenth: 1 / 0.5, then 0.5 / 0.3, then 0.3 / 0.2; all of them 1 / 0.2.
    found = steps(said("gc-stall", 1 / 0.9), said("workers-zero", 2.0), said("checkpoint-stall", 1.25))
    assert numbers(found) == {"workers-zero": 1, "checkpoint-stall": 2, "gc-stall": 3}
    assert then(found["workers-zero"]) == (2.0, 2.0)
    assert then(found["checkpoint-stall"]) == pytest.approx((1.667, 1.667), abs=0.001)
    assert then(found["gc-stall"]) == pytest.approx((1.5, 1.5), abs=0.001)
    assert together(found["gc-stall"]) == pytest.approx((5.0, 5.0), abs=0.01)


def test_the_factors_multiply_at_both_ends_of_the_ranges() -> None:
    found = steps(said("workers-zero", 1.6, 2.0), said("eval-stall", 1.1, 1.25), said("gc-stall", 1.05, 1.1))
    low = high = 1.0
    for step in sorted((step for step in found.values() if step), key=lambda step: step.number):
        low, high = low * step.then.low, high * step.then.high
        assert (step.together.low, step.together.high) == pytest.approx((low, high), rel=0.002)
    shares = (1 - 1 / 1.6) + (1 - 1 / 1.1) + (1 - 1 / 1.05)
    assert low == pytest.approx(1 / (1 - shares), rel=0.002)


def test_the_same_time_is_won_once() -> None:
    # Both win waits: half of the time at most. What the first one takes the second one cannot.
    found = steps(said("workers-too-few", 1.6, 2.0), said("slow-samples", 1.2, 1.5))
    assert then(found["workers-too-few"]) == (1.6, 2.0)
    # At least nothing; at most 0.5 - 0.375 = 0.125 of the time, where the first one brought 1.6x: 0.625 / 0.5.
    assert then(found["slow-samples"]) == pytest.approx((1.0, 1.25), abs=0.001)
    assert together(found["slow-samples"]) == (1.6, 2.0)


def test_a_parent_and_its_cause_are_one_step() -> None:
    found = steps(said("data-starvation", 1.6, 2.0), said("workers-zero", 1.6, 2.0), said("gc-stall", 1.1))
    assert found["data-starvation"] is None
    assert numbers(found) == {"workers-zero": 1, "gc-stall": 2}
    alone = steps(said("data-starvation", 1.6, 2.0))
    assert alone["data-starvation"] is not None and alone["data-starvation"].of == 1


def test_shares_of_training_time_are_put_over_all_time() -> None:
    # An evaluation takes 0.4; of the training 0.5 are waits: 0.3 of all time. Evaluating more rarely wins another 0.2.
    found = steps(said("workers-zero", 2.0), said("eval-stall", 1.25), phases=0.4)
    assert then(found["workers-zero"]) == pytest.approx((1 / 0.7, 1 / 0.7), abs=0.001)
    assert then(found["eval-stall"]) == pytest.approx((0.7 / 0.5, 0.7 / 0.5), abs=0.001)


def test_a_gain_of_training_time_is_said_of_the_whole_run() -> None:
    # Training takes 0.7 of the time, 0.6 between the starts of epochs: half of it, a fifth of it, and a tenth of all.
    shares = {"a": TimeShares(training=0.7, settled=0.6)}
    found = {
        finding.rule: finding.gain
        for finding in planned(
            (said("workers-too-few", 1.25, 2.0), said("sync-per-step", 1.25), said("gc-stall", 1 / 0.9)), shares
        )
    }
    assert found["workers-too-few"] == Gain(round(1 / 0.88, 3), round(1 / 0.7, 3))
    assert found["sync-per-step"] == Gain(round(1 / 0.86, 3), round(1 / 0.86, 3))
    assert found["gc-stall"] == Gain(round(1 / 0.9, 3), round(1 / 0.9, 3))


def test_nothing_is_planned_before_what_it_comes_behind() -> None:
    found = steps(said("sync-per-step", 3.0, behind="workers-zero"), said("workers-zero", 1.1))
    assert numbers(found) == {"workers-zero": 1, "sync-per-step": 2}


def test_hints_symptoms_and_other_runs_have_no_part_in_it() -> None:
    findings = (
        said("amp-off", 0.0),
        said("step-time-regression", 1.2),
        said("gc-stall", 1.25, run="b"),
        said("gc-stall", 1.5),
    )
    plans = [finding.plan for finding in planned(findings, {})]
    assert plans[0] is None and plans[1] is None
    assert [plan.of for plan in plans[2:] if plan] == [1, 1]


IDLE_RULES = ("workers-zero", "sync-per-step", "log-stall", "noisy-neighbour", "epoch-start-stall", "pageable-transfer")
FACTORS = st.floats(1.0, 8.0)


def idling(share: float, reach: float = 0.0) -> dict[str, TimeShares]:
    return {"a": TimeShares(idle=Share(share, max(0.0, share - reach), min(1.0, share + reach)))}


def test_workers_and_copies_that_do_not_block_win_the_same_idle_time_once() -> None:
    # The GPU idles half of the time, all of it while the thread loads: workers win it, and so does asking more rarely.
    both = (said("workers-zero", 1.9, 2.0), said("sync-per-step", 1.4, 1.6))
    found = {finding.rule: finding.plan for finding in planned(both, idling(0.5))}
    assert together(found["sync-per-step"]) == pytest.approx((1.9, 2.0), abs=0.001)
    assert then(found["sync-per-step"]) == pytest.approx((1.0, 1.053), abs=0.001)


@given(
    st.lists(st.tuples(st.sampled_from(IDLE_RULES), FACTORS, FACTORS), min_size=1, max_size=6, unique_by=itemgetter(0)),
    st.floats(0.0, 0.95),
)
def test_all_fixes_together_win_no_more_than_the_gpu_idles(claims: list[tuple[str, float, float]], idle: float) -> None:
    findings = [said(rule, min(one, other), max(one, other)) for rule, one, other in claims]
    for finding in planned([*findings, said("gc-stall", 1.25)], idling(idle)):
        assert finding.plan is not None and finding.gain is not None
        assert 1.0 - 1.0 / finding.plan.together.high <= min(idle + 0.2, HIGHEST_SHARE) + 0.001
        assert finding.rule == "gc-stall" or 1.0 - 1.0 / finding.gain.high <= idle + 0.001


def test_a_rank_whose_gpu_spins_while_others_load_may_win_more_than_it_idles() -> None:
    shares = {"a": replace(idling(0.5)["a"], alone=False)}
    (finding,) = planned([said("workers-zero", 2.5, 4.0)], shares)
    assert finding.gain == Gain(2.5, 4.0)


def test_claims_beyond_all_time_end_at_the_highest_promise() -> None:
    found = steps(said("workers-zero", 10.0), said("gc-stall", 10.0), said("eval-stall", 10.0))
    assert max(together(step)[1] for step in found.values()) == 50.0


def test_the_engine_says_where_a_fix_stands_in_the_plan_of_its_run() -> None:
    saving = phase("checkpoint", share=0.2, seconds=12.0, longest_seconds=4.0, every_seconds=20.0)
    trained = rank(step=0.2, wait=0.1, gap=0.1, loader=loader(num_workers=0), wait_cpu_share=0.0)
    found = {
        finding.rule: finding.plan
        for finding in findings(scene(run(replace(trained, phases={"checkpoint": saving})), gpus=[gpu(utilization=50)]))
    }
    waits, saves = found["workers-zero"], found["checkpoint-stall"]
    assert waits is not None and saves is not None and found["data-starvation"] is None
    assert (waits.number, saves.number, saves.of) == (1, 2, 2)
    # 0.2 of all time are saves; of the other 0.8 half are waits: 0.4. Both together leave 0.4 of the time.
    assert saves.together.high == pytest.approx(1 / 0.4, rel=0.05)
    assert saves.then.high == pytest.approx(0.6 / 0.4, rel=0.05)
