from __future__ import annotations

from gpuwatch.samples import BatchWait, GpuGap, RunFacts, RunMemory, StackTally, StepEnd, WorkerFetch
from gpuwatch.sources.simulator.source import SimulatedFocus, SimulatorSource
from tests.unit.test_simulator_scenarios import findings, played

SECOND = 1_000_000_000


def test_a_run_without_a_hook_gives_nothing_that_only_a_hook_gives() -> None:
    source = SimulatorSource("attached", start_ns=1_000 * SECOND)
    samples = list(source.collect(1_030 * SECOND))
    assert not any(isinstance(each, StepEnd | BatchWait | GpuGap | WorkerFetch | RunMemory) for each in samples)
    assert {each.visibility for each in samples if isinstance(each, RunFacts)} == {"sampled"}
    tallies = [each for each in samples if isinstance(each, StackTally)]
    assert len(tallies) >= 28
    assert all(tally.samples == sum(tally.phases.values()) for tally in tallies)


def test_the_snapshot_is_that_of_a_sampled_run() -> None:
    snapshot = played("attached", 1)[-1]
    (run,) = snapshot.runs
    assert (run.visibility, run.step_seconds_p50, run.gap_share) == ("sampled", None, None)
    assert run.samples > 600
    assert [candidate.visibility for candidate in snapshot.candidates] == ["sampled", "process"]


def test_the_finding_names_the_line_of_the_augmentation() -> None:
    assert "augment.py:41" in findings("attached", 1)["data-starvation"].summary


def test_it_can_be_detached_and_attached_again() -> None:
    focus = SimulatedFocus(4711)
    assert (focus.attached_pid, focus.pids()) == (4711, frozenset((4711,)))
    focus.attach(None)
    assert (focus.attached_pid, focus.pids()) == (None, None)
