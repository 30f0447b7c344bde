from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuwatch.monitor.recorded_findings import RecordedFindings
from gpuwatch.monitor.replay import SPEEDS, ReplayMonitor, Stage, origin_of
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.timeline.charts import Series
from tests.integration.command_line import PATIENCE_SECONDS
from tests.integration.recorded_files import META, START_NS, WALL, batches, recorded, wall_at
from tests.integration.simulated_recordings import record, record_samples, recording_monitor

SECOND_NS = 1_000_000_000


class Watched:
    """A player that plays, and what it shows: all of it, for a busy machine may hold whoever looks at it."""

    def __init__(self, recording: Recording, **options: float) -> None:
        self.player = ReplayMonitor(recording, **options)  # type: ignore[arg-type]
        self._last = self.player.snapshot()
        self._shown: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self.player.subscribe(self._shown.put)
        self.player.start()

    def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot for which this holds, from the one that was returned last."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(self._last):
            left = deadline - time.monotonic()
            assert left > 0, self._last.replay
            with suppress(queue.Empty):
                self._last = self._shown.get(timeout=left)
        return self._last


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("replay") / "starved.gpuwatch", "starved", 240)


@pytest.fixture
def recording(path: Path) -> Iterator[Recording]:
    with Recording(path) as opened:
        yield opened


@pytest.fixture
def watched(recording: Recording) -> Iterator[Watched]:
    made = Watched(recording)
    yield made
    made.player.stop()


def test_behind_a_seek_the_time_of_day_is_known_from_before_the_machine_slept(tmp_path: Path) -> None:
    path = tmp_path / "slept.gpuwatch"
    writer = RecordingWriter(path, META)
    for time_ns, batch in batches(400):
        slept = 7200.0 if time_ns > START_NS + 60 * SECOND_NS else 0.0
        writer.add(batch, time_ns, wall_at(time_ns) + slept)
    writer.close()
    with Recording(path) as recording:
        player = ReplayMonitor(recording, at_ns=recording.end_ns)
        snapshot = player.snapshot()
        player.stop()
    moments = (START_NS + 30 * SECOND_NS, START_NS + 390 * SECOND_NS)
    assert [snapshot.wall_time_at(moment) - WALL for moment in moments] == pytest.approx([30.0, 7590.0], abs=1.0)


def seconds_in(recording: Recording, snapshot: Snapshot) -> float:
    return (snapshot.time_ns - recording.start_ns) / SECOND_NS


def test_it_says_what_it_is_and_where_it_stands(recording: Recording, watched: Watched) -> None:
    shown = watched.until(lambda snapshot: bool(snapshot.gpus))
    assert shown.origin.kind == "recording"
    assert shown.origin.label == "REPLAY starved.gpuwatch (SIMULATED starved)"
    assert shown.replay is not None and shown.replay.state == "playing"
    assert (shown.replay.start_ns, shown.replay.end_ns) == (recording.start_ns, recording.end_ns)
    assert shown.wall_time == pytest.approx(recording.wall_time(shown.time_ns))
    assert {mark.severity.value for mark in shown.replay.marks} >= {"critical", "warning"}


def test_a_seek_shows_the_moment_and_goes_on_from_there(recording: Recording, watched: Watched) -> None:
    watched.player.seek_to(recording.start_ns + 200 * SECOND_NS)
    there = watched.until(lambda snapshot: seconds_in(recording, snapshot) >= 200)
    assert seconds_in(recording, there) < 205
    assert "data-starvation" in {finding.rule for finding in there.findings}
    watched.player.seek(-100)
    back = watched.until(lambda snapshot: seconds_in(recording, snapshot) < 150)
    assert 100 <= seconds_in(recording, back) < 110
    watched.until(lambda snapshot: seconds_in(recording, snapshot) > seconds_in(recording, back))


def test_keys_that_come_faster_than_seeks_add_up(recording: Recording) -> None:
    player = ReplayMonitor(recording)
    for _ in range(5):
        player.seek(10)
    seen = threading.Event()
    player.subscribe(lambda snapshot: seen.set() if seconds_in(recording, snapshot) >= 50 else None)
    player.start()
    assert seen.wait(PATIENCE_SECONDS)
    assert player.snapshot().replay.jumps == 1  # type: ignore[union-attr]
    player.stop()


