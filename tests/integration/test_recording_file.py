"""A recording: written, read while it is written and afterwards, and refused where it cannot be."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.rollups import HOUR_NS
from gpuwatch.recording.schema import VERSION, CannotOpenError, CannotRecordError, FindingRecord, Rollup
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuLost,
    GpuSample,
    HostSample,
    LinkLoss,
    NvmlState,
    PhaseSpan,
    RunFacts,
    StackTally,
    StepEnd,
    TrainerEnded,
    XidEvent,
)
from gpuwatch.timeline.columns import MINUTE_NS
from tests.file_modes import file_modes_count
from tests.integration.recorded_files import (
    META,
    SECOND_NS,
    START_NS,
    TRAINER,
    WALL,
    batches,
    everything,
    record,
    recorded,
    wall_at,
)


def test_what_was_added_comes_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    added = recorded(path, 200, gpus=2)
    assert everything(path) == added
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gpuwatch"]


def test_a_span_holds_what_came_after_its_start_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    recorded(path, 200)
    with Recording(path) as recording:
        assert recording.start_ns < START_NS and recording.end_ns == START_NS + 200 * SECOND_NS
        found = list(recording.samples(START_NS + 50 * SECOND_NS, START_NS + 130 * SECOND_NS, kinds=[HostSample]))
        assert [sample.time_ns for sample in found] == [START_NS + n * SECOND_NS for n in range(51, 131)]


def test_the_head_says_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    record(writer, batches(3))
    with Recording(path) as recording:
        assert recording.meta == META
        writer.close()
        recording.refresh()
        assert recording.meta == replace(META, ended=True)
        assert [facts.uuid for facts in recording.gpus()] == ["GPU-0"]


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    before = os.umask(0)
    try:
        writer = RecordingWriter(path, META)
        record(writer, batches(3))
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600} and "a.gpuwatch" in modes
    writer.close()


def test_another_process_reads_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    program = (
        "import sys\nfrom pathlib import Path\nfrom gpuwatch.recording.reader import Recording\n"
        "with Recording(Path(sys.argv[1])) as recording:\n"
        "    while sys.stdin.readline():\n"
        "        recording.refresh()\n"
        "        print(sum(1 for _ in recording.samples(recording.start_ns, recording.end_ns)), flush=True)\n"
    )
    writer = RecordingWriter(path, META)
    given = batches(150)
    added = record(writer, [next(given)])
    arguments = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        for _ in range(3):
            added += record(writer, [next(given) for _ in range(45)])
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert int(reader.stdout.readline()) == len(added)
        reader.stdin.close()
    assert reader.returncode == 0
    writer.close()
    assert everything(path) == added


def test_a_reader_that_has_begun_sees_the_minute_sealed_beneath_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(150)
    added = record(writer, [next(given) for _ in range(100)])
    with Recording(path) as recording:
        reading = recording.samples(recording.start_ns, recording.end_ns)
        first = next(reading)
        record(writer, given)
        assert [first, *reading] == added
    writer.close()


def test_read_from_a_folder_that_nobody_may_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    folder.mkdir()
    added = recorded(folder / "a.gpuwatch", 70)
    folder.chmod(0o500)
    try:
        with file_modes_count():
            assert everything(folder / "a.gpuwatch") == added
        assert [entry.name for entry in folder.iterdir()] == ["a.gpuwatch"]
    finally:
        folder.chmod(0o700)


def test_without_its_anchors_times_of_day_count_from_when_it_was_begun(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    recorded(path, 30)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE anchor SET crc = 1")
    connection.close()
    with Recording(path) as recording:
        assert recording.wall_time(recording.end_ns) == pytest.approx(WALL + 30, abs=1.5)
        assert "its clock" in str(recording.meta.problem)


def test_wall_time_follows_jumps_of_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    for second in range(20):
        time_ns = START_NS + second * SECOND_NS
        jumped = -3600.0 if second >= 10 else 0.0
        writer.add([HostSample(time_ns)], time_ns, wall_at(time_ns) + jumped + second * 0.001)
    writer.close()
    with Recording(path) as recording:
        assert recording.wall_time(START_NS + 5 * SECOND_NS) == pytest.approx(WALL + 5, abs=0.1)
        assert recording.wall_time(START_NS + 15 * SECOND_NS) == pytest.approx(WALL - 3600 + 15, abs=0.1)
        between = START_NS + 9 * SECOND_NS + SECOND_NS // 2
        assert recording.wall_time(between) == pytest.approx(WALL - 3600 + 9.5, abs=0.1), "told with what came after"


def test_samples_without_a_clock_of_their_own_and_late_ones_keep_their_arrival(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    late = StepEnd(TRAINER, 1, START_NS - 30 * SECOND_NS, START_NS - 29 * SECOND_NS, None)
    writer = RecordingWriter(path, META)
    record(writer, batches(5))
    writer.add([late], START_NS + 6 * SECOND_NS, wall_at(START_NS + 6 * SECOND_NS))
    writer.close()
    with Recording(path) as recording:
        assert list(recording.samples(START_NS + 5 * SECOND_NS, recording.end_ns)) == [late]


def test_standing_facts_are_the_newest_of_what_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)

    def add(second: int, *samples: object) -> int:
        time_ns = START_NS + second * SECOND_NS
        writer.add(list(samples), time_ns, wall_at(time_ns))  # type: ignore[arg-type]
        return time_ns

    facts, newer = (RunFacts(second, TRAINER, 4711, 99, ("x",), rank=second) for second in (0, 1))
    gpus = [GpuFacts(0, f"GPU-{number}", number, "H100") for number in range(2)]
    xids = [XidEvent(second, "GPU-0", 31) for second in (1, 2)]
    add(0, *gpus, facts, NvmlState(0, "ok"), GpuLost(0, "GPU-1", "gone"), PhaseSpan(TRAINER, "eval", 5, None))
    add(1, newer, xids[0], NvmlState(1, "ok", calls=5), GpuHealth(1, "GPU-0"), LinkLoss(None, 1))
    middle = add(2, xids[1], GpuSample(2, "GPU-1"), PhaseSpan(TRAINER, "eval", 5, 9))
    add(100, TrainerEnded(TRAINER, 9, "exited"), PhaseSpan(TRAINER, "checkpoint", 7, None))
    writer.close()
    with Recording(path) as recording:
        early = recording.facts_at(START_NS)
        assert early == [
            *gpus,
            facts,
            GpuLost(0, "GPU-1", "gone"),
            PhaseSpan(TRAINER, "eval", 5, None),
            NvmlState(0, "ok"),
        ]
        assert recording.facts_at(middle) == [
            *gpus,
            newer,
            *xids,
            NvmlState(1, "ok", calls=5),
            GpuHealth(1, "GPU-0"),
        ]
        last = recording.facts_at(recording.end_ns)
        assert TrainerEnded(TRAINER, 9, "exited") in last and PhaseSpan(TRAINER, "checkpoint", 7, None) in last
        assert recording.facts_at(START_NS - 1) == []


def test_findings_are_kept_as_stretches(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    firing = FindingRecord("k", "data-starvation", "warning", "firing", TRAINER, None, b"{1}")
    states = {0: [firing], 5: [replace(firing, blob=b"{2}")], 10: [replace(firing, state="clearing")], 15: []}
    for second in range(20):
        time_ns = START_NS + second * SECOND_NS
        writer.add([HostSample(time_ns)], time_ns, wall_at(time_ns))
        if second in states:
            writer.add_findings(time_ns, states[second])
    writer.add_findings(START_NS + 19 * SECOND_NS, [replace(firing, key="other", blob=b"{3}")])
    writer.close()
    with Recording(path) as recording:
        spans = recording.findings(recording.start_ns, recording.end_ns)
        seconds = [
            (
                span.key,
                span.state,
                (span.start_ns - START_NS) // SECOND_NS,
                span.end_ns and (span.end_ns - START_NS) // SECOND_NS,
            )
            for span in spans
        ]
        assert seconds == [("k", "firing", 0, 10), ("k", "clearing", 10, 15), ("other", "firing", 19, None)]
        assert [span.blob for span in spans] == [b"{2}", b"{1}", b"{3}"]
        assert [span.key for span in recording.findings(START_NS + 16 * SECOND_NS, recording.end_ns)] == ["other"]


def test_the_oldest_samples_go_beyond_the_size_limit_and_minutes_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    limit = 180_000
    writer = RecordingWriter(path, META, max_bytes=limit)
    sizes = []
    for time_ns, batch in batches(1800, interval_seconds=0.2):
        writer.add(batch, time_ns, wall_at(time_ns))
        sizes.append(writer.bytes_written)
    writer.close()
    assert path.stat().st_size <= limit and max(sizes) <= 4 * limit
    with Recording(path) as recording:
        assert "dropped" in (recording.meta.problem or "")
        found = list(recording.samples(recording.start_ns, recording.end_ns, kinds=[HostSample]))
        assert found[-1].time_ns == START_NS + 1800 * SECOND_NS
        assert found[0].time_ns > START_NS + 300 * SECOND_NS
        minutes = recording.rollups(recording.start_ns, recording.end_ns, metrics={"cpu_percent"})
        assert sum(row.count for row in minutes) == 1800 * 5 + 1
        assert [facts.uuid for facts in recording.gpus()] == ["GPU-0"]


def test_minutes_of_a_recording_that_is_being_written_include_the_open_one(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    record(writer, batches(90))
    with Recording(path) as recording:
        rows = recording.rollups(recording.start_ns, recording.end_ns, metrics={"step_seconds"})
    assert [row.count for row in rows] == [60, 31]
    writer.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no recording"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.touch(), "empty"),
        (lambda path: path.write_text("hello" * 1000), "not a gpuwatch recording"),
        (
            lambda path: sqlite3.connect(path).execute("CREATE TABLE a (b)").connection.close(),
            "not a gpuwatch recording",
        ),
    ],
)
def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path, make: object, words: str) -> None:
    path = tmp_path / "a.gpuwatch"
    make(path)  # type: ignore[operator]
    with pytest.raises(CannotOpenError, match=words) as refusal:
        Recording(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    recorded(path, 2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={VERSION + 1}")
        connection.commit()
    with pytest.raises(CannotOpenError, match="newer gpuwatch"):
        Recording(path)


def test_a_file_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    path.write_text("mine")
    with pytest.raises(CannotRecordError, match="exists"):
        RecordingWriter(path, META)
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRecordError, match="no folder"):
        RecordingWriter(tmp_path / "none" / "a.gpuwatch", META)


def test_a_link_at_the_end_of_the_path_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotRecordError, match="is a symbolic link: name the file itself"):
        RecordingWriter(tmp_path / "link", META)
    assert not (tmp_path / "elsewhere").exists()


def test_closing_twice_and_adding_afterwards_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    added = record(writer, batches(3))
    writer.close()
    writer.close()
    record(writer, batches(9))
    assert everything(path) == added


def test_the_recorder_loads_nothing_heavy() -> None:
    program = "import sys; import gpuwatch.recording.writer, gpuwatch.recording.reader; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "pyarrow", "textual", "rich", "torch", "pandas"} & set(loaded)


def test_a_copy_of_a_file_in_use_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    added = record(writer, batches(130))
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("a.gpuwatch", "a.gpuwatch-wal"):
        shutil.copyfile(tmp_path / name, copied / name)
    assert everything(copied / "a.gpuwatch") == added
    writer.close()


def test_a_sample_that_no_file_can_hold_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    writer.add([HostSample(1), HostSample(2, memory_total_bytes=2**70), HostSample(3)], START_NS, WALL)
    writer.close()
    assert writer.problem is not None and "1 samples" in writer.problem
    assert everything(path) == [HostSample(1), HostSample(3)]
    with Recording(path) as recording:
        assert "1 samples could not be recorded" in (recording.meta.problem or "")


def test_minutes_of_hours_are_those_that_were_written_minute_by_minute(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    record(writer, batches(2 * 3600 + 600, interval_seconds=10.0))
    writer.close()
    with Recording(path) as recording:
        span = (recording.start_ns, recording.end_ns)
        part = (START_NS + 1000 * SECOND_NS, START_NS + 5000 * SECOND_NS)
        rows, rows_of_part = recording.rollups(*span), recording.rollups(*part)
        minutes = recording.minutes(*span, metrics={"step_seconds"})[TRAINER, "step_seconds"]
    without = tmp_path / "without.gpuwatch"
    shutil.copy(path, without)
    with closing(sqlite3.connect(without)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM rollup_1h").fetchone()[0] >= 2
        connection.execute("DROP TABLE rollup_1h")
    with Recording(without) as recording:
        wanted = recording.rollups(*span)
        assert recording.meta.problem is None, "recordings without hours are whole"
        assert_same(rows, wanted)
        assert_same(rows_of_part, recording.rollups(*part))
        assert 0 < len(rows_of_part) < len(rows)
        assert [row.minute_ns for row in rows] == sorted(row.minute_ns for row in rows)
    steps = {row.minute_ns: row.count for row in wanted if row.metric == "step_seconds"}
    assert dict(zip(minutes.column("minute_ns"), minutes.column("count"), strict=True)) == steps


def test_the_minutes_of_an_hour_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Trainings come and go, of each of which something is recorded."""
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    begin_ns = START_NS // HOUR_NS * HOUR_NS + HOUR_NS
    sizes = {}
    tracemalloc.start()
    try:
        for minute in range(65):
            now_ns = begin_ns + minute * MINUTE_NS
            start_ns = now_ns - SECOND_NS
            looks = [StackTally(f"{minute}{n:02}.7", start_ns, now_ns, 10, {"forward": 10}) for n in range(50)]
            writer.add(looks, now_ns, wall_at(now_ns))
            sizes[minute] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    writer.close()
    assert sizes[55] - sizes[5] < 200_000, "150 figures a minute are 1.5 MB in 50 minutes"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM rollup_1h").fetchone() == (1,)
    with Recording(path) as recording:
        found = recording.rollups(begin_ns - 1, begin_ns + HOUR_NS - 1)
    assert len({row.subject for row in found if row.metric == "stack_seconds"}) == 60 * 50


