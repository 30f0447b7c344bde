"""Which run of a recording is compared, with which GPUs and findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.compare.measured import measured
from gpuwatch.recording.pooled import Level, Swing
from gpuwatch.recording.summary import FindingSummary, GpuSummary, RunSummary, SessionSummary
from gpuwatch.samples import GpuFacts, RunFacts

_S = 1_000_000_000


def _gpu(index: int, mean: float, train_mean: float | None = None) -> GpuSummary:
    return GpuSummary(
        facts=GpuFacts(0, f"GPU-{index}", index, f"Model {index}"),
        utilization_percent=Swing(mean, 10.0),
        train_utilization_percent=None if train_mean is None else Swing(train_mean, 5.0),
        memory_used_bytes=Level(1.0 * 2**30, 2.0 * 2**30),
    )


def _run(pid: int, gpus: tuple[str, ...], *, device: str | None = "cuda") -> RunSummary:
    facts = RunFacts(0, f"{pid}.1", pid, 1, ("python", "train.py", "a b"), device=device)
    return RunSummary(f"{pid}.1", "train.py", facts, gpus, samples_per_second=100.0, wait_seconds_per_batch=0.05)


def _finding(rule: str, *, run: str | None = None, gpu: str | None = None, seconds: float = 10.0) -> FindingSummary:
    return FindingSummary(rule, "warning", run, gpu, f"{rule}|{run}|{gpu}", 0, seconds, is_open=True)


_SESSION = SessionSummary("LIVE", "host", "1", 0.0, 0, 60 * _S, "samples")


def test_the_longest_run_is_compared_with_its_own_gpus_and_findings() -> None:
    session = replace(
        _SESSION,
        gpus=(_gpu(0, 40.0, 60.0), _gpu(1, 99.0)),
        runs=(_run(1, ("GPU-0",)), _run(2, ("GPU-1",))),
        findings=(
            _finding("data-starvation", run="1.1"),
            _finding("tf32-off", run="2.1"),
            _finding("thermal-throttle", gpu="GPU-1"),
            _finding("low-util", gpu="GPU-0", seconds=4.0),
            _finding("low-util", gpu="GPU-0", seconds=9.0),
            _finding("metrics-limited"),
        ),
    )
    found = measured("x.gpuwatch", session)
    assert found.values["utilization_percent"] == 60.0  # while training, where that is known
    assert found.values["memory_peak_gib"] == 2.0
    assert found.values["wait_ms_per_batch"] == pytest.approx(50)
    assert found.values["power_watts"] is None
    assert found.subject.gpu_names == ("Model 0",)
    assert found.subject.command == "python train.py 'a b'"
    assert {stood.rule: stood.seconds for stood in found.findings} == {
        "data-starvation": 10.0,
        "low-util": 9.0,
        "metrics-limited": 10.0,
    }
    assert found.notes == ("of 2 runs, train.py (1) trained longest and is compared",)


def test_a_run_on_the_cpu_has_none_of_the_machines_gpus() -> None:
    found = measured("x", replace(_SESSION, gpus=(_gpu(0, 0.0),), runs=(_run(1, (), device="cpu"),)))
    assert found.subject.gpu_names == ("CPU",)
    assert found.values["utilization_percent"] is None and found.values["memory_peak_gib"] is None


def test_without_a_run_all_gpus_count() -> None:
    found = measured("x", replace(_SESSION, gpus=(_gpu(0, 40.0), _gpu(1, 60.0)), ended=False, problem="full"))
    assert found.values["utilization_percent"] == 50.0
    assert "samples_per_second" not in found.values
    assert found.notes[0] == "full" and found.notes[-1] == "no training run is in it" and len(found.notes) == 3