def test_held_it_stands_still_and_can_still_seek(recording: Recording, watched: Watched) -> None:
    watched.player.toggle()
    held = watched.until(lambda snapshot: snapshot.replay is not None and snapshot.replay.state == "paused")
    watched.player.seek_to(recording.start_ns + 60 * SECOND_NS)
    moved = watched.until(lambda snapshot: snapshot.time_ns != held.time_ns and bool(snapshot.runs))
    assert seconds_in(recording, moved) == pytest.approx(60, abs=0.1)
    assert moved.replay is not None and moved.replay.state == "paused"
    watched.player.toggle()
    watched.until(lambda snapshot: snapshot.time_ns > moved.time_ns)


def test_at_the_end_it_stops_and_starts_over_on_request(recording: Recording, watched: Watched) -> None:
    watched.player.change_speed(1)
    watched.player.seek_to_end()
    over = watched.until(lambda snapshot: snapshot.replay is not None and snapshot.replay.state == "ended")
    assert over.replay is not None and over.replay.speed == 2.0
    assert over.time_ns == recording.end_ns
    watched.player.toggle()
    again = watched.until(lambda snapshot: snapshot.replay is not None and snapshot.replay.state == "playing")
    assert again.replay is not None
    watched.until(lambda snapshot: seconds_in(recording, snapshot) < 30 and bool(snapshot.gpus))


def test_speed_has_ends(watched: Watched) -> None:
    for steps, end in ((1, SPEEDS[-1]), (-1, SPEEDS[0])):
        for _ in range(20):
            watched.player.change_speed(steps)
        shown = watched.player.snapshot().replay
        assert shown is not None
        assert shown.speed == end


def test_what_needs_a_living_machine_is_refused(watched: Watched, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no process to attach to"):
        watched.player.attach(1)
    with pytest.raises(ValueError, match="recording"):
        watched.player.record(tmp_path / "again.gpuwatch")
    assert not list(tmp_path.iterdir())


def test_charts_reach_back_beyond_what_is_lived_through(tmp_path: Path) -> None:
    path = record_samples(tmp_path / "long.gpuwatch", "starved", 900)
    with Recording(path) as recording:
        watched = Watched(recording, at_ns=recording.start_ns + 880 * SECOND_NS)
        shown = watched.until(lambda snapshot: snapshot.replay is not None and snapshot.replay.jumps == 1)
        uuid, run = shown.gpus[0].facts.uuid, shown.runs[0].id
        start_ns = recording.start_ns + 120 * SECOND_NS
        for series in (Series("gpu.utilization_percent", uuid), Series("run.wait_share", run)):
            chart = watched.player.timeline.chart(series, start_ns, start_ns + 600 * SECOND_NS, 10)
            assert None not in chart.mean
        watched.player.stop()


def test_a_past_that_a_key_broke_off_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "hours.gpuwatch"
    recorded(path, 4 * 3600, interval_seconds=60.0)
    with Recording(path) as recording:
        stage = Stage(
            recording, RecordedFindings(recording), recording.end_ns, origin_of(recording), 1.0, with_past=False
        )
        wishes = iter([False, True])
        stage.fill_past(lambda: next(wishes))
        assert stage.lacks_past
        stage.fill_past()
        assert not stage.lacks_past
        series = Series("gpu.utilization_percent", "GPU-0")
        assert None not in stage.timeline.chart(series, recording.start_ns, recording.end_ns, 40).mean
        stage.close()


def test_a_recording_that_is_still_written_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "growing.gpuwatch"
    live = recording_monitor(path, "starved", 20)
    with Recording(path) as recording:
        first_end_ns = recording.end_ns
        watched = Watched(recording, at_ns=first_end_ns)
        watched.until(lambda snapshot: snapshot.replay is not None and snapshot.replay.state == "ended")
        live.run_until(live.snapshot().time_ns + 30 * SECOND_NS)
        grown = watched.until(lambda snapshot: snapshot.time_ns > first_end_ns)
        assert grown.replay is not None and grown.replay.is_growing
        live.stop()
        watched.player.seek(3600)
        over = watched.until(lambda snapshot: snapshot.replay is not None and not snapshot.replay.is_growing)
        assert over.replay is not None and over.replay.state == "ended"
        watched.player.stop()
