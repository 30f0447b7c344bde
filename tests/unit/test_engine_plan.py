"""How findings stand to each other: order, what comes first, what weakens, and what each brings in the plan."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine_hysteresis import a_rule

from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Finding, Gain, Level, PlanStep, Severity
from gpuwatch.diagnosis.plan import TimeShares, planned
from gpuwatch.diagnosis.rule import GpuCase, Rule, RunCase
from gpuwatch.timeline.windows import Scene, Share
from tests.unit.scene_builder import findings, gpu, later, loader, phase, rank, run, scene


def sayer(
    id: str,
    severity: Severity = Severity.WARNING,
    level: Level = Level.E3,
    gain: float | None = None,
    on: set[str] | None = None,
    needs: Level = Level.E0,
    **fields: object,
) -> Rule:
    """A rule that always fires, or only on the runs and GPUs named."""

    def check(case: RunCase | GpuCase) -> Draft | None:
        key = case.gpu.facts.uuid if isinstance(case, GpuCase) else case.run.id
        if on is not None and key not in on:
            return None
        return Draft(id, severity, level, (), gain=Gain(gain, gain) if gain else None)

    return a_rule(check, id=id, level=needs, **fields)


def judged(rules: list[Rule], moment: Scene) -> tuple[Finding, ...]:
    engine = Engine(rules)
    engine.evaluate(moment)
    return engine.evaluate(later(moment, 5))


def only(findings: tuple[Finding, ...], rule: str, gpu: str | None = None) -> Finding:
    (found,) = [f for f in findings if f.rule == rule and (gpu is None or f.gpu == gpu)]
    return found


ONE_RUN = scene(run(rank()))


def test_the_worst_comes_first_and_the_larger_gain_before_the_smaller() -> None:
    rules = [
        sayer("hint", Severity.HINT),
        sayer("small", gain=1.1),
        sayer("large", gain=1.8),
        sayer("broken", Severity.CRITICAL),
        sayer("info", Severity.INFO),
    ]
    assert [f.rule for f in judged(rules, ONE_RUN)] == ["broken", "large", "small", "info", "hint"]


def test_a_gain_that_is_not_known_comes_before_one_below_five_percent() -> None:
    rules = [sayer("tiny", gain=1.04), sayer("unknown"), sayer("small", gain=1.06)]
    assert [f.rule for f in judged(rules, ONE_RUN)] == ["small", "unknown", "tiny"]


def test_what_another_finding_explains_stands_behind_it_and_last() -> None:
    rules = [
        sayer("data-starvation", Severity.INFO),
        sayer("low-util", Severity.CRITICAL, subject="gpu", behind=("data-starvation",)),
    ]
    findings = judged(rules, ONE_RUN)
    assert [f.rule for f in findings] == ["data-starvation", "low-util"]
    assert findings[1].behind == "data-starvation"


def test_the_finding_of_another_run_explains_nothing() -> None:
    moment = scene(run(rank(pid=1, gpus=[0])), run(rank(pid=2, gpus=[1])))
    rules = [
        sayer("data-starvation", on={"1.1"}),
        sayer("low-util", subject="gpu", behind=("data-starvation",)),
    ]
    findings = judged(rules, moment)
    assert only(findings, "low-util", "GPU-0").behind == "data-starvation"
    assert only(findings, "low-util", "GPU-1").behind is None


def test_a_hang_stands_before_everything_but_hardware() -> None:
    rules = [
        sayer("collective-hang", family="hang"),
        sayer("amp-off", family="precision"),
        sayer("thermal-throttle", subject="gpu", family="power"),
    ]
    findings = judged(rules, ONE_RUN)
    assert only(findings, "amp-off").behind == "collective-hang"
    assert only(findings, "thermal-throttle").behind is None


def test_a_shared_gpu_costs_one_level_and_the_strongest_word() -> None:
    shared = sayer("shared-gpu", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    findings = judged([shared, sayer("data-starvation", Severity.CRITICAL, needs=Level.E3)], ONE_RUN)
    weakened = only(findings, "data-starvation")
    assert (weakened.level, weakened.severity) == (Level.E2, Severity.WARNING)
    assert any("another process" in note for note in weakened.confidence_notes)
    assert only(findings, "shared-gpu").level is Level.E0


def test_a_half_blind_gpu_weakens_only_what_rests_on_its_counters() -> None:
    limited = sayer("metrics-limited", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    by_events, by_counters = sayer("by-events", level=Level.E3), sayer("by-counters", level=Level.E2)
    findings = judged([limited, by_events, by_counters], ONE_RUN)
    assert only(findings, "by-events").level is Level.E3
    assert only(findings, "by-counters").level is Level.E1


def test_a_run_without_a_gpu_is_not_weakened_by_one() -> None:
    shared = sayer("shared-gpu", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    findings = judged([shared, sayer("data-starvation")], scene(run(rank(device="cpu")), gpus=[gpu()]))
    assert only(findings, "data-starvation").confidence_notes == ()


def test_evidence_below_what_a_rule_needs_is_called_likely() -> None:
    (finding,) = judged([sayer("x", Severity.CRITICAL, Level.E1, needs=Level.E3)], ONE_RUN)
    assert finding.severity is Severity.WARNING
    assert any(note.startswith("likely") for note in finding.confidence_notes)


def test_a_rule_knows_what_holds_for_its_subject_and_for_the_gpus_and_runs_around_it() -> None:
    seen: dict[str, frozenset[str]] = {}

    def look(case: RunCase | GpuCase) -> None:
        seen[case.gpu.facts.uuid if isinstance(case, GpuCase) else case.run.id] = case.holding

    moment = scene(run(rank(pid=1, gpus=[0])), run(rank(pid=2, gpus=[1])))
    rules = [
        sayer("starved", on={"1.1"}),
        sayer("hot", subject="gpu", on={"GPU-1"}),
        a_rule(look, id="a-run-rule", after=("starved", "hot")),
        a_rule(look, id="a-gpu-rule", after=("starved", "hot"), subject="gpu"),
    ]
    judged(rules, moment)
    assert seen == {
        "1.1": frozenset({"starved"}),
        "2.1": frozenset({"hot"}),
        "GPU-0": frozenset({"starved"}),
        "GPU-1": frozenset({"hot"}),
    }


def promised(rule: str, low: float, high: float | None = None, *, run: str = "a", behind: str | None = None) -> Finding:
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
    found = steps(promised("gc-stall", 1 / 0.9), promised("workers-zero", 2.0), promised("checkpoint-stall", 1.25))
    assert numbers(found) == {"workers-zero": 1, "checkpoint-stall": 2, "gc-stall": 3}
    assert then(found["workers-zero"]) == (2.0, 2.0)
    assert then(found["checkpoint-stall"]) == pytest.approx((1.667, 1.667), abs=0.001)
    assert then(found["gc-stall"]) == pytest.approx((1.5, 1.5), abs=0.001)
    assert together(found["gc-stall"]) == pytest.approx((5.0, 5.0), abs=0.01)


def test_the_factors_multiply_at_both_ends_of_the_ranges() -> None:
    found = steps(
        promised("workers-zero", 1.6, 2.0), promised("eval-stall", 1.1, 1.25), promised("gc-stall", 1.05, 1.1)
    )
    low = high = 1.0
    for step in sorted((step for step in found.values() if step), key=lambda step: step.number):
        low, high = low * step.then.low, high * step.then.high
        assert (step.together.low, step.together.high) == pytest.approx((low, high), rel=0.002)
    shares = (1 - 1 / 1.6) + (1 - 1 / 1.1) + (1 - 1 / 1.05)
    assert low == pytest.approx(1 / (1 - shares), rel=0.002)


def test_the_same_time_is_won_once() -> None:
    # Both win waits: half of the time at most. What the first one takes the second one cannot.
    found = steps(promised("workers-too-few", 1.6, 2.0), promised("slow-samples", 1.2, 1.5))
    assert then(found["workers-too-few"]) == (1.6, 2.0)
    # At least nothing; at most 0.5 - 0.375 = 0.125 of the time, where the first one brought 1.6x: 0.625 / 0.5.
    assert then(found["slow-samples"]) == pytest.approx((1.0, 1.25), abs=0.001)
    assert together(found["slow-samples"]) == (1.6, 2.0)


def test_a_parent_and_its_cause_are_one_step() -> None:
    found = steps(promised("data-starvation", 1.6, 2.0), promised("workers-zero", 1.6, 2.0), promised("gc-stall", 1.1))
    assert found["data-starvation"] is None
    assert numbers(found) == {"workers-zero": 1, "gc-stall": 2}
    alone = steps(promised("data-starvation", 1.6, 2.0))
    assert alone["data-starvation"] is not None and alone["data-starvation"].of == 1


def test_shares_of_training_time_are_put_over_all_time() -> None:
    # An evaluation takes 0.4; of the training 0.5 are waits: 0.3 of all time. Evaluating more rarely wins another 0.2.
    found = steps(promised("workers-zero", 2.0), promised("eval-stall", 1.25), phases=0.4)
    assert then(found["workers-zero"]) == pytest.approx((1 / 0.7, 1 / 0.7), abs=0.001)
    assert then(found["eval-stall"]) == pytest.approx((0.7 / 0.5, 0.7 / 0.5), abs=0.001)


def test_a_gain_of_training_time_is_said_of_the_whole_run() -> None:
    # Training takes 0.7 of the time, 0.6 between the starts of epochs: half of it, a fifth of it, and a tenth of all.
    shares = {"a": TimeShares(training=0.7, settled=0.6)}
    found = {
        finding.rule: finding.gain
        for finding in planned(
            (promised("workers-too-few", 1.25, 2.0), promised("sync-per-step", 1.25), promised("gc-stall", 1 / 0.9)),
            shares,
        )
    }
    assert found["workers-too-few"] == Gain(round(1 / 0.88, 3), round(1 / 0.7, 3))
    assert found["sync-per-step"] == Gain(round(1 / 0.86, 3), round(1 / 0.86, 3))
    assert found["gc-stall"] == Gain(round(1 / 0.9, 3), round(1 / 0.9, 3))


def test_nothing_is_planned_before_what_it_comes_behind() -> None:
    found = steps(promised("sync-per-step", 3.0, behind="workers-zero"), promised("workers-zero", 1.1))
    assert numbers(found) == {"workers-zero": 1, "sync-per-step": 2}


def test_hints_symptoms_and_other_runs_have_no_part_in_it() -> None:
    findings = (
        promised("amp-off", 0.0),
        promised("step-time-regression", 1.2),
        promised("gc-stall", 1.25, run="b"),
        promised("gc-stall", 1.5),
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
    both = (promised("workers-zero", 1.9, 2.0), promised("sync-per-step", 1.4, 1.6))
    found = {finding.rule: finding.plan for finding in planned(both, idling(0.5))}
    assert together(found["sync-per-step"]) == pytest.approx((1.9, 2.0), abs=0.001)
    assert then(found["sync-per-step"]) == pytest.approx((1.0, 1.053), abs=0.001)


@given(
    st.lists(st.tuples(st.sampled_from(IDLE_RULES), FACTORS, FACTORS), min_size=1, max_size=6, unique_by=itemgetter(0)),
    st.floats(0.0, 0.95),
)
def test_all_fixes_together_win_no_more_than_the_gpu_idles(claims: list[tuple[str, float, float]], idle: float) -> None:
    findings = [promised(rule, min(one, other), max(one, other)) for rule, one, other in claims]
    for finding in planned([*findings, promised("gc-stall", 1.25)], idling(idle)):
        assert finding.plan is not None and finding.gain is not None
        assert 1.0 - 1.0 / finding.plan.together.high <= min(idle + 0.2, HIGHEST_SHARE) + 0.001
        assert finding.rule == "gc-stall" or 1.0 - 1.0 / finding.gain.high <= idle + 0.001


def test_a_rank_whose_gpu_spins_while_others_load_may_win_more_than_it_idles() -> None:
    shares = {"a": replace(idling(0.5)["a"], alone=False)}
    (finding,) = planned([promised("workers-zero", 2.5, 4.0)], shares)
    assert finding.gain == Gain(2.5, 4.0)


def test_claims_beyond_all_time_end_at_the_highest_promise() -> None:
    found = steps(promised("workers-zero", 10.0), promised("gc-stall", 10.0), promised("eval-stall", 10.0))
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
