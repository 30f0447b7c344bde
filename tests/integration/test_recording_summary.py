"""What a recording comes to: the figures of the live report, from its samples and from its minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.stretch import LongStretch, RunSummary, SessionSummary, summarize
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import NO_LOADER, BatchCount, LoaderFacts, ProcessSample, RunFacts, Sample, StackTally, StepEnd
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import Scene
from tests.integration.recorded_files import of_minutes
from tests.integration.simulated_recordings import record, record_samples, recording_monitor

_WINDOW = 120.0


@pytest.mark.parametrize("scenario", ["fluctuation", "eight-gpus", "attached"])
def test_the_figures_are_those_of_the_live_scene(tmp_path: Path, scenario: str) -> None:
    monitor = recording_monitor(tmp_path / "run.gpuwatch", scenario, 2 * _WINDOW)
    scene = monitor.final_scene(_WINDOW)
    monitor.stop()
    with Recording(tmp_path / "run.gpuwatch") as recording:
        summary = summarize(recording, scene.now_ns - round(_WINDOW * 1e9), scene.now_ns)
    assert summary.basis == "samples" and summary.ended
    [run], [live] = summary.runs, scene.runs
    rank = live.critical
    assert run.facts.trainer == rank.trainer
    assert run.steps == pytest.approx(rank.steps, abs=2)
    assert run.samples_per_second == pytest.approx(live.samples_per_second, rel=2e-3)
    assert run.wait_share == pytest.approx(rank.wait_share, rel=5e-3, abs=1e-3)
    assert run.wait_seconds_per_batch == pytest.approx(rank.wait_seconds_per_batch, rel=5e-3, abs=1e-4)
    if rank.step_seconds is not None:
        assert run.step_p50_seconds == pytest.approx(rank.step_seconds.p50, rel=1e-3)
        assert run.step_p95_seconds == pytest.approx(rank.step_seconds.p95, rel=1e-2)
    for gpu, shown in zip(summary.gpus, scene.gpus, strict=True):
        assert shown.utilization is not None and gpu.utilization_percent is not None
        assert gpu.utilization_percent.mean == pytest.approx(shown.utilization.mean, rel=2e-3)
        assert gpu.utilization_percent.sigma == pytest.approx(shown.utilization.sigma, rel=5e-3, abs=0.02)
        assert shown.train_utilization is not None and gpu.train_utilization_percent is not None
        assert gpu.train_utilization_percent.mean == pytest.approx(shown.train_utilization.mean, rel=2e-3)
        assert shown.power_watts is not None and gpu.power_watts is not None
        assert gpu.power_watts.mean == pytest.approx(shown.power_watts.mean, rel=2e-3)
        assert gpu.energy_joules == pytest.approx(shown.energy_joules, rel=1e-2)


def _close(found: RunSummary, expected: RunSummary) -> None:
    assert found.samples_per_second == pytest.approx(expected.samples_per_second, rel=0.02)
    assert found.wait_share == pytest.approx(expected.wait_share, rel=0.02, abs=0.01)
    assert found.wait_seconds_per_batch == pytest.approx(expected.wait_seconds_per_batch, rel=0.03, abs=1e-3)
    assert found.batch_size == expected.batch_size and found.gpu_uuids == expected.gpu_uuids


@pytest.mark.parametrize("scenario", ["starved", "fluctuation", "eight-gpus", "attached"])
def test_minutes_tell_the_same_as_samples(tmp_path: Path, scenario: str) -> None:
    path = record_samples(tmp_path / "run.gpuwatch", scenario, 240)
    with Recording(path) as recording:
        span = (recording.start_ns, recording.end_ns)
        exact = summarize(recording, *span)
        minutes = of_minutes(recording)
    gpus, runs = minutes.gpus, minutes.runs
    assert [run.id for run in runs] == [run.id for run in exact.runs]
    _close(runs[0], exact.runs[0])
    if exact.runs[0].step_p50_seconds is not None:
        assert runs[0].step_p50_seconds == pytest.approx(exact.runs[0].step_p50_seconds, rel=0.02)
        assert runs[0].step_p95_seconds == pytest.approx(exact.runs[0].step_p95_seconds, rel=0.1)
    for gpu, expected in zip(gpus, exact.gpus, strict=True):
        assert gpu.facts.uuid == expected.facts.uuid
        assert gpu.utilization_percent is not None and expected.utilization_percent is not None
        assert gpu.utilization_percent.mean == pytest.approx(expected.utilization_percent.mean, rel=0.03)
        assert gpu.power_watts is not None and expected.power_watts is not None
        assert gpu.power_watts.mean == pytest.approx(expected.power_watts.mean, rel=0.03)


@pytest.mark.parametrize(("loader", "wait"), [(NO_LOADER, None), (1, 0.0)], ids=["its own batches", "a loader"])
def test_minutes_of_a_loop_that_never_waits(tmp_path: Path, loader: int, wait: float | None) -> None:
    second = 1_000_000_000
    loaders = (LoaderFacts(loader, role="train", batch_size=32),) if loader else ()
    writer = RecordingWriter(tmp_path / "run.gpuwatch", RecordingMeta(hostname="h", version="0", label="LIVE"))
    facts = RunFacts(second, "7.1", 7, 1, ("python", "train.py"), visibility="sampled", loaders=loaders)
    for n in range(1, 301):
        tally = StackTally("7.1", n * second, (n + 1) * second, 90, {"forward": 90})
        count = BatchCount("7.1", n * second, loader, "train", 8 * n)
        writer.add([*([facts] if n == 1 else []), tally, count], n * second, 1.8e9 + n)
    writer.close()
    with Recording(tmp_path / "run.gpuwatch") as recording:
        span = recording.start_ns, recording.end_ns
        (run,) = of_minutes(recording).runs
        scene = scene_of_samples(recording)
        long = LongStretch(recording, *span).scene(scene)
    assert (run.wait_share, run.wait_seconds_per_batch) == (wait, wait)
    assert long.runs[0].critical.wait_share == wait
    assert run.steps > 1_000


def scene_of_samples(recording: Recording) -> Scene:
    timeline = Timeline(started_ns=recording.start_ns, interval_seconds=1.0)
    timeline.extend(recording.samples(recording.start_ns, recording.end_ns))
    return timeline.scene(recording.end_ns, (recording.end_ns - recording.start_ns) / 1e9)


def test_a_run_that_evaluates_is_judged_by_its_training(tmp_path: Path) -> None:
    with Recording(record_samples(tmp_path / "run.gpuwatch", "fluctuation", 300)) as recording:
        [gpu] = summarize(recording, recording.start_ns, recording.end_ns).gpus
    assert gpu.train_utilization_percent is not None and gpu.utilization_percent is not None
    assert gpu.train_utilization_percent.sigma < gpu.utilization_percent.sigma


def _summary(path: Path) -> SessionSummary:
    with Recording(path) as recording:
        return summarize(recording, recording.start_ns, recording.end_ns)


def test_findings_are_reported_with_how_long_they_stood(tmp_path: Path) -> None:
    summary = _summary(record(tmp_path / "run.gpuwatch", "starved", 240))
    found = {finding.rule: finding for finding in summary.findings}
    starved = found["data-starvation"]
    assert starved.is_open and 60 < starved.stood_seconds < 240
    assert starved.first_ns > summary.start_ns


def test_the_run_is_identified(tmp_path: Path) -> None:
    [run] = _summary(record_samples(tmp_path / "run.gpuwatch", "starved", 60)).runs
    assert (run.title, run.batch_size, run.model_parameters) == ("train.py", 64, 86_567_656)
    assert (run.parameter_bits, run.autocast) == (32, "bfloat16")
    assert run.energy_joules_per_sample is not None and run.energy_joules_per_sample > 0


def test_a_recording_that_is_still_written_can_be_summed_up(tmp_path: Path) -> None:
    monitor = recording_monitor(tmp_path / "run.gpuwatch", "starved", 90)
    try:
        summary = _summary(tmp_path / "run.gpuwatch")
    finally:
        monitor.stop()
    assert not summary.ended
    assert summary.seconds > 80 and summary.runs[0].samples_per_second


def test_a_recording_of_a_command_is_judged_by_its_run_and_not_by_a_longer_one_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    writer = RecordingWriter(path, RecordingMeta("node07", "0.1.0", command=("python", "mine.py")))
    second_ns = 10**9
    for tick in range(1, 101):
        now_ns = tick * second_ns
        samples: list[Sample] = [ProcessSample(now_ns, 1, 11)]
        if tick == 1:
            samples += [
                RunFacts(now_ns, "1.11", 1, 11, ("python", "mine.py")),
                RunFacts(now_ns, "2.22", 2, 22, ("python", "beside.py")),
            ]
        samples += [StepEnd("2.22", tick, now_ns - second_ns, now_ns, 0.1, samples=8)]
        if tick > 30:
            samples += [StepEnd("1.11", tick - 30, now_ns - second_ns, now_ns, 0.1, samples=8)]
        writer.add(samples, now_ns, 1_700_000_000.0 + tick)
    writer.close()
    assert [run.facts.pid for run in _summary(path).runs] == [1]
