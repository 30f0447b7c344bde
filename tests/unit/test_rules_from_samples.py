"""From samples to findings: what sources emit reaches the rules that judge whole sessions and slow counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.samples import GpuHealth, GpuStatus, RunMemory, Sample, XidEvent
from tests.unit.sample_builder import GPU, TRAINER, at, gpu_facts, phase, polls, run_facts, scene, steps, timeline


def found(samples: list[Sample], first: float, last: float) -> dict[str, Finding]:
    """What the rules said at any evaluation of a stretch, as the samples came in."""
    coming = deque(sorted(samples, key=when))
    history, engine, said = timeline(), Engine(), dict[str, Finding]()
    for number in range(int(last / 5) + 1):
        while coming and when(coming[0]) <= at(5 * number):
            history.add(coming.popleft())
        moment = scene(history, 5 * number)
        findings = engine.evaluate(moment) if number else ()
        if 5 * number >= first:
            said |= {finding.rule: finding for finding in findings}
    return said


def when(sample: Sample) -> int:
    """When a source would emit it."""
    end = getattr(sample, "end_ns", None)
    return int(sample.time_ns if end is None else end)  # type: ignore[union-attr]


def a_run(*more: Iterable[Sample], period: float = 0.1, seconds: float = 240.0) -> list[Sample]:
    return [run_facts(device="cpu"), *steps(round(seconds / period), period=period), *chain(*more)]


def test_a_steady_run_has_no_finding() -> None:
    assert found(a_run(), 60, 240) == {}


def test_a_run_that_becomes_slower_is_recognized_by_the_part_that_grew() -> None:
    before = steps(1_200, period=0.1, forward_seconds=0.03, backward_seconds=0.05)
    after = steps(800, start=120.0, first=1_201, period=0.115, forward_seconds=0.045, backward_seconds=0.05)
    samples = [run_facts(device="cpu"), *before, *after]
    assert "step-time-regression" not in found(samples, 0, 120)
    finding = found(samples, 125, 210)["step-time-regression"]
    assert finding.fix is not None and finding.fix.value == "forward"


def test_a_gpu_that_slows_down_behind_an_item_call_is_a_slower_run() -> None:
    parts = {"wait": 0.01, "copy_seconds": 0.01, "forward_seconds": 0.02, "backward_seconds": 0.02}
    known = {**parts, "optimizer_seconds": 0.01}
    before = steps(1_200, period=0.1, **known)
    after = steps(800, start=120.0, first=1_201, period=0.13, **known)
    finding = found([run_facts(device="cuda"), *before, *after], 125, 220)["step-time-regression"]
    assert finding.fix is not None and finding.fix.value is None
    assert "loss.item()" in finding.fix.text and "GPU's clock" in finding.fix.text


def test_compilations_that_go_on_are_a_storm() -> None:
    compiled = [phase("compile", start, start + 4.0) for start in (1.0, 60.0, 100.0, 140.0, 180.0)]
    finding = found(a_run(compiled), 200, 240)["recompile-storm"]
    assert "recompiled 4 times" in finding.summary


def test_a_model_that_is_compiled_at_the_start_is_no_storm() -> None:
    compiled = [phase("compile", start, start + 1.5) for start in (1.0, 3.0, 5.0, 7.0)]
    assert "recompile-storm" not in found(a_run(compiled), 60, 240)


def memories(*, grows: int, first: int = 10**10) -> list[RunMemory]:
    return [
        RunMemory(TRAINER, at(second), allocated_peak_bytes=first + grows * second, total_bytes=8 * 10**10)
        for second in range(240)
    ]


def test_a_peak_that_rises_all_the_time_is_reported_with_when_it_ends() -> None:
    finding = found(a_run(memories(grows=30_000_000)), 200, 240)["gpu-memory-creep"]
    assert "at this pace it is full in" in finding.summary


def test_a_peak_that_stands_still_is_none() -> None:
    assert "gpu-memory-creep" not in found(a_run(memories(grows=0)), 200, 240)


def test_a_replay_on_nvlink_reaches_its_rule_and_the_next_clean_minute_none() -> None:
    health = [
        GpuHealth(at(second), GPU, nvlink_count=18, nvlink_active=18, nvlink_replays=int(second >= 90))
        for second in range(0, 900, 30)
    ]
    samples = [gpu_facts(), *polls(range(900), utilization_percent=90.0), *health]
    assert "NVLink repeated packets once in 60 s" in found(samples, 90, 145)["link-errors"].summary
    assert "link-errors" in found(samples, 700, 740) and "link-errors" not in found(samples, 760, 800)


def test_pcie_replays_are_compared_with_the_link_as_it_is() -> None:
    health = [GpuHealth(at(second), GPU, pcie_replays=20 * second) for second in range(0, 120, 30)]
    status = GpuStatus(at(1), GPU, pcie_generation=4, pcie_width=16)
    facts = gpu_facts(pcie_generation_max=4, pcie_width_max=16)
    said = found([facts, *polls(range(160), utilization_percent=90.0), *health, status], 90, 150)
    assert "pcie-degraded" in said and said["pcie-degraded"].summary.endswith("15 are usual")


def test_an_error_of_a_gpu_out_of_sight_reaches_the_machines_rule() -> None:
    gpus = [gpu_facts(0), gpu_facts(1), *polls(range(30)), *polls(range(30), "GPU-1")]
    assert "XID 79" in found([*gpus, XidEvent(at(5), None, 79)], 5, 30)["xid-unplaced"].summary
