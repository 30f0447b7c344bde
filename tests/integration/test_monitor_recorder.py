from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotRecordError
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuFacts, GpuSample, MachineFacts, RunFacts, StepEnd
from tests.integration.command_line import PATIENCE_SECONDS

SECOND_NS = 1_000_000_000


def test_a_recording_begun_later_still_knows_what_was_told_before(tmp_path: Path) -> None:
    path = tmp_path / "late.gpuwatch"
    monitor = simulated_monitor("starved", virtual=True)
    monitor.run_until(monitor.snapshot().time_ns + 30 * SECOND_NS)
    monitor.record(path)
    begun_ns = monitor.snapshot().time_ns
    monitor.run_until(begun_ns + 5 * SECOND_NS)
    monitor.stop()
    with Recording(path) as recording:
        kinds = {type(sample) for sample in recording.samples(recording.start_ns, recording.start_ns + 1)}
        assert {GpuFacts, MachineFacts, RunFacts} <= kinds
        later = list(recording.samples(recording.start_ns + 1, recording.end_ns))
        assert {GpuSample, StepEnd} <= {type(sample) for sample in later}


def test_the_snapshot_says_how_the_recording_stands_until_it_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    monitor = simulated_monitor("starved", virtual=True)
    assert monitor.snapshot().recording is None
    monitor.record(path)
    monitor.run_until(monitor.snapshot().time_ns + 12 * SECOND_NS)
    now = monitor.snapshot().recording
    assert now is not None
    assert (now.path, now.problem) == (path, None)
    assert now.seconds == pytest.approx(12, abs=1.5)
    assert now.bytes > 0
    ended = monitor.stop_recording()
    assert ended is not None and ended.bytes == path.stat().st_size
    assert monitor.snapshot().recording is None
    assert monitor.stop_recording() is None
    with Recording(path) as recording:
        assert recording.meta.ended
    monitor.stop()


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    monitor.record(tmp_path / "one.gpuwatch")
    with pytest.raises(ValueError, match=r"one\.gpuwatch is already being recorded"):
        monitor.record(tmp_path / "two.gpuwatch")
    monitor.stop()
    assert not (tmp_path / "two.gpuwatch").exists()


def test_a_place_that_cannot_be_written_is_refused_and_the_watch_goes_on(tmp_path: Path) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    with pytest.raises(CannotRecordError):
        monitor.record(tmp_path / "no such folder" / "run.gpuwatch")
    monitor.run_until(monitor.snapshot().time_ns + 3 * SECOND_NS)
    assert monitor.snapshot().recording is None
    assert monitor.snapshot().gpus[0].latest is not None
    monitor.stop()


def test_a_recorder_with_a_bug_is_reported_and_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    monitor.record(tmp_path / "run.gpuwatch")

    def broken(self: RecordingWriter, *arguments: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RecordingWriter, "add", broken)
    monitor.run_until(monitor.snapshot().time_ns + 40 * SECOND_NS)
    snapshot = monitor.snapshot()
    assert snapshot.recording is not None and "ZeroDivisionError" in (snapshot.recording.problem or "")
    assert snapshot.runs[0].steps_total > 100
    assert {finding.rule for finding in snapshot.findings} >= {"data-starvation"}
    assert snapshot.notices == ()
    ended = monitor.stop_recording()
    assert ended is not None and ended.problem is not None
    assert monitor.snapshot().recording is None
    monitor.stop()


def test_stopping_the_monitor_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    monitor = simulated_monitor("starved", virtual=False)
    monitor.record(path)
    monitor.start()
    monitor.stop()
    for thread in threading.enumerate():
        if thread.name in ("gpuwatch-monitor", "gpuwatch-recorder"):
            thread.join(PATIENCE_SECONDS)  # on a busy machine it takes longer than stop() waits for it
    assert [each.name for each in tmp_path.iterdir()] == ["run.gpuwatch"]
    with Recording(path) as recording:
        assert recording.meta.ended
