from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.findings import findings_list
from gpuwatch.dashboard.panels.verdict import Verdict, verdicts
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.words import brings_words, change_words, fix_to_copy, plan_sentence, status_words
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, Finding, Fix, Gain, PlanStep, Severity
from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import STATE_WORDS, Origin, RunState, Snapshot
from gpuwatch.monitor.verdict import state_sentence
from gpuwatch.report.build import verdict
from gpuwatch.report.model import VerdictLine
from gpuwatch.report.observation import Observation
from gpuwatch.samples import NvmlState
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import RankWindow, RunWindow
from tests.dashboard import situations
from tests.dashboard.parts import starvation
from tests.unit import scene_builder as build
from tests.unit import stack_builder as seen


def test_the_verdict_names_what_is_wrong_what_to_change_and_what_it_brings() -> None:
    verdict = verdicts(View(situations.starved()))[0]
    assert verdict.word == "CRITICAL"
    assert verdict.sentence == "train.py (4711): the GPU idles 41% of the time waiting for data"
    assert (verdict.place, verdict.change) == ("train.py:88", "DataLoader: num_workers=4 → 10")
    assert verdict.gain == "1.5-1.7x faster"


def test_the_worst_run_comes_first() -> None:
    snapshot = situations.two_runs()
    runs = tuple(reversed(snapshot.runs))
    told = verdicts(View(replace(snapshot, runs=runs)))
    assert [verdict.word for verdict in told] == ["CRITICAL", "OK"]
    assert told[1].sentence.startswith("finetune.py (5000): nothing to change")


def test_what_lives_comes_before_what_has_ended() -> None:
    snapshot = situations.two_runs()
    runs = tuple(replace(run, state="ended") if run.pid == 4711 else run for run in snapshot.runs)
    late = situations.starvation(rule="low-util", severity=Severity.INFO, run="5000.1")
    view = View(replace(snapshot, runs=runs, findings=(*snapshot.findings, late)))
    assert ["(5000)" in verdict.sentence for verdict in verdicts(view)] == [True, False]
    assert view.findings[0].run == "5000.1"


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (
            "Training waits 45% of the time: train.py:29",
            "train.py (4711): training waits 45% of the time: train.py:29",
        ),
        ("train.py has made no step for 60 s", "train.py (4711) has made no step for 60 s"),
        ("train.py (4711): the GPU idles", "train.py (4711): the GPU idles"),
    ],
)
def test_a_run_is_named_though_a_line_of_its_script_is(summary: str, sentence: str) -> None:
    snapshot = situations.snapshot(findings=(situations.starvation(summary=summary),))
    assert verdicts(View(snapshot))[0].sentence == sentence


def test_a_healthy_run_says_why_that_can_be_believed() -> None:
    verdict = verdicts(View(situations.healthy()))[0]
    assert verdict.sentence == (
        "train.py (4711): nothing to change, the GPU waits for data 0.4% of the time (exact, 18,204 steps)"
    )


def test_a_hint_is_offered_but_called_a_hint() -> None:
    snapshot = replace(situations.healthy(), findings=(situations.hint(behind=None),))
    verdict = verdicts(View(snapshot))[0]
    assert (verdict.word, verdict.gain) == ("TRY", "typically 1.0-2.6x")
    assert verdict.sentence == "train.py (4711): run forward and loss under autocast in bfloat16"
    assert verdict.because.endswith("no warning, the GPU waits for data 0.4% of the time (exact, 18,204 steps)")


def test_what_is_worth_a_try_comes_after_warnings_and_before_what_is_fine() -> None:
    two = situations.two_runs()
    fine = replace(two.runs[1], id="5001.1", pid=5001, title="eval.py", gpu_indices=(2,))
    hint = situations.hint(behind=None, run="5000.1")
    told = verdicts(View(replace(two, runs=(fine, *reversed(two.runs)), findings=(hint, two.findings[0]))))
    assert [verdict.word for verdict in told] == ["CRITICAL", "TRY", "OK"]


