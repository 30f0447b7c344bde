"""The report as a JSON document: its parts, the schema, times of day, ignored rules and findings of long recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.diagnosis.finding import Finding, Measure, Severity
from gpuwatch.edits.source import process_started
from gpuwatch.monitor.recorded_findings import to_record
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.report.build import build_report
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import Json, as_json, json_schema
from gpuwatch.report.observation import FindingDuration, Observation, Stretch, leave_out
from gpuwatch.report.recorded import key_of, merged
from gpuwatch.report.words import gpu_table, quality_lines
from gpuwatch.timeline.times import Anchor, WallTimes
from gpuwatch.timeline.windows import MemoryTotals, Scene
from tests.unit import scene_builder as build
from tests.unit.report_builder import WALL_TIME, chart, json_report, observation, report, starvation

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def check_schema(document: Json) -> None:
    round_trip = json.loads(json.dumps(document, allow_nan=False))
    VALIDATOR.validate(round_trip)


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["Report"]["required"], "an empty schema would accept everything"


@pytest.mark.parametrize(
    "scene",
    [
        build.scene(),
        build.scene(build.run(build.rank(gap=0.05, wait=0.1))),
        build.scene(build.run(build.rank(pid=1), build.rank(pid=2)), build.run(build.rank(device="cpu"))),
        build.scene(
            gpus=[build.gpu(utilization=None, power=None, unavailable={"utilization_percent": "MIG"}, status="lost")],
            host=None,
            machine=None,
        ),
        build.scene(
            build.run(
                build.rank(step_seconds=None, wait_share=None, facts={"visibility": "hardware"}, phases={}), title="?"
            )
        ),
        build.scene(build.run(build.rank(phases={"eval": build.phase("eval")}))),
    ],
    ids=["nothing", "gap", "two-runs", "lost-gpu", "no-steps", "phases"],
)
def test_every_scene_gives_a_document_that_the_schema_accepts(scene: Scene) -> None:
    document = json_report(scene, [starvation(), starvation(fix=None, gain=None, run=None)])
    check_schema(document)
    assert (len(document["runs"]), len(document["gpus"])) == (len(scene.runs), len(scene.gpus))


@settings(max_examples=40, deadline=None)
@given(st.text(), st.text(), st.floats(allow_nan=True) | st.text() | st.none())
def test_any_text_and_number_of_a_finding_fits_into_json(summary: str, code: str, value: float | str | None) -> None:
    found = starvation(summary=summary, evidence=(Measure("m", value, summary),))
    assert found.fix is not None
    document = json_report(findings=[replace(found, fix=replace(found.fix, code=code))])
    check_schema(document)
    json.dumps(document, ensure_ascii=False).encode("utf-8")


def test_unknown_figures_are_null_with_the_devices_reason() -> None:
    gpu = build.gpu(utilization=None, unavailable={"utilization_percent": "not supported under MIG"})
    (section,) = json_report(build.scene(gpus=[replace(gpu, energy_joules=None)]))["gpus"]
    assert section["utilization_percent"] is None
    assert section["unavailable"]["utilization_percent"] == "not supported under MIG"
    assert section["energy_joules"] is None
    assert section["unavailable"]["energy_joules"]
    assert "power_watts" not in section["unavailable"]


def test_gpu_figures_are_those_of_the_window() -> None:
    gpu = build.gpu(utilization=[0.0, 100.0], power=[200.0, 400.0], energy_joules=1234.5)
    (section,) = json_report(build.scene(gpus=[gpu]))["gpus"]
    assert section["utilization_percent"]["mean"] == pytest.approx(50)
    assert section["utilization_percent"]["p95"] == 100
    assert section["power_watts"] == {"mean": 300, "max": 400, "limit": 700}
    assert section["memory_bytes"]["total"] == 80 * 2**30
    assert section["energy_joules"] == 1234.5


def test_run_names_its_loader_and_its_shares() -> None:
    run = build.run(build.rank(step=0.2, wait=0.1, gap=0.08, loader=build.loader(num_workers=0)))
    (section,) = json_report(build.scene(run))["runs"]
    assert section["command"] == "python train.py"
    assert section["data_wait_share"] == pytest.approx(0.5)
    assert section["gpu_idle_from_wait_share"] == pytest.approx(0.4)
    assert section["loaders"][0]["file"] == build.SCRIPT
    assert section["loaders"][0]["num_workers"] == 0
    assert section["unavailable"] == {}


def test_gpu_idle_of_a_cpu_run_is_null_because_the_model_computes_on_the_cpu() -> None:
    (section,) = json_report(build.scene(build.run(build.rank(device="cpu")), gpus=[]))["runs"]
    assert section["gpu_idle_from_wait_share"] is None
    assert "CPU" in section["unavailable"]["gpu_idle_from_wait_share"]


def test_finding_carries_evidence_fix_gain_and_the_time_it_began() -> None:
    (section,) = json_report(findings=[starvation()])["findings"]
    assert section["evidence"] == {"gap_share": 0.41}
    assert section["level"] == "E3"
    assert section["gain"] == {"low": 1.5, "high": 1.7, "cap": "then the GPU"}
    assert section["fix"]["value"] == 10
    assert section["since"] == "2026-02-02T02:39:30Z"


def test_source_file_of_a_simulation_is_never_read() -> None:
    (section,) = json_report(findings=[starvation()], read_source=None)["findings"]
    assert section["fix"]["diff"] is None
    assert section["fix"]["no_diff_reason"]


def test_diff_is_made_of_the_readable_source() -> None:
    source = "\n" * 87 + "loader = DataLoader(data, num_workers=4)\n"
    document = json_report(findings=[starvation()], read_source=lambda path, started, of: source.encode())
    assert "+loader = DataLoader(data, num_workers=10)" in document["findings"][0]["fix"]["diff"]


def test_verdict_has_one_sentence_per_run_worst_first() -> None:
    healthy = build.run(build.rank(pid=1), title="good.py")
    starved = build.run(build.rank(pid=4711), title="bad.py")
    verdict = json_report(build.scene(healthy, starved), [starvation()])["verdict"]
    assert [line["run"] for line in verdict] == ["4711.1", "1.1"]
    assert verdict[0]["sentence"].startswith("bad.py (4711): the GPU idles 41%")
    assert "1.5-1.7x" in verdict[0]["sentence"]
    assert "nothing to change" in verdict[1]["sentence"]


def test_verdict_does_not_clear_a_run_of_which_too_little_was_seen() -> None:
    (line,) = json_report(build.scene(build.run(build.rank(steps=12))))["verdict"]
    assert "12 steps" in line["sentence"]
    assert "nothing to change" not in line["sentence"]


def test_verdict_does_not_clear_a_run_whose_steps_came_too_late_for_the_rules() -> None:
    slow = build.rank(step=2.0, wait=1.9, steps=31, steps_total=31)
    (line,) = json_report(build.scene(build.run(slow), at=62.0))["verdict"]
    assert not line["judged"]
    assert "too little was seen to judge (31 steps" in line["sentence"]


def test_verdict_does_not_clear_a_run_whose_waits_are_not_measured() -> None:
    (line,) = json_report(build.scene(build.run(build.rank(wait_share=None))))["verdict"]
    assert not line["judged"]
    assert "not measured" in line["sentence"]
    assert "nothing to change" not in line["sentence"]


def test_steps_of_a_run_without_the_hook_are_unknown_and_not_zero() -> None:
    unhooked = replace(build.rank(facts={"visibility": "process"}), steps=0, steps_total=0)
    document = json_report(build.scene(build.run(unhooked)))
    (section,) = document["runs"]
    assert (section["steps"], section["steps_total"], section["ranks"][0]["steps"]) == (None, None, None)
    assert "hook" in section["unavailable"]["steps"]


def test_verdict_names_a_gpu_problem_without_a_run() -> None:
    found = starvation(rule="xid-error", run=None, gpu="GPU-0", summary="GPU 0 fell off the bus", gain=None)
    (line,) = json_report(build.scene(gpus=[build.gpu()]), [found])["verdict"]
    assert line["sentence"] == "GPU 0 fell off the bus"


def test_verdict_takes_the_cause_to_solve_first() -> None:
    behind = starvation(rule="low-util", severity=Severity.CRITICAL, summary="busy 20%", behind="data-starvation")
    (line,) = json_report(findings=[behind, starvation(severity=Severity.WARNING)])["verdict"]
    assert line["rule"] == "data-starvation"


def test_checklist_met() -> None:
    rank = build.rank(memory=MemoryTotals(out_of_memory=0))
    statuses = [target["status"] for target in json_report(build.scene(build.run(rank)))["checklist"]]
    assert statuses == ["met"] * 5


def test_checklist_not_met() -> None:
    rank = build.rank(memory=MemoryTotals(out_of_memory=2))
    gpu = build.gpu(utilization=[0.0, 100.0], temperature_celsius=build.stats([85.0]))
    scene = build.scene(build.run(rank), gpus=[gpu], host=build.host(cpu_percent=95.0))
    statuses = [target["status"] for target in json_report(scene)["checklist"]]
    assert statuses == ["not met"] * 5


def test_checklist_not_known() -> None:
    gpu = build.gpu(utilization=None, temperature_celsius=None)
    statuses = [target["status"] for target in json_report(build.scene(gpus=[gpu], host=None))["checklist"]]
    assert statuses == ["not known"] * 5


def test_worst_gpu_decides_and_a_silent_one_cannot_meet_the_target() -> None:
    good, bad = build.gpu(0), build.gpu(1, utilization=40.0)
    target = json_report(build.scene(gpus=[good, bad]))["checklist"][0]
    assert (target["status"], target["where"]) == ("not met", "GPU 1")
    silent = build.gpu(1, utilization=None)
    assert json_report(build.scene(gpus=[good, silent]))["checklist"][0]["status"] == "not known"


def test_gpus_that_no_run_uses_do_not_fail_the_checklist() -> None:
    run = build.run(build.rank(gpus=(0,)))
    scene = build.scene(run, gpus=[build.gpu(0), build.gpu(1, utilization=0.0)])
    assert json_report(scene)["checklist"][0]["status"] == "met"


def test_interrupted_and_simulated_are_said() -> None:
    document = json_report(origin=Origin("simulated", "SIMULATED starved"), interrupted=True)
    assert document["gpuwatch"]["incomplete"] is True
    assert document["gpuwatch"]["label"] == "SIMULATED starved"


def test_history_keeps_gaps_as_null() -> None:
    (history,) = json_report(charts=(chart("gpu.utilization_percent", "GPU-0", 90.0, None, 92.0),))["history"]
    assert history == {
        "series": "gpu.utilization_percent",
        "key": "GPU-0",
        "bucket_seconds": 2.0,
        "mean": [90.0, None, 92.0],
    }


def test_bytes_that_are_not_utf8_are_shown_as_their_codes() -> None:
    run = build.run(build.rank(facts={"command": ("python", "tr\udcffain.py")}), title="tr\udcffain.py")
    document = json_report(build.scene(run))
    assert document["runs"][0]["title"] == r"tr\xffain.py"
    json.dumps(document, ensure_ascii=False).encode("utf-8")


def test_process_start_is_wall_time() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = process_started(int(fields[19]))
    assert started is not None
    assert started == pytest.approx(psutil.Process().create_time(), abs=1)


SECOND = 1_000_000_000
HOUR = 3600.0


def jumped(by_seconds: float) -> tuple[Anchor, ...]:
    """A clock that is set after 100 of the 120 s of a session."""
    clock = WallTimes()
    for second in range(121):
        jump = by_seconds if second >= 100 else 0.0
        clock.see(build.START_NS + second * SECOND, WALL_TIME - HOUR + second + jump)
    return clock.anchors


def seen(anchors: Sequence[Anchor], findings: Sequence[Finding] = ()) -> Observation:
    """A session of which these times of day are known."""
    usual = observation(findings=findings)
    return replace(usual, snapshot=replace(usual.snapshot, wall_anchors=tuple(anchors)))


def test_each_moment_has_the_time_that_the_clock_showed_then() -> None:
    document = as_json(build_report(seen(jumped(HOUR), [starvation()])))
    assert document["gpuwatch"]["started_at"] == "2026-02-02T01:40:00Z"
    assert document["findings"][0]["since"] == "2026-02-02T01:41:30Z", "90 s in, before the jump"


@pytest.mark.parametrize(("by_seconds", "words"), [(HOUR, "jumped 60.0 min ahead"), (-30.0, "jumped 30 s back")])
def test_a_jump_is_reported(by_seconds: float, words: str) -> None:
    (problem,) = as_json(build_report(seen(jumped(by_seconds))))["data_quality"]["problems"]
    assert words in problem


def test_a_clock_that_only_drifts_is_no_jump() -> None:
    assert as_json(build_report(seen(jumped(0.4))))["data_quality"]["problems"] == []
    assert json_report()["data_quality"]["problems"] == []


def test_a_test_suite_bears_the_time_of_its_start() -> None:
    suite = ElementTree.fromstring(render_junit(report()).encode())[0]
    assert (suite.get("timestamp"), suite.get("time")) == ("2026-02-02T02:38:00", "120.000")


def test_curves_come_with_the_times_of_day_behind_each_jump() -> None:
    clock = as_json(build_report(seen(jumped(HOUR)), with_series=True))["clock"]
    assert [anchor["start_seconds"] for anchor in clock] == [0.0, 99.0]
    assert clock[1]["wall_time"] - clock[0]["wall_time"] == pytest.approx(HOUR + 99)


def test_without_a_jump_the_curves_have_the_time_of_day_of_their_beginning() -> None:
    (anchor,) = as_json(build_report(observation(), with_series=True))["clock"]
    assert anchor == {"start_seconds": 0.0, "wall_time": WALL_TIME - 120}


WHY = "ignored by config (/home/user/pyproject.toml): amp-off, tf32-off"


def test_rules_that_the_user_ignores_were_not_judged_and_the_reason_is_named() -> None:
    document = report(left_out={"amp-off": WHY, "tf32-off": WHY})
    judged = {each.rule: (each.judged, each.reason) for each in document.rules}
    assert judged["amp-off"] == judged["tf32-off"] == (False, WHY)
    assert judged["data-starvation"] != (False, WHY)


def test_the_data_quality_names_them() -> None:
    assert any(f"2: {WHY}" in line for line in quality_lines(report(left_out={"amp-off": WHY, "tf32-off": WHY})))
    assert not any("ignored" in line for line in quality_lines(report()))


def test_findings_of_a_recording_go_with_the_rules_and_hold_nothing_back() -> None:
    zero = starvation(rule="workers-zero", behind="data-starvation")
    stretches = (
        Stretch("finding", "data-starvation", 0, 1),
        Stretch("finding", "workers-zero", 0, 1),
        Stretch("phase", "eval", 0, 1),
    )
    seen = observation(findings=[starvation(), zero], stretches=stretches)
    left = leave_out(seen, {"data-starvation": WHY})
    assert [(finding.rule, finding.behind) for finding in left.snapshot.findings] == [("workers-zero", None)]
    assert [each.name for each in left.stretches] == ["workers-zero", "eval"]
    assert leave_out(seen, {}).snapshot.findings == seen.snapshot.findings


SECOND_NS = 1_000_000_000


def summary_of(found: Finding, seconds: float, *, is_over: bool) -> str:
    lasted = FindingDuration(key_of(found), seconds, is_over, to_record(found).blob)
    (one,) = merged(() if is_over else (found,), [lasted], 0, 86_400 * SECOND_NS)
    return one.summary


def test_a_finding_that_is_over_says_that_it_stood() -> None:
    found = starvation()
    assert summary_of(found, 12 * 3600.0, is_over=True) == f"{found.summary}; it lasted 12 h of 24 h and has ended"


def test_a_finding_that_stands_says_for_how_long_it_does() -> None:
    found = starvation()
    assert summary_of(found, 12 * 3600.0, is_over=False) == f"{found.summary}; so for 12 h of 24 h"


def test_energy_comes_from_the_counter_else_from_power_samples_and_is_never_made_up() -> None:
    counted = build.gpu(0, energy_joules=3.6e6, energy_seconds=30.0)
    sampled = build.gpu(1, power=600.0)
    restarted = build.gpu(2, energy_joules=-5.0, energy_seconds=60.0, power=600.0)
    unknown = build.gpu(3, power=None)
    made = build_report(observation(build.scene(gpus=[counted, sampled, restarted, unknown])), price_per_kwh=0.3)
    first, second, third, fourth = (gpu.energy for gpu in made.gpus)
    assert first is not None and second is not None
    assert (first.kilowatt_hours, first.source, first.covered_share, first.cost) == (1.0, "energy counter", 0.5, 0.3)
    assert (second.kilowatt_hours, second.source) == (0.01, "power samples")
    assert third == second and fourth is None
    assert "GPU 0: energy: of 50% of the time" in gpu_table(made).notes
    assert "GPU 1, 2: energy: from power samples" in gpu_table(made).notes


def test_energy_of_a_run_is_that_of_all_its_gpus_or_unknown() -> None:
    run = build.run(build.rank(facts={"gpu_uuids": ("GPU-0", "GPU-1")}))
    gpus = [build.gpu(index, energy_joules=3.6e6, energy_seconds=60.0) for index in (0, 1)]
    (whole,) = report(build.scene(run, gpus=gpus)).runs
    assert whole.energy is not None and (whole.energy.kilowatt_hours, whole.energy.cost) == (2.0, None)
    (part,) = report(build.scene(run, gpus=[gpus[0], build.gpu(1, power=None)])).runs
    assert part.energy is None
