from __future__ import annotations

import pytest

from gpuwatch.samples import GpuGap, GpuSample, PhaseSpan, StepEnd
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource

SECOND = 1_000_000_000
START = 1_000 * SECOND


def play(scenario: str, seconds: float, **arguments: object) -> list[object]:
    source = SimulatorSource(scenario, start_ns=START, **arguments)  # type: ignore[arg-type]
    return list(source.collect(START + round(seconds * SECOND)))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_seed_gives_the_same_samples_and_another_seed_does_not(scenario: str) -> None:
    assert play(scenario, 20, seed=3) == play(scenario, 20, seed=3)
    assert play(scenario, 20, seed=3) != play(scenario, 20, seed=4)


@pytest.mark.parametrize("scenario", ["starved", "eight-gpus", "hang", "fluctuation"])
def test_small_collects_bring_what_one_large_collect_brings(scenario: str) -> None:
    source = SimulatorSource(scenario, start_ns=START)
    pieces = [sample for tenth in range(1, 301) for sample in source.collect(START + tenth * SECOND // 10)]
    assert pieces == play(scenario, 30)


def test_first_collect_brings_the_past() -> None:
    source = SimulatorSource("starved", start_ns=START, history_seconds=120)
    polls = [sample for sample in source.collect(START) if isinstance(sample, GpuSample)]
    assert len(polls) == 120
    assert polls[0].time_ns == START - 119 * SECOND
    assert polls[-1].time_ns == START


def test_history_never_reaches_before_the_start_of_the_clock() -> None:
    source = SimulatorSource("healthy", start_ns=5 * SECOND, history_seconds=120)
    polls = [sample for sample in source.collect(5 * SECOND) if isinstance(sample, GpuSample)]
    assert [poll.time_ns for poll in polls] == [second * SECOND for second in range(1, 6)]


def test_due_time_is_when_the_next_sample_comes() -> None:
    source = SimulatorSource("healthy", start_ns=START)
    list(source.collect(START + SECOND))
    due = source.due_ns()
    assert due is not None
    assert not list(source.collect(due - 1))
    assert list(source.collect(due))


def test_closed_source_is_silent() -> None:
    source = SimulatorSource("healthy", start_ns=START)
    source.close()
    source.close()
    assert source.due_ns() is None
    assert not list(source.collect(START + SECOND))


def test_starved_gpu_idles_for_the_measured_gap() -> None:
    samples = play("starved", 60)
    steps = [sample for sample in samples if isinstance(sample, StepEnd)][10:]
    gaps = {sample.number: sample.seconds for sample in samples if isinstance(sample, GpuGap)}
    wall = sum(step.end_ns - step.start_ns for step in steps) / SECOND
    gap_share = sum(gaps.get(step.number, 0.0) for step in steps) / wall
    ring = [value for sample in samples if isinstance(sample, GpuSample) for _, value in sample.utilization_ring]
    assert gap_share == pytest.approx(0.5, abs=0.05)
    assert 1 - sum(ring) / len(ring) / 100 == pytest.approx(gap_share, abs=0.04)


def test_energy_is_the_integral_of_power() -> None:
    polls = [sample for sample in play("throttled", 60) if isinstance(sample, GpuSample)]
    ring = [watts for poll in polls[1:] for _, watts in poll.power_ring]
    spent = (polls[-1].energy_joules or 0) - (polls[0].energy_joules or 0)
    assert spent == pytest.approx(sum(ring) / 6, rel=0.001)


def test_hot_gpu_slows_the_steps_of_all_ranks() -> None:
    steps = [sample for sample in play("eight-gpus", 60) if isinstance(sample, StepEnd) and sample.number > 10]
    backward = {step.trainer: 0.0 for step in steps}
    for step in steps:
        backward[step.trainer] += step.backward_seconds or 0.0
    slowest = min(backward, key=lambda trainer: backward[trainer])
    assert slowest.startswith("4716.")
    assert len({step.end_ns for step in steps if step.number == 100}) <= 8


def test_hang_ends_the_steps_and_keeps_the_gpus_busy_at_low_power() -> None:
    samples = play("hang", 120)
    last_step = max(sample.end_ns for sample in samples if isinstance(sample, StepEnd))
    assert (last_step - START) / SECOND == pytest.approx(45, abs=1)
    late = [sample for sample in samples if isinstance(sample, GpuSample) and sample.time_ns > START + 60 * SECOND]
    assert {sample.utilization_percent for sample in late} == {100.0}
    assert max(sample.power_watts or 0 for sample in late) < 0.45 * 700
    assert {sample.tensor_activity_percent for sample in late} == {0.0}


def test_phases_open_and_close_and_lie_inside_the_next_step() -> None:
    samples = play("fluctuation", 60)
    spans = [sample for sample in samples if isinstance(sample, PhaseSpan)]
    steps = [sample for sample in samples if isinstance(sample, StepEnd) and sample.phase_seconds]
    closed = [span for span in spans if span.end_ns is not None]
    assert {span.kind for span in closed} == {"eval", "checkpoint"}
    for step in steps:
        inside = [span for span in closed if step.start_ns <= span.start_ns and (span.end_ns or 0) <= step.end_ns]
        assert inside
        covered = sum((span.end_ns or 0) - span.start_ns for span in inside) / SECOND
        assert covered == pytest.approx(step.phase_seconds, abs=0.2)