def test_an_ended_run_is_a_line_below_the_living_and_goes_after_ten_minutes() -> None:
    view = View(situations.with_ended())
    told = verdicts(view)
    assert [verdict.word for verdict in told] == ["OK", "CRITICAL"]
    assert told[1].sentence.startswith("sweep.py (7001)") and not told[1].change
    assert [run.title for run in view.runs] == ["train.py", "sweep.py"], "old.py ended 55 min ago"


def test_the_last_run_stays_where_none_lives() -> None:
    snapshot = situations.with_ended()
    over = tuple(run for run in snapshot.runs if run.title == "old.py")
    assert [run.title for run in View(replace(snapshot, runs=over)).runs] == ["old.py"]


def test_a_finding_behind_another_is_not_the_verdict() -> None:
    behind = situations.starvation(rule="low-util", summary="low", behind="data-starvation")
    snapshot = situations.snapshot(findings=(behind, situations.starvation(severity=Severity.WARNING)))
    assert verdicts(View(snapshot))[0].finding == snapshot.findings[1]


def test_a_snoozed_finding_is_not_the_verdict() -> None:
    snapshot = situations.starved()
    told = verdicts(View(snapshot, snoozed=frozenset({key_of(snapshot.findings[0])})))
    assert told[0].word == "TRY" and told[0].finding == snapshot.findings[1]


def test_a_sick_gpu_without_a_run_has_its_own_verdict() -> None:
    about = situations.starvation(rule="xid-error", summary="fell off the bus (XID 79)", run=None, fix=None, gain=None)
    about = replace(about, gpu=situations.gpu(1).facts.uuid)
    snapshot = situations.snapshot(gpus=(situations.gpu(), situations.gpu(1)), runs=(), findings=(about,))
    told = verdicts(View(snapshot))
    assert told[0].sentence == "GPU 1: fell off the bus (XID 79)"
    assert told[1].word == "WATCHING"


def test_a_gpu_finding_belongs_to_the_run_on_that_gpu() -> None:
    about = replace(situations.starvation(run=None), gpu=situations.gpu(0).facts.uuid)
    told = verdicts(View(situations.snapshot(findings=(about,))))
    assert len(told) == 1
    assert told[0].finding == about


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("starting", "no training step yet"),
        ("warming up", "18,204 steps so far; analysed once step time stabilises"),
        ("stopped", "stopped by a signal (SIGSTOP or Ctrl-Z), not starved"),
        ("silent", "no step for 0 s"),
        ("ended", "ended after 18,204 steps"),
        ("not hooked", "not hooked, so its steps and waits are not seen"),
    ],
)
def test_a_run_that_cannot_be_judged_says_why(state: str, words: str) -> None:
    verdict = verdicts(View(situations.snapshot(runs=(situations.run(state=state),), findings=())))[0]
    assert verdict.word == ("stalled" if state == "silent" else state).upper()
    assert verdict.sentence == f"train.py (4711): {words}"


def of_one_window(window: RankWindow, at: float = 120.0, **changes: object) -> Verdict:
    seen = build.scene(build.run(window), at=at)
    about = replace(situations.run(**changes), id=seen.runs[0].id)
    told = verdicts(
        View(situations.snapshot(runs=(about,), findings=(), scene=seen, time_ns=seen.now_ns, started_ns=0))
    )
    return told[0]


def test_silence_of_the_rules_is_no_verdict_before_they_were_asked_twice() -> None:
    early = build.rank(step=2.0, wait=1.9, steps=31, steps_total=31)
    verdict = of_one_window(early, at=62.0, wait_share=0.84, gap_share=None)
    assert verdict.word == "WATCHING"
    assert verdict.sentence == "train.py (4711): not judged yet, it waits for data 84% of the time so far"
    assert of_one_window(early, at=72.0).word == "OK"
    long_ago = replace(early, steps_total=4000)  # what the rules were asked about has left the window
    assert of_one_window(long_ago, at=62.0).word == "OK"


