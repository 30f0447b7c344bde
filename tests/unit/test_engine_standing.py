"""How findings stand to each other: order, what comes first, what weakens, what a rule knows of the others."""

from __future__ import annotations

from scene_builder import gpu, later, rank, run, scene
from test_engine_hysteresis import a_rule

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Finding, Gain, Level, Severity
from gpuwatch.diagnosis.rule import GpuCase, Rule, RunCase
from gpuwatch.timeline.windows import Scene


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


def said(rules: list[Rule], moment: Scene) -> tuple[Finding, ...]:
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
    assert [f.rule for f in said(rules, ONE_RUN)] == ["broken", "large", "small", "info", "hint"]


def test_what_another_finding_explains_stands_behind_it_and_last() -> None:
    rules = [
        sayer("data-starvation", Severity.INFO),
        sayer("low-util", Severity.CRITICAL, subject="gpu", behind=("data-starvation",)),
    ]
    findings = said(rules, ONE_RUN)
    assert [f.rule for f in findings] == ["data-starvation", "low-util"]
    assert findings[1].behind == "data-starvation"


def test_the_finding_of_another_run_explains_nothing() -> None:
    moment = scene(run(rank(pid=1, gpus=[0])), run(rank(pid=2, gpus=[1])))
    rules = [
        sayer("data-starvation", on={"1.1"}),
        sayer("low-util", subject="gpu", behind=("data-starvation",)),
    ]
    findings = said(rules, moment)
    assert only(findings, "low-util", "GPU-0").behind == "data-starvation"
    assert only(findings, "low-util", "GPU-1").behind is None


def test_a_hang_stands_before_everything_but_hardware() -> None:
    rules = [
        sayer("collective-hang", family="hang"),
        sayer("amp-off", family="precision"),
        sayer("thermal-throttle", subject="gpu", family="power"),
    ]
    findings = said(rules, ONE_RUN)
    assert only(findings, "amp-off").behind == "collective-hang"
    assert only(findings, "thermal-throttle").behind is None


def test_a_shared_gpu_costs_one_level_and_the_strongest_word() -> None:
    shared = sayer("shared-gpu", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    findings = said([shared, sayer("data-starvation", Severity.CRITICAL, needs=Level.E3)], ONE_RUN)
    weakened = only(findings, "data-starvation")
    assert (weakened.level, weakened.severity) == (Level.E2, Severity.WARNING)
    assert any("another process" in note for note in weakened.confidence_notes)
    assert only(findings, "shared-gpu").level is Level.E0


def test_a_half_blind_gpu_weakens_only_what_rests_on_its_counters() -> None:
    limited = sayer("metrics-limited", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    by_events, by_counters = sayer("by-events", level=Level.E3), sayer("by-counters", level=Level.E2)
    findings = said([limited, by_events, by_counters], ONE_RUN)
    assert only(findings, "by-events").level is Level.E3
    assert only(findings, "by-counters").level is Level.E1


def test_a_run_without_a_gpu_is_not_weakened_by_one() -> None:
    shared = sayer("shared-gpu", Severity.INFO, Level.E0, subject="gpu", family="sharing")
    findings = said([shared, sayer("data-starvation")], scene(run(rank(device="cpu")), gpus=[gpu()]))
    assert only(findings, "data-starvation").confidence_notes == ()


def test_evidence_below_what_a_rule_needs_is_called_likely() -> None:
    (finding,) = said([sayer("x", Severity.CRITICAL, Level.E1, needs=Level.E3)], ONE_RUN)
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
    said(rules, moment)
    assert seen == {
        "1.1": frozenset({"starved"}),
        "2.1": frozenset({"hot"}),
        "GPU-0": frozenset({"starved"}),
        "GPU-1": frozenset({"hot"}),
    }
