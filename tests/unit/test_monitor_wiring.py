from __future__ import annotations

from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.wiring import simulated_monitor

SECOND = 1_000_000_000


def simulated(seed: int) -> list[Snapshot]:
    watch = simulated_monitor("starved", seed=seed, virtual=True)
    seen: list[Snapshot] = []
    watch.run_until(watch.snapshot().time_ns + 40 * SECOND, on_tick=seen.append)
    watch.stop()
    return seen


def test_simulated_watch_says_so_at_all_times_and_finds_what_is_wrong() -> None:
    seen = simulated(0)
    assert {snapshot.origin.label for snapshot in seen} == {"SIMULATED starved"}
    assert {snapshot.origin.kind for snapshot in seen} == {"simulated"}
    assert "data-starvation" in {finding.rule for finding in seen[-1].findings}
    assert seen[-1].notices == ()


def test_same_seed_gives_the_same_watch() -> None:
    first, second = simulated(3), simulated(3)
    assert first[-1].findings == second[-1].findings
    assert repr(first[-1].scene) == repr(second[-1].scene)
    assert repr(first[-1].scene) != repr(simulated(4)[-1].scene)


def test_demo_opens_with_a_past_and_its_findings() -> None:
    watch = simulated_monitor("starved", history_seconds=60.0)
    watch.run_until(None, stop=lambda: watch.snapshot().time_ns - watch.snapshot().started_ns >= 59 * SECOND)
    watch.stop()
    snapshot = watch.snapshot()
    assert "workers-zero" in {finding.rule for finding in snapshot.findings}
    assert snapshot.runs[0].steps_total > 100