def test_a_run_that_trained_before_the_monitor_came_is_not_called_fine_before_a_rule_has_looked() -> None:
    waits = replace(situations.healthy(), runs=(situations.run(wait_share=0.96, gap_share=None),))
    just_now = replace(waits, started_ns=waits.time_ns - 1_600_000_000)
    assert verdicts(View(just_now))[0].word == "WATCHING"
    assert verdicts(View(replace(just_now, scene=None)))[0].word == "WATCHING"


def test_a_run_whose_waits_are_not_seen_is_not_cleared() -> None:
    verdict = of_one_window(build.rank(wait_share=None), wait_share=None, gap_share=None)
    assert verdict.word == "WATCHING"
    assert "no warning, but the wait for data is not measured" in verdict.sentence
    assert 'gpuwatch.phase("data")' in verdict.because


def test_nothing_is_claimed_before_the_driver_has_answered() -> None:
    young = replace(situations.no_gpu(), nvml=None, started_ns=situations.NOW_NS - 10**9)
    assert verdicts(View(young))[0].word == "STARTING"
    assert verdicts(View(None))[0].word == "STARTING"
    assert verdicts(View(situations.no_gpu()))[0].word == "NOTHING TO WATCH"
    failing = NvmlState(situations.NOW_NS, "failing", "mismatch")
    answered = replace(young, nvml=failing, started_ns=situations.NOW_NS - 4 * 10**9)
    assert verdicts(View(answered))[0].word == "NOTHING TO WATCH"


@pytest.mark.parametrize(("age_seconds", "searched"), [(2.0, True), (20.0, False)])
def test_no_run_is_claimed_before_they_have_been_looked_for(age_seconds: float, searched: bool) -> None:
    started_ns = situations.NOW_NS - round(age_seconds * 1e9)
    young = replace(situations.no_gpu(), started_ns=started_ns, searched=searched)
    assert verdicts(View(young))[0].sentence == "looking for GPUs and training runs"
    with_gpu = replace(situations.no_run(), started_ns=started_ns, searched=searched)
    assert verdicts(View(with_gpu))[0].sentence == "1 GPU; looking for training runs"
    hooked = replace(young, runs=(situations.run(),))
    assert verdicts(View(hooked))[0].word not in ("STARTING", "NOTHING TO WATCH")


def test_a_run_that_is_not_judged_yet_is_not_said_to_be_judged_below() -> None:
    window = build.run(replace(build.rank(), steps=10))
    young = situations.snapshot(
        runs=(situations.run(id=window.id),), findings=(), scene=situations.scene(runs=(window,))
    )
    young = replace(young, started_ns=situations.NOW_NS - 10**9)
    assert verdicts(View(young))[0].word == "WATCHING"
    below = "\n".join(plain(findings_list(View(young), 118, 4, 0, 0, look())))
    assert "Not judged yet" in below and "No findings" not in below


def test_the_findings_say_which_runs_they_were_not_judged_for() -> None:
    warm = build.run(replace(build.rank(), steps=500), id="warm")
    both = situations.snapshot(
        runs=(situations.run(id="warm", pid=1), situations.run(id="few", pid=2, steps_total=6)),
        findings=(),
        scene=situations.scene(runs=(warm,)),
    )
    first, second = plain(findings_list(View(both), 118, 4, 0, 0, look()))[:2]
    assert "No findings" in first and "(1)" in first and "(2)" not in first
    assert "Not judged yet" in second and "(2): exact, 6 steps" in second


def test_a_search_that_never_comes_back_is_not_waited_for_for_ever() -> None:
    never = replace(situations.no_gpu(), started_ns=situations.NOW_NS - 31 * 10**9, searched=False)
    assert verdicts(View(never))[0].word == "NOTHING TO WATCH"


def test_notices_about_gpuwatch_itself_are_reported() -> None:
    told = verdicts(View(situations.snapshot(notices=("The host source failed.",))))
    assert (told[-1].word, told[-1].sentence) == ("NOTICE", "The host source failed.")


