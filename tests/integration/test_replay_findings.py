from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.monitor.recorded_findings import RecordedFindings
from gpuwatch.monitor.replay import Stage, origin_of
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.recording.reader import Recording

AS_FAST_AS_IT_GOES = 1e9
DEFAULTS = Settings()
SECOND_NS = 1_000_000_000


def lived(path: Path, scenario: str, seconds: float) -> dict[int, Snapshot]:
    """Records a simulated run; returns what its monitor showed, by time."""
    monitor = simulated_monitor(scenario, virtual=True)
    shown: dict[int, Snapshot] = {}
    monitor.subscribe(lambda snapshot: shown.update({snapshot.time_ns: snapshot}))
    monitor.record(path)
    monitor.run_until(monitor.snapshot().time_ns + round(seconds * SECOND_NS))
    monitor.stop()
    return shown


def rules(shown: Snapshot) -> set[str]:
    return {finding.rule for finding in shown.findings}


def replayed(recording: Recording, at_ns: int, until_ns: int, settings: Settings = DEFAULTS) -> dict[int, Snapshot]:
    """What a replay shows from a moment on, by time."""
    shown: dict[int, Snapshot] = {}
    stage = Stage(
        recording,
        RecordedFindings(recording, settings),
        at_ns,
        origin_of(recording),
        AS_FAST_AS_IT_GOES,
        lambda snapshot: shown.update({snapshot.time_ns: snapshot}),
        settings=settings,
    )
    stage.monitor.run_until(until_ns)
    stage.close()
    return shown


def said(finding: Finding) -> tuple[Any, ...]:
    """Everything that a user reads of a finding."""
    gain = None if finding.gain is None else (round(finding.gain.low, 4), round(finding.gain.high, 4))
    evidence = tuple((measure.name, measure.text) for measure in finding.evidence)
    head = (finding.rule, finding.severity, finding.level, finding.state, finding.since_ns, finding.behind)
    return (*head, finding.summary, evidence, gain, finding.fix, finding.run, finding.gpu)


@pytest.mark.parametrize("scenario", ["starved", "fluctuation", "attached", "hang"])
def test_a_replay_finds_what_was_found_live_at_the_same_times(tmp_path: Path, scenario: str) -> None:
    path = tmp_path / "run.gpuwatch"
    live = lived(path, scenario, 150)
    with Recording(path) as recording:
        again = replayed(recording, recording.start_ns, recording.end_ns)
    common = sorted(live.keys() & again.keys())
    assert len(common) > 0.6 * len(live)
    for time_ns in common:
        assert list(map(said, again[time_ns].findings)) == list(map(said, live[time_ns].findings))
        assert [run.steps_total for run in again[time_ns].runs] == [run.steps_total for run in live[time_ns].runs]
        assert [run.state for run in again[time_ns].runs] == [run.state for run in live[time_ns].runs]
    assert any(live[time_ns].findings for time_ns in common)


def test_behind_a_seek_the_findings_stand_as_they_did(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    live = lived(path, "fluctuation", 330)
    with Recording(path) as recording:
        at_ns = recording.start_ns + 300 * SECOND_NS
        again = replayed(recording, at_ns, at_ns + 20 * SECOND_NS)
    first_ns = min(again)
    assert first_ns == at_ns
    then = live[max(time_ns for time_ns in live if time_ns <= at_ns)]
    stood = {finding.rule: finding for finding in then.findings}
    found = {finding.rule: finding for finding in again[first_ns].findings}
    assert stood and found.keys() == stood.keys()
    for rule, finding in found.items():
        assert finding.severity == stood[rule].severity
        assert finding.since_ns == stood[rule].since_ns


@pytest.mark.parametrize("at_seconds", [60, 200])
def test_a_replay_heeds_the_rules_that_the_user_ignores(tmp_path: Path, at_seconds: int) -> None:
    path = tmp_path / "run.gpuwatch"
    lived(path, "starved", 240)
    ignoring = Settings(ignored={"data-starvation": "ignored by --ignore: data-starvation"})
    with Recording(path) as recording:
        at_ns = recording.start_ns + at_seconds * SECOND_NS
        plain, heeded = (
            replayed(recording, at_ns, at_ns + 10 * SECOND_NS, settings) for settings in (Settings(), ignoring)
        )
        marks = RecordedFindings(recording, ignoring).marks
        assert len(marks) < len(RecordedFindings(recording).marks)
    assert all("data-starvation" in rules(shown) for shown in plain.values())
    assert not any("data-starvation" in rules(shown) for shown in heeded.values())
    assert any(finding.behind for shown in plain.values() for finding in shown.findings)
    assert not any(finding.behind == "data-starvation" for shown in heeded.values() for finding in shown.findings)


@pytest.mark.parametrize("at_seconds", [60, 200])
def test_a_rule_with_other_thresholds_judges_a_replay_anew(tmp_path: Path, at_seconds: int) -> None:
    path = tmp_path / "run.gpuwatch"
    lived(path, "starved", 240)
    limits = rule_by_id("data-starvation").thresholds
    assert limits is not None
    lax = replace(limits(), fire_share=0.99, clear_share=0.98, critical_share=1.0)
    with Recording(path) as recording:
        at_ns = recording.start_ns + at_seconds * SECOND_NS
        again = replayed(recording, at_ns, at_ns + 10 * SECOND_NS, Settings(thresholds={"data-starvation": lax}))
    assert again and not any("data-starvation" in rules(shown) for shown in again.values())


def test_an_attached_recording_is_replayed_as_narrow_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    live = lived(path, "attached", 30)
    with Recording(path) as recording:
        assert recording.meta.attached_pid is not None
        again = replayed(recording, recording.start_ns, recording.end_ns)
    last = max(live.keys() & again.keys())
    assert [run.id for run in again[last].runs] == [run.id for run in live[last].runs]
    assert [gpu.facts.uuid for gpu in again[last].gpus] == [gpu.facts.uuid for gpu in live[last].gpus]