def test_rare_samples_of_a_long_recording_are_found_sealed_or_not(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    rare = [PhaseSpan(TRAINER, "eval", at, at + 1) for at in (START_NS + n * 700 * SECOND_NS for n in (1, 2, 3))]
    for time_ns, batch in batches(2110, interval_seconds=5.0):
        writer.add([*batch, *(span for span in rare if span.start_ns == time_ns)], time_ns, wall_at(time_ns))
    with Recording(path) as recording:
        span = (recording.start_ns, recording.end_ns)
        assert list(recording.samples(*span, kinds=(PhaseSpan,))) == rare
        writer.close()
        assert list(recording.samples(*span, kinds=(PhaseSpan,))) == rare, "the last was in the tail when it was opened"


def test_a_damaged_hour_is_reported_from_its_minutes(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    recorded(path, 2 * 3600, 10.0)
    with Recording(path) as recording:
        wanted = recording.rollups(recording.start_ns, recording.end_ns)
    with closing(sqlite3.connect(path)) as connection, connection:
        first = connection.execute("SELECT min(hour_ns) FROM rollup_1h").fetchone()
        connection.execute("UPDATE rollup_1h SET data = zeroblob(99) WHERE hour_ns = ?", first)
    with Recording(path) as recording:
        assert_same(recording.rollups(recording.start_ns, recording.end_ns), wanted)
        assert recording.meta.problem is not None


def assert_same(rows: list[Rollup], wanted: list[Rollup]) -> None:
    """As far as single precision tells figures apart."""
    found = {row[:3]: row[3:] for row in rows}
    assert len(found) == len(rows) and found.keys() == {row[:3] for row in wanted}
    for row in wanted:
        assert found[row[:3]] == pytest.approx(row[3:], rel=2e-7, abs=1e-9)
