"""What a full disk, a kill, a failing disk and a network's file system do to a recording: less than one would fear."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recording_kills import kill_one
from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.recorder import MOST_HELD, Recorder, WriterThread
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.recording.file import filesystem_of
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotOpenError, CannotRecordError, FindingRecord, RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuSample, HostSample, LinkLoss, RunFacts, Sample
from gpuwatch.timeline.timeline import Timeline
from tests.integration.recorded_files import META, SECOND_NS, START_NS, batches, everything, record, recorded, wall_at
from tests.unit.sample_builder import gpu_facts, poll, run_facts


class FullableConnection(sqlite3.Connection):
    """A connection whose disk can be full."""

    is_full = False

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if FullableConnection.is_full and not arguments[0].startswith(("SELECT", "ROLLBACK")):
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(*arguments)


def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
    return sqlite3.connect(*arguments, factory=FullableConnection, **named)


@contextmanager
def full_disk() -> Iterator[None]:
    FullableConnection.is_full = True
    try:
        yield
    finally:
        FullableConnection.is_full = False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a file system takes root's rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_stops_the_recording_until_there_is_room(small_disk: Path) -> None:
    path = small_disk / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(1200, 0.1, gpus=4)
    added = record(writer, [next(given) for _ in range(50)])
    ballast = small_disk / "ballast"
    with pytest.raises(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    for time_ns, batch in given:
        writer.add(batch, time_ns, wall_at(time_ns))
        added += batch
        if writer.problem is not None:
            break
    assert writer.problem is not None and "no space left" in writer.problem and str(small_disk) in writer.problem
    before = everything(path)
    assert before == added[: len(before)] and len(before) >= len(added) - 4 * 7 * 10
    ballast.unlink()
    added += record(writer, [next(given) for _ in range(20)])
    assert writer.problem is None
    writer.close()
    assert everything(path) == added


def test_a_full_disk_at_the_start_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    given = batches(30)
    with full_disk():
        writer = RecordingWriter(path, META, connect=connect)
        added = record(writer, [next(given) for _ in range(10)])
        assert writer.problem is not None and "it resumes when there is room" in writer.problem
    added += record(writer, given)
    assert writer.problem is None
    writer.close()
    assert everything(path) == added


def test_a_disk_that_stays_full_takes_bounded_memory_and_what_is_lost_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatch.recording.writer._MOST_WAITING_BYTES", 3_000)
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META, connect=connect)
    given = batches(900)
    added = record(writer, [next(given) for _ in range(100)])
    with full_disk():
        added += record(writer, [next(given) for _ in range(700)])
        assert sum(segment.bytes for segment in writer._waiting) <= 3_000
    added += record(writer, given)
    writer.close()
    found = everything(path)
    assert 0 < len(found) < len(added) and found[-1] == added[-1]
    with Recording(path) as recording:
        assert f"{len(added) - len(found)} samples are missing" in (recording.meta.problem or "")


def test_a_disk_that_is_full_at_the_end_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META, connect=connect)
    added = record(writer, batches(70))
    with full_disk():
        writer.add([HostSample(1)], START_NS + 80 * SECOND_NS, wall_at(START_NS + 80 * SECOND_NS))
        writer.close()
    assert writer.problem is not None and "later samples are missing" in writer.problem
    assert everything(path) == added


def test_a_limit_on_the_size_of_files_stops_the_recording_not_the_process(tmp_path: Path) -> None:
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from gpuwatch.recording.writer import RecordingWriter\n"
        "from tests.integration.recorded_files import META, batches, record\n"
        "writer = RecordingWriter(Path(sys.argv[1]), META)\n"
        "record(writer, batches(300, 0.1, gpus=4))\n"
        "assert 'recording stopped' in writer.problem, writer.problem\n"
        "writer.close()\n"
    )
    path = tmp_path / "a.gpuwatch"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, cwd=Path(__file__).parents[2])
    found = everything(path)
    assert found and found == [sample for _, batch in batches(300, 0.1, gpus=4) for sample in batch][: len(found)]


def test_a_killed_writer_leaves_a_file_that_lacks_less_than_a_second(tmp_path: Path) -> None:
    rng = random.Random(11)
    for number in range(10):
        killed = kill_one(tmp_path / f"{number}.gpuwatch", rng.randrange(1, 1_500))
        assert killed.intact
        assert killed.lost_seconds is not None and killed.lost_seconds <= 1.0
        assert killed.found >= killed.expected - 80


def test_flipped_bits_never_show_a_sample_that_was_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    added = record(writer, batches(200, 0.5, gpus=2))
    writer.add_findings(START_NS, [FindingRecord("k", "r", "warning", "firing", None, None, b"blob")])
    writer.close()
    whole, known = path.read_bytes(), set(map(repr, added))
    rng = random.Random(3)
    noticed = 0
    for number in range(120):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 8, 200))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        copy = tmp_path / f"{number}.damaged"
        copy.write_bytes(damaged)
        try:
            with Recording(copy) as recording:
                found = list(recording.samples(recording.start_ns, recording.end_ns))
                recording.facts_at(recording.end_ns)
                recording.findings(recording.start_ns, recording.end_ns)
                recording.rollups(recording.start_ns, recording.end_ns)
                recording.wall_time(recording.end_ns)
                assert len(found) == len(added) or recording.meta.problem
                noticed += recording.meta.problem is not None
        except CannotOpenError as refusal:
            assert str(copy) in str(refusal)
            noticed += 1
        else:
            assert {repr(sample) for sample in found} <= known
        copy.unlink()
    assert noticed > 40


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.7, 0.95])
def test_of_a_file_that_was_cut_off_the_beginning_is_read(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.gpuwatch"
    added = recorded(path, 600, 0.2)
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * kept)])
    try:
        with Recording(path) as recording:
            found = list(recording.samples(recording.start_ns, recording.end_ns))
            assert recording.meta.problem
    except CannotOpenError:
        assert kept < 0.5
        return
    assert set(map(repr, found)) <= set(map(repr, added))
    assert kept < 0.5 or found


def network(folder: Path) -> str | None:
    return "nfs4" if "home" in folder.name else filesystem_of(folder)


def test_on_a_network_file_system_it_is_written_elsewhere_and_brought_home(tmp_path: Path) -> None:
    home, local = tmp_path / "home", tmp_path / "local"
    home.mkdir()
    local.mkdir()
    writer = RecordingWriter(home / "a.gpuwatch", META, filesystem=network, temp_folders=[local])
    added = record(writer, batches(90))
    assert writer.path.is_relative_to(local) and not any(home.iterdir())
    assert writer.note is not None and "nfs4" in writer.note and str(writer.path) in writer.note
    assert everything(writer.path) == added
    writer.close()
    assert writer.path == home / "a.gpuwatch" and everything(writer.path) == added
    assert [entry.name for entry in home.iterdir()] == ["a.gpuwatch"] and not any(local.iterdir())
    assert (home / "a.gpuwatch").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_brought_home_stays_where_it_is(tmp_path: Path) -> None:
    home, local = tmp_path / "home", tmp_path / "local"
    home.mkdir()
    local.mkdir()
    writer = RecordingWriter(home / "a.gpuwatch", META, filesystem=network, temp_folders=[local])
    added = record(writer, batches(9))
    home.rmdir()
    writer.close()
    assert writer.problem is not None and str(writer.path) in writer.problem
    assert writer.path.is_relative_to(local) and everything(writer.path) == added


def test_with_no_other_place_it_is_written_there_without_a_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    writer = RecordingWriter(home / "a.gpuwatch", META, filesystem=network, temp_folders=[])
    added = record(writer, batches(90))
    assert not (home / "a.gpuwatch-wal").exists() and writer.note is not None
    with pytest.raises(CannotOpenError, match="stop the recording first"):
        Recording(home / "a.gpuwatch")
    writer.close()
    assert everything(home / "a.gpuwatch") == added


def test_a_recording_on_a_network_file_system_is_not_overwritten_either(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.gpuwatch").write_text("mine")
    with pytest.raises(CannotRecordError, match="exists"):
        RecordingWriter(home / "a.gpuwatch", META, filesystem=network, temp_folders=[tmp_path])


def test_the_type_of_a_file_system_is_read_from_the_kernels_list(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    listed = tmp_path / "mountinfo"
    listed.write_text(f"1 0 0:999 / / rw - ext4 /dev/a rw\n2 1 {number} / {tmp_path} rw shared:1 - lustre host:/x rw\n")
    assert filesystem_of(tmp_path, listed) == "lustre"
    assert filesystem_of(tmp_path, tmp_path / "none") is None
    assert filesystem_of(tmp_path / "none", listed) is None


def test_what_a_kill_left_is_read_from_a_medium_that_cannot_be_written(small_disk: Path) -> None:
    writer = RecordingWriter(small_disk / "a.gpuwatch", META)
    added = record(writer, batches(100))
    (small_disk / "closed").mkdir()
    closed = recorded(small_disk / "closed" / "a.gpuwatch", 5)
    for name in ("a.gpuwatch", "a.gpuwatch-wal"):
        shutil.copyfile(small_disk / name, small_disk / "closed" / f"killed-{name}")
    writer.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert everything(small_disk / "closed" / "killed-a.gpuwatch") == added
    assert everything(small_disk / "closed" / "a.gpuwatch") == closed


def test_a_recording_that_is_removed_while_it_is_written_has_ended_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(200)
    record(writer, [next(given) for _ in range(70)])
    path.unlink()
    record(writer, given)
    assert writer.is_lost and writer.problem is not None
    assert f"{path} was removed while it was written; start a new one" in writer.problem
    writer.close()
    assert not path.exists()


def test_a_recording_that_is_emptied_while_it_is_written_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(50)
    record(writer, [next(given) for _ in range(30)])  # no minute is over yet, so no log is just being brought in
    os.truncate(path, 0)
    record(writer, given)
    assert writer.is_lost and "was cut short while it was written" in (writer.problem or "")
    writer.close()


def test_a_recording_that_is_emptied_while_its_log_is_brought_in_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(50)
    record(writer, [next(given) for _ in range(30)])
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM meta").fetchone()
        size = path.stat().st_size
        os.truncate(path, 0)
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        assert path.stat().st_size >= size, "its size tells nothing any more"
        record(writer, given)
    assert writer.is_lost and "was cut short while it was written" in (writer.problem or "")
    writer.close()


def test_a_recording_that_was_replaced_leaves_its_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    first = RecordingWriter(path, META)
    given = batches(200)
    record(first, [next(given) for _ in range(70)])
    path.unlink()
    second = RecordingWriter(path, META)
    added = record(second, batches(30))
    record(first, given)
    first.close()
    assert first.is_lost and "was replaced" in (first.problem or "")
    assert everything(path) == added  # not closed yet: what lies beside it in its log is still there
    second.close()
    assert everything(path) == added


def test_a_recording_that_is_renamed_while_it_is_written_is_whole_at_its_end(tmp_path: Path) -> None:
    path, kept = tmp_path / "a.gpuwatch", tmp_path / "kept.gpuwatch"
    writer = RecordingWriter(path, META)
    given = batches(200)
    added = record(writer, [next(given) for _ in range(70)])
    path.rename(kept)
    added += record(writer, given)
    writer.close()
    assert not writer.is_lost and not path.exists()
    assert everything(kept) == added


PATIENCE_SECONDS = 60


class HangingWriter(RecordingWriter):
    """Its disk answers while `answers` is set."""

    def __init__(self, path: Path, meta: RecordingMeta, max_bytes: int | None = None) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.told_loss = threading.Event()
        super().__init__(path, meta, max_bytes=max_bytes)

    def add(self, samples: Iterable[Sample], now_ns: int, wall_time: float) -> None:
        self.asked.set()
        assert self.answers.wait(PATIENCE_SECONDS)
        samples = list(samples)
        super().add(samples, now_ns, wall_time)
        if any(isinstance(sample, LinkLoss) for sample in samples):
            self.told_loss.set()


class Begun:
    """A recording on such a disk."""

    def __init__(self, path: Path, close_seconds: float = PATIENCE_SECONDS) -> None:
        self.writers: list[HangingWriter] = []
        self.timeline = Timeline()
        self.recorder = Recorder(self.timeline, SystemClock(), open_writer=self._open, close_seconds=close_seconds)
        monitor = simulated_monitor("starved", virtual=True)
        self.recorder.begin(path, monitor.snapshot())
        monitor.stop()

    def _open(self, path: Path, meta: RecordingMeta, max_bytes: int | None) -> RecordingWriter:
        self.writers.append(HangingWriter(path, meta, max_bytes))
        return self.writers[0]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Begun]]:
    made: list[Begun] = []

    def begin(**options: float) -> Begun:
        made.append(Begun(tmp_path / "run.gpuwatch", **options))
        return made[0]

    yield begin
    for each in made:
        each.writers[0].answers.set()
        each.recorder.end()


def samples_in(path: Path) -> list[Sample]:
    with Recording(path) as recording:
        return list(recording.samples(recording.start_ns, recording.end_ns))


def test_what_comes_while_the_disk_hangs_is_recorded_once_it_answers(
    begin: Callable[..., Begun], tmp_path: Path
) -> None:
    begun = begin()
    assert begun.writers[0].asked.wait(PATIENCE_SECONDS)
    for second in range(5):
        begun.recorder.feed([poll(second, utilization_percent=float(second))])
    assert begun.timeline.gpus["GPU-0"].polls.times
    begun.writers[0].answers.set()
    ended = begun.recorder.end()
    assert ended is not None and (ended.problem, ended.is_over) == (None, False)
    polls = [sample for sample in samples_in(tmp_path / "run.gpuwatch") if isinstance(sample, GpuSample)]
    assert [sample.utilization_percent for sample in polls] == [0, 1, 2, 3, 4]


def test_what_no_longer_fits_is_lost_and_the_file_says_how_much(begin: Callable[..., Begun], tmp_path: Path) -> None:
    begun = begin()
    begun.recorder.feed([poll(0)] * (MOST_HELD + 1))
    begun.recorder.feed([gpu_facts(), run_facts(), poll(1)])
    begun.writers[0].answers.set()
    while not begun.writers[0].told_loss.wait(0.01):
        begun.recorder.feed([poll(2)])
    ended = begun.recorder.end()
    assert ended is not None and "samples are missing: the disk did not answer" in (ended.problem or "")
    found = samples_in(tmp_path / "run.gpuwatch")
    (loss,) = [sample for sample in found if isinstance(sample, LinkLoss)]
    assert loss.dropped >= 3
    assert any(isinstance(sample, RunFacts) for sample in found)  # told in the gap, and told again behind it


def test_a_disk_that_never_answers_holds_up_no_end(begin: Callable[..., Begun]) -> None:
    begun = begin(close_seconds=0.05)
    assert begun.writers[0].asked.wait(PATIENCE_SECONDS)
    ended = begun.recorder.end()
    assert ended is not None and "does not answer" in (ended.problem or "")
    assert begun.recorder.end() is None


def test_a_silent_disk_is_reported_while_it_is_silent(tmp_path: Path) -> None:
    writer = HangingWriter(tmp_path / "run.gpuwatch", RecordingMeta("node", "0"))
    now = [0.0]
    thread = WriterThread(writer, own_thread=True, clock=lambda: now[0])
    thread.put(0, 1, lambda writer: writer.add([poll(0)], 1, 0.0))
    assert writer.asked.wait(PATIENCE_SECONDS)
    assert not thread.is_stuck
    now[0] = 10.0
    assert thread.is_stuck
    writer.answers.set()
    assert thread.close(PATIENCE_SECONDS)
    assert not thread.is_stuck
