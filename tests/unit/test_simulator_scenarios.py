"""Each scenario, through the timeline and all rules on a clock that jumps, gives the findings on its label."""

from __future__ import annotations

import functools

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource

SECOND = 1_000_000_000
START = 1_000 * SECOND


@functools.cache
def played(scenario: str, seed: int, seconds: int = 180) -> tuple[Snapshot, ...]:
    clock = VirtualClock(START)
    source = SimulatorSource(scenario, seed=seed, start_ns=START)
    monitor = Monitor([source], origin=Origin("simulated", scenario), clock=clock, engine=Engine())
    snapshots: list[Snapshot] = []
    monitor.run_until(START + seconds * SECOND, on_tick=snapshots.append)
    monitor.stop()
    return tuple(snapshots)


def findings(scenario: str, seed: int) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for snapshot in played(scenario, seed):
        for finding in snapshot.findings:
            found.setdefault(finding.rule, finding)
    return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_gives_its_labelled_findings_and_no_other_warning(scenario: str, seed: int) -> None:
    label = SCENARIOS[scenario]
    found = findings(scenario, seed)
    assert label.must <= found.keys()
    warnings = {rule for rule, finding in found.items() if finding.severity.value in ("critical", "warning")}
    assert warnings <= label.must | label.may


def test_healthy_gives_no_finding_at_all() -> None:
    assert findings("healthy", 1) == {}


def test_starvation_is_named_within_fifteen_seconds_of_the_thirtieth_step() -> None:
    thirtieth = next(s.time_ns for s in played("starved", 1) if s.runs and s.runs[0].steps_total >= 30)
    named = next(s.time_ns for s in played("starved", 1) if any(f.rule == "data-starvation" for f in s.findings))
    assert named - thirtieth <= 15 * SECOND


def test_starved_fix_names_the_line_and_a_number_of_workers() -> None:
    fix = findings("starved", 1)["workers-zero"].fix
    assert fix is not None
    assert (fix.file, fix.line) == ("/simulated/train.py", 88)
    assert isinstance(fix.value, int)
    assert 2 <= fix.value <= 15


def test_gain_promised_for_the_starved_run_is_what_a_fast_loader_brings() -> None:
    gain = findings("starved", 1)["data-starvation"].gain
    assert gain is not None
    starved, healthy = 0.229, 0.112  # seconds per step with this loader, and with the GPU alone
    assert gain.high == pytest.approx(starved / healthy, rel=0.15)


def test_straggler_is_the_rank_on_the_hot_gpu() -> None:
    found = findings("eight-gpus", 1)
    assert found["thermal-throttle"].gpu is not None
    assert found["thermal-throttle"].gpu.endswith("5")
    assert "ank 5" in found["straggler-rank"].summary


def test_hang_is_named_although_the_gpus_look_busy() -> None:
    last = played("hang", 1)[-1]
    assert "collective-hang" in {finding.rule for finding in last.findings}
    assert {gpu.latest.utilization_percent for gpu in last.gpus if gpu.latest} == {100.0}
