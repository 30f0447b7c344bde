"""The dashboard and the report say the same of the same snapshot: one verdict, in two views' words."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.panels.verdict import verdicts
from gpuwatch.dashboard.view import View
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import Origin, RunState, Snapshot
from gpuwatch.monitor.verdict import state_sentence
from gpuwatch.report.model import VerdictLine
from gpuwatch.report.observation import Observation
from gpuwatch.report.verdict import verdict
from gpuwatch.sources.simulator import SCENARIOS, SimulatorSource
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import RunWindow
from tests.dashboard import situations
from tests.unit import scene_builder as build
from tests.unit import stack_builder as seen

CLAIMS = {
    "too little was seen": "unjudged",
    "not judged yet": "unjudged",
    "not measured": "unmeasured",
    "no warning from hardware": "unseen",
    "no warning": "remark",
    "nothing to change": "fine",
}
"""What a sentence without a fault claims, the most special words first."""


def claim(severity: str | None, sentence: str) -> str:
    if severity in ("critical", "warning"):
        return "fault"
    return next(kind for words, kind in CLAIMS.items() if words in sentence)


def said_on_screen(snapshot: Snapshot) -> dict[str, tuple[str, str | None]]:
    """By the pid that a sentence names: what is claimed of the run, and its rule. Other faults by their rule."""
    found = {}
    for each in verdicts(View(snapshot)):
        run = re.match(r"\S+ \((\d+)\)", each.sentence)
        rule = each.finding.rule if each.finding is not None else None
        if run is None:
            if each.severity is not None:
                found[f"rule {rule}"] = ("fault", rule)
        elif each.word in {state.upper() for state in get_args(RunState)}:
            found[run[1]] = ("state", None)
        else:
            found[run[1]] = (claim(each.severity.value if each.severity else None, each.sentence), rule)
    return found


def reported(snapshot: Snapshot) -> list[VerdictLine]:
    assert snapshot.scene is not None
    return verdict(Observation(snapshot, snapshot.scene))


def said_in_report(snapshot: Snapshot) -> dict[str, tuple[str, str | None]]:
    found = {}
    for line in reported(snapshot):
        run = re.match(r"\S+ \((\d+)\)", line.sentence)
        if run is not None:
            found[run[1]] = (claim(line.severity, line.sentence), line.rule)
            assert line.judged is (found[run[1]][0] in ("fault", "remark", "fine"))
        elif line.rule is not None:
            found[f"rule {line.rule}"] = ("fault", line.rule)
    return found


def check(snapshot: Snapshot) -> None:
    """Both say the same of each run; where the screen says what a run does instead, the report says that too."""
    screen, report = said_on_screen(snapshot), said_in_report(snapshot)
    assert screen.keys() == report.keys()
    for subject, said in screen.items():
        if said[0] != "state":
            assert said == report[subject], subject
            continue
        run = next(each for each in snapshot.runs if str(each.pid) == subject)
        assert report[subject][0] != "fault"
        if run.state in ("silent", "not training", "stopped"):
            sentences = [line.sentence for line in reported(snapshot) if f"({subject})" in line.sentence]
            assert any(str(state_sentence(run, snapshot)) in sentence for sentence in sentences)


@st.composite
def windows(draw: st.DrawFn, pid: int) -> RunWindow:
    wait = draw(st.sampled_from([0.0, 0.01, None]))
    if draw(st.booleans()):
        phases = draw(st.sampled_from([{"forward": 500}, {"forward": 700, "wait": 9}, seen.PHASES]))
        looks = seen.stacks(phases, seconds=draw(st.sampled_from([5.0, 20.0, 58.0])))
        return build.run(seen.sampled_rank(looks, pid=pid, wait_share=None if wait is None else wait * 10))
    steps = draw(st.sampled_from([0, 12, 31, 300]))
    rung = draw(st.sampled_from(["exact", "proc", "hardware"]))
    rank = build.rank(pid=pid, wait=wait or 0.0, steps=max(1, steps), facts={"rung": rung})
    if wait is None:
        rank = replace(rank, wait_share=None, gap_share=None)
    return build.run(replace(rank, steps=steps, steps_total=steps, warm=draw(st.booleans())))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    found = [draw(windows(pid)) for pid in range(4711, 4711 + draw(st.integers(0, 3)))]
    gpus = tuple(situations.gpu(index) for index in range(draw(st.integers(1, 3))))
    found = [replace(each, gpu_uuids=(gpus[number % len(gpus)].facts.uuid,)) for number, each in enumerate(found)]
    runs = tuple(
        replace(
            situations.run(state=draw(st.sampled_from(get_args(RunState)))),
            id=each.id,
            pid=each.ranks[0].facts.pid,
            rung=each.critical.facts.rung,
            wait_share=each.critical.wait_share,
            gap_share=each.critical.gap_share,
            gpu_indices=(number % len(gpus),),
        )
        for number, each in enumerate(found)
    )
    subjects = [(each.id, None) for each in found] + [(None, gpu.facts.uuid) for gpu in gpus] + [(None, None)]
    scene = build.scene(*found, gpus=[], at=draw(st.sampled_from([3.0, 62.0, 300.0])))
    findings = tuple(
        _finding(draw, number, *draw(st.sampled_from(subjects))) for number in range(draw(st.integers(0, 4)))
    )
    in_order = tuple(sorted(findings, key=lambda each: (each.behind is not None, each.severity.order)))
    return situations.snapshot(
        gpus=gpus,
        runs=runs,
        findings=in_order,
        scene=scene,
        time_ns=scene.now_ns,
        started_ns=scene.now_ns - draw(st.sampled_from([1, 9, 300])) * build.SECOND,
    )


def _finding(draw: st.DrawFn, number: int, run: str | None, gpu: str | None) -> Finding:
    return replace(
        situations.starvation(rule=f"rule-{number}", run=run, summary="The GPU idles"),
        gpu=gpu,
        severity=draw(st.sampled_from(Severity)),
        behind=draw(st.sampled_from([None, None, "data-starvation"])),
    )


@given(snapshots())
def test_dashboard_and_report_say_the_same_of_any_snapshot(snapshot: Snapshot) -> None:
    check(snapshot)


@cache
def simulated(scenario: str) -> list[Snapshot]:
    source, engine = SimulatorSource(scenario, start_ns=build.START_NS), Engine()
    timeline = Timeline(started_ns=build.START_NS)
    found = []
    for second in range(1, 91):
        now_ns = build.START_NS + second * build.SECOND
        timeline.extend(list(source.collect(now_ns)))
        if second in (2, 3) or second % 5 == 0:
            scene = timeline.scene(now_ns, 60.0)
            evaluation = Evaluation(scene, tuple(engine.evaluate(scene)))
            origin = Origin("simulated", f"SIMULATED {scenario}")
            found.append(build_snapshot(timeline, now_ns=now_ns, wall_time=0.0, origin=origin, evaluation=evaluation))
    return found


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_dashboard_and_report_say_the_same_of_a_simulated_machine(scenario: str) -> None:
    for snapshot in simulated(scenario):
        check(snapshot)


def test_a_hint_that_came_early_clears_no_run() -> None:
    window = build.run(build.rank(steps=12, steps_total=12))
    hint = replace(situations.hint(behind=None), run=window.id)
    snapshot = situations.snapshot(
        runs=(replace(situations.run(), id=window.id),), findings=(hint,), scene=build.scene(window)
    )
    (said,) = verdicts(View(snapshot))
    assert said.word == "WATCHING" and "not judged yet" in said.sentence and said.finding is hint
    (line,) = reported(snapshot)
    assert not line.judged and "too little was seen to judge" in line.sentence and hint.summary in line.sentence


def test_a_stopped_run_is_not_reported_as_if_it_trained() -> None:
    window = build.run()
    stopped = replace(situations.run(state="stopped"), id=window.id)
    snapshot = situations.snapshot(runs=(stopped,), findings=(), scene=build.scene(window))
    (line,) = reported(snapshot)
    assert "at the end: stopped by a signal" in line.sentence