def test_a_change_without_known_old_values_still_says_the_new_ones() -> None:
    edit = CallEdit("DataLoader", "/elsewhere.py", 3, {"num_workers": "8", "pin_memory": "True"})
    finding = situations.starvation(fix=Fix("text", edit=edit))
    snapshot = situations.starved()
    assert change_words(finding, snapshot) == "DataLoader: num_workers=8, pin_memory=True"
    assert fix_to_copy(finding) == "num_workers=8, pin_memory=True"


def test_code_is_copied_as_it_is() -> None:
    assert fix_to_copy(situations.hint()).startswith('with torch.autocast("cuda"')  # type: ignore[union-attr]
    assert fix_to_copy(situations.starvation(fix=None)) is None


def test_a_lost_gpu_says_since_when_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = situations.lost()
    words = status_words(snapshot.gpus[1], snapshot)
    assert words.startswith("LOST since ")
    assert words.endswith(": XID 79, fallen off the bus; restart the machine")


def test_a_gpu_lost_before_the_machine_slept_keeps_its_time_of_day() -> None:
    snapshot = situations.lost()
    lost_ns = snapshot.gpus[1].status_since_ns
    assert lost_ns is not None
    woke_ns = lost_ns + 60 * 10**9
    anchors = ((lost_ns, 1_795_176_000.0), (woke_ns, 1_795_176_060.0 + 3 * 3600))  # 12:00 UTC
    seconds = (snapshot.time_ns - woke_ns) / 1e9
    awake = replace(snapshot, wall_time=anchors[1][1] + seconds, wall_anchors=anchors)
    assert status_words(awake.gpus[1], awake).startswith("LOST since 12:00:")


def test_a_gain_of_one_factor_is_said_once() -> None:
    verdict = verdicts(View(situations.snapshot(findings=(situations.starvation(gain=Gain(2.0, 2.01)),))))[0]
    assert verdict.gain == "2.0x faster"


def test_a_later_step_of_the_plan_is_listed_with_what_it_then_brings() -> None:
    first = replace(starvation(), plan=PlanStep(1, 2, Gain(1.5, 1.7), Gain(1.5, 1.7)))
    later = replace(starvation(), plan=PlanStep(2, 2, Gain(1.1, 1.3), Gain(1.7, 2.2)))
    nothing = replace(starvation(), plan=PlanStep(2, 2, Gain(1.0, 1.0), Gain(1.5, 1.7)))
    assert [brings_words(each) for each in (first, later, nothing)] == [
        "1.5-1.7x faster",
        "then 1.1-1.3x",
        "then nothing",
    ]
    assert plan_sentence(later.plan) == (
        "Step 2 of 2 of the plan: then 1.1-1.3x faster, 1.7-2.2x faster together with the steps before it."
    )
    assert "save the same time" in plan_sentence(nothing.plan)


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
        elif each.word in {STATE_WORDS.get(state, state).upper() for state in get_args(RunState)}:
            found[run[1]] = ("state", None)
        else:
            found[run[1]] = (
                claim(each.severity.value if each.severity else None, f"{each.sentence}; {each.because}"),
                rule,
            )
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
    visibility = draw(st.sampled_from(["exact", "process", "hardware"]))
    rank = build.rank(pid=pid, wait=wait or 0.0, steps=max(1, steps), facts={"visibility": visibility})
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
            visibility=each.critical.facts.visibility,
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


def test_a_change_with_a_place_and_a_range_is_worth_a_try_whatever_its_severity() -> None:
    range_of = "1.0-2.6x for this run, from NVIDIA's A100 examples"
    about = situations.hint(behind=None, severity=Severity.INFO, hint=range_of)
    verdict = verdicts(View(replace(situations.healthy(), findings=(about,))))[0]
    assert (verdict.word, verdict.gain) == ("TRY", "typically 1.0-2.6x")
    held = replace(about, rule="idle-gpu-allocated", fix=None, hint="no speedup: it frees a GPU")
    assert verdicts(View(replace(situations.healthy(), findings=(held,))))[0].word == "OK"
