"""Writes a recording as samples come: each second into the file's tail, each minute as columns and its figures.

Nothing that the disk does reaches the caller: what cannot be written waits in a bounded space and is tried again.
Only where the file itself is gone there is nothing to wait for, and the recording has ended. What changes rarely has
rows of its own: facts and events, which outlive the samples, and stretches of findings.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuwatch.recording.chunks import EVENT_KINDS, KINDS, Gathering
from gpuwatch.recording.columns import DamagedError, pack, pack_list
from gpuwatch.recording.file import (
    Connect,
    FilesystemOf,
    LostFileError,
    Store,
    StoreError,
    copy_back,
    filesystem_of,
    place_for,
    size_of,
)
from gpuwatch.recording.minutes import Minutes
from gpuwatch.recording.rollups import HOUR_NS, pack_hour, pack_minute, unpack_minute
from gpuwatch.recording.schema import CHUNK_BITS, FindingRecord, Operation, RecordingMeta, checksum, meta_row
from gpuwatch.samples import (
    Candidates,
    GpuFacts,
    GpuLost,
    GpuSample,
    MachineFacts,
    PhaseSpan,
    RunFacts,
    Sample,
    TrainerEnded,
)
from gpuwatch.timeline.columns import MINUTE_NS
from gpuwatch.timeline.times import WallTimes

_MOST_KNOWN = 4_096
_MOST_A_MINUTE = 500  # a hostile trainer's phases are in the samples still
_KINDS = frozenset(EVENT_KINDS)
_FREQUENT = ("gc", "user")  # phases that every step may have
_REPEATED = frozenset({GpuFacts, MachineFacts, RunFacts, Candidates})  # written when they say something new


class Events:
    """Picks from the samples what is an event."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], object] = {}
        self._lost: set[str] = set()
        self._room = _MOST_A_MINUTE

    def begin_minute(self) -> None:
        """There is room again."""
        self._room = _MOST_A_MINUTE

    def of(self, samples: Iterable[Sample], time_ns: int) -> Sequence[Operation]:
        """What to write for samples that came at a time; mostly nothing."""
        if not self._lost and _KINDS.isdisjoint(map(type, samples)):
            return ()
        return [operation for sample in samples for operation in self._of(sample, time_ns)]

    def _of(self, sample: Sample, time_ns: int) -> Iterator[Operation]:
        cls = type(sample)
        if isinstance(sample, GpuSample):
            if sample.uuid in self._lost:
                yield self._found_again(sample.uuid, time_ns)
            return
        if cls not in _KINDS or (isinstance(sample, PhaseSpan) and sample.kind in _FREQUENT):
            return
        kind = KINDS[cls]
        subject = kind.subject(kind.row(sample))
        if isinstance(sample, TrainerEnded):
            self._known.pop((RunFacts, subject), None)  # 4 kB each, of trainings that come by the hundred
        if not self._room or (cls in _REPEATED and self._is_known(cls, subject, sample)):
            return
        self._room -= 1
        if isinstance(sample, GpuLost):
            self._lost.add(subject)
        values = (time_ns, kind.name, printable(subject), json.dumps(asdict(sample), default=dict))
        yield (
            "INSERT INTO event (time_ns, kind, subject, json, crc) VALUES (?, ?, ?, ?, ?)",
            (*values, checksum(values)),
        )

    def _found_again(self, uuid: str, time_ns: int) -> Operation:
        self._lost.discard(uuid)
        statement = "UPDATE event SET until_ns = ? WHERE kind = 'GpuLost' AND subject = ? AND until_ns IS NULL"
        return statement, (time_ns, printable(uuid))

    def _is_known(self, cls: type, subject: str, sample: Sample) -> bool:
        content: Any = {name: value for name, value in asdict(sample).items() if name != "time_ns"}
        if isinstance(sample, Candidates):
            content = {(each.pid, each.start_ticks, each.visibility, each.refusal) for each in sample.processes}
        if self._known.get((cls, subject)) == content:
            return True
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[cls, subject] = content
        return False


def printable(text: str) -> str:
    """A string that SQLite takes: bytes that are no UTF-8 are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_WORDS_NS = 60_000_000_000


@dataclass(slots=True)
class _Stretch:
    number: int
    start_ns: int
    record: FindingRecord
    written_ns: int


class Findings:
    """The findings that are open."""

    def __init__(self) -> None:
        self._open: dict[str, _Stretch] = {}
        self._count = 0

    def take(self, now_ns: int, records: Sequence[FindingRecord]) -> Iterator[Operation]:
        """What to write after an evaluation."""
        present = {record.key for record in records}
        for key in [key for key in self._open if key not in present]:
            yield _row(self._open.pop(key), now_ns)
        for record in records:
            stretch = self._open.get(record.key)
            if stretch is not None:
                before = stretch.record
                if (before.state, before.severity) == (record.state, record.severity):
                    stretch.record = record
                    if record.blob != before.blob and now_ns - stretch.written_ns >= _WORDS_NS:
                        stretch.written_ns = now_ns
                        yield _row(stretch, None)
                    continue
                yield _row(stretch, now_ns)
            self._count += 1
            self._open[record.key] = _Stretch(self._count, now_ns, record, now_ns)
            yield _row(self._open[record.key], None)

    def last_words(self) -> Iterator[Operation]:
        """What to write at the end: the open ones as they are."""
        for stretch in self._open.values():
            yield _row(stretch, None)


def _row(stretch: _Stretch, end_ns: int | None) -> Operation:
    record = stretch.record
    values = (
        stretch.number,
        printable(record.key),
        stretch.start_ns,
        end_ns,
        record.state,
        record.rule,
        record.severity,
        None if record.run is None else printable(record.run),
        None if record.gpu is None else printable(record.gpu),
        record.blob,
    )
    return "INSERT OR REPLACE INTO finding VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, checksum(values))


_NUMBERS: dict[type, int] = {cls: kind.number for cls, kind in KINDS.items()}
_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {cls: kind.row for cls, kind in KINDS.items()}


class Segment:
    """The samples of one minute, or of a part of one in which very much came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.start_ns = 0
        self.end_ns = 0
        self.bytes = 0  # of what would go into the file
        self.unsaved_samples = 0
        self.refused = 0
        self._row: list[bytes] = []
        self._row_start_ns = 0
        self._gathering: Gathering | None = Gathering()
        self.unsaved: list[Operation] = []  # to be written to the tail
        self.sealed: list[Operation] = []  # which replaces the tail's rows

    def add(self, time_ns: int, samples: Sequence[Sample]) -> None:
        """Samples that came at once.

        They are taken apart at once: a second later the processor has to fetch them again, which takes three times as
        long.
        """
        assert self._gathering is not None
        rows = [(_NUMBERS[type(sample)], _VALUES[type(sample)](sample)) for sample in samples]
        try:
            data = pack((time_ns, rows))
        except (TypeError, OverflowError):
            count = len(rows)
            rows = [row for row in rows if _packs(row)]
            self.refused += count - len(rows)
            data = pack((time_ns, rows))
        self._gathering.add(time_ns, rows)
        self.unsaved_samples += len(rows)
        self.start_ns = self.start_ns or time_ns
        self.end_ns = time_ns
        self._row_start_ns = self._row_start_ns or time_ns
        self._row.append(data)

    def end_row(self) -> None:
        """What has come since the last one is a row of the tail."""
        if not self._row:
            return
        data = pack_list(self._row)
        self.bytes += len(data)
        self.unsaved.append(
            (
                "INSERT INTO tail (segment, start_ns, end_ns, data, crc) VALUES (?, ?, ?, ?, ?)",
                (self.number, self._row_start_ns, self.end_ns, data, zlib.crc32(data)),
            )
        )
        self._row, self._row_start_ns = [], 0

    def saved(self) -> None:
        """Notes that what was unsaved is written."""
        self.unsaved, self.unsaved_samples = [], 0

    def seal(self, minutes: Minutes) -> None:
        """Turns the rows into columns, and lets go of them: one stream after the other, whose values are then near."""
        assert self._gathering is not None
        arrivals = self._gathering.arrivals().packed()
        chunks: list[tuple[int, str, int, int, bytes]] = []
        for stream in self._gathering.streams():
            minutes.take(stream)
            data = stream.packed()
            chunks.append((stream.kind.number, printable(stream.subject), len(stream.places), zlib.crc32(data), data))
        self.bytes = len(arrivals) + sum(len(chunk[-1]) for chunk in chunks)
        head = (self.number, self.start_ns, self.end_ns, self.bytes, arrivals, zlib.crc32(arrivals))
        first = self.number << CHUNK_BITS
        self.sealed = [
            ("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?)", head),
            *(
                ("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)", (first + place, *chunk))
                for place, chunk in enumerate(chunks)
            ),
            ("DELETE FROM tail WHERE segment = ?", (self.number,)),
        ]
        self._gathering, self.unsaved = None, []


def _packs(value: object) -> bool:
    try:
        pack(value)
    except (TypeError, OverflowError):
        return False
    return True


FLUSH_NS = 900_000_000
"""Less than a second, so that batches that come once a second are each written when they come."""
_MOST_WAITING_BYTES = 8 << 20
_SEALED_AT_BYTES = 4 << 20
_MOST_NOTES = 5_000
_MOST_GAPS = 100
_INSERT_MINUTE = "INSERT OR REPLACE INTO rollup_1m VALUES (?, ?, ?)"


class RecordingWriter:
    """One recording that is being written. Any thread may call it.

    Args:
        path: of the file, which must not hold anything yet.
        meta: what it is a recording of.
        max_bytes: the oldest samples are dropped beyond it; minutes, events and findings are kept.
        filesystem: gives the type that a folder lies on.
        temp_folders: of this machine, for a recording that is to end up on a network's file system.
        connect: opens the file.
        moment: a wall time as text, for messages.

    Raises:
        CannotRecordError: nothing can be written there. A full disk is no such case: it may have room again.
    """

    def __init__(
        self,
        path: Path,
        meta: RecordingMeta,
        *,
        max_bytes: int | None = None,
        filesystem: FilesystemOf = filesystem_of,
        temp_folders: Sequence[Path] | None = None,
        connect: Connect = sqlite3.connect,
        moment: Callable[[float], str] = lambda wall_time: time.strftime("%H:%M", time.localtime(wall_time)),
    ) -> None:
        self._place = place_for(path, filesystem, temp_folders)
        self._store = Store(self._place, max_bytes=max_bytes, connect=connect)
        self._meta = meta
        self._moment = moment
        self._lock = threading.Lock()
        self._events = Events()
        self._findings = Findings()
        self._minutes = Minutes()
        self._notes: deque[Operation] = deque(_meta_rows(meta), maxlen=_MOST_NOTES)
        self._segment: Segment | None = None
        self._waiting: deque[Segment] = deque()
        self._segments = 0
        self._anchors = 0
        self._largest_tail = 0
        self._minute_ns: int | None = None
        self._flushed_ns: int | None = None
        self._now_ns = 0
        self._wall_time = meta.started_wall
        self._wall_times = WallTimes()
        self._failed_wall: float | None = None
        self._failure = ""
        self._lost = 0
        self._refused = 0
        self._gaps: list[dict[str, object]] = []
        self._closed = False
        self._home = path
        self.problem: str | None = None
        self.is_lost = False
        """Whether somebody has removed, replaced or emptied the file: nothing more is recorded."""
        self._write()

    @property
    def path(self) -> Path:
        """Where it really writes: on a network's file system, a local copy while recording."""
        return self._place.path if not self._closed or self._place.home is None else self._home

    @property
    def note(self) -> str | None:
        """What is unusual about the place."""
        return self._store.note

    @property
    def bytes_written(self) -> int:
        """The size of the file by now."""
        return self._store.bytes if self.path == self._store.path else size_of(self.path)

    def add(self, samples: Iterable[Sample], now_ns: int, wall_time: float) -> None:
        """Takes samples that came at `now_ns`."""
        with self._lock:
            if self._closed:
                return
            now_ns = max(now_ns, self._now_ns)
            self._note_time(now_ns, wall_time)
            self._turn_minute(now_ns // MINUTE_NS * MINUTE_NS)
            batch = samples if isinstance(samples, (list, tuple)) else list(samples)
            if batch:
                if self._segment is None:
                    self._segments += 1
                    self._segment = Segment(self._segments)
                self._segment.add(now_ns, batch)
                self._notes.extend(self._events.of(batch, now_ns))
            if self._flushed_ns is None or now_ns - self._flushed_ns >= FLUSH_NS:
                self._flushed_ns = now_ns
                self._flush()

    def add_findings(self, now_ns: int, findings: Sequence[FindingRecord]) -> None:
        """Takes the findings as they stand after an evaluation; written with the next second."""
        with self._lock:
            if not self._closed:
                self._notes.extend(self._findings.take(now_ns, findings))

    def close(self) -> None:
        """Ends the recording: everything in its place, in one file. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._turn_minute(None)
            self._notes.extend(self._findings.last_words())
            if self._refused:
                self._notes.append(meta_row("refused", self._refused))
            self._notes.append(meta_row("ended", True))
            self._flush()
            if self.is_lost:
                return
            if self._failed_wall is not None:
                since = self._moment(self._failed_wall)
                self.problem = f"recording stopped at {since}: {self._failure}; later samples are missing"
            self._store.close()
            self._home = self._place.path
            if self._place.home is not None:
                self._home, problem = copy_back(self._place.path, self._place.home)
                self.problem = problem or self.problem
            self._closed = True

    def _note_time(self, now_ns: int, wall_time: float) -> None:
        """Keeps an anchor at the start, and where the wall clock is not where the monotonic one would have it."""
        self._now_ns, self._wall_time = now_ns, wall_time
        known = self._wall_times.anchors
        self._wall_times.see(now_ns, wall_time)
        if self._wall_times.anchors is not known:
            values = (self._anchors, *self._wall_times.anchors[-1])
            self._anchors += 1
            self._notes.append(("INSERT OR REPLACE INTO anchor VALUES (?, ?, ?, ?)", (*values, checksum(values))))

    def _turn_minute(self, minute_ns: int | None) -> None:
        """Seals the minute that is over, if one is; None: whichever it is."""
        if minute_ns == self._minute_ns:
            return
        if self._minute_ns is not None:
            self._flush()
            self._seal()
            rows = self._minutes.finished(self._minute_ns)
            if rows:
                rollup = pack_minute(rows)
                values = (self._minute_ns, rollup, zlib.crc32(rollup))
                self._notes.append((_INSERT_MINUTE, values))
            hour_ns = self._minute_ns // HOUR_NS * HOUR_NS
            if minute_ns is not None and minute_ns // HOUR_NS * HOUR_NS != hour_ns:
                self._end_hour(hour_ns)
            self._events.begin_minute()
            self._write()
        self._minute_ns = minute_ns

    def _end_hour(self, hour_ns: int) -> None:
        """Puts the hour's minutes together, as they are in the file or wait for it: kept for it, they took 10 MB."""
        end_ns = hour_ns + HOUR_NS
        with suppress(StoreError, DamagedError):  # reports then read the minutes
            packed: dict[Any, Any] = {at_ns: row for at_ns, *row in self._store.minutes(hour_ns, end_ns)}
            packed |= {values[0]: values[1:] for statement, values in self._notes if statement == _INSERT_MINUTE}
            in_order = sorted(minute_ns for minute_ns in packed if hour_ns <= minute_ns < end_ns)
            hour = pack_hour(hour_ns, (unpack_minute(at_ns, *packed[at_ns]) for at_ns in in_order))
            if hour is not None:
                self._notes.append(("INSERT OR REPLACE INTO rollup_1h VALUES (?, ?)", (hour_ns, hour)))

    def _flush(self) -> None:
        """Writes what has come, and what has been waiting."""
        if self._segment is not None:
            self._segment.end_row()
        self._write()
        if self._segment is not None and self._segment.bytes >= _SEALED_AT_BYTES:
            self._seal()
            self._write()
        self._let_go()

    def _write(self) -> None:
        """One transaction for what is sealed, so that its figures and its samples come together; one for the rest."""
        if self.is_lost:
            return
        try:
            if self._waiting:
                self._store.write([*self._notes, *(each for segment in self._waiting for each in segment.sealed)])
                self._notes.clear()
                self._waiting.clear()
                self._store.trim(self._largest_tail)
                self._store.checkpoint()
            rows = self._segment.unsaved if self._segment is not None else []
            if rows or self._notes:
                self._store.write([*self._notes, *rows])
                self._notes.clear()
                if self._segment is not None:
                    self._segment.saved()
        except LostFileError as error:
            self._has_lost(error)
        except StoreError as error:
            self._has_failed(error)
        else:
            self._has_succeeded()

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            self._refused += segment.refused
            self._largest_tail = max(self._largest_tail, segment.bytes)
            segment.seal(self._minutes)
            self._waiting.append(segment)

    def _let_go(self) -> None:
        """Drops the oldest of what waits for room on the disk."""
        while sum(segment.bytes for segment in self._waiting) > _MOST_WAITING_BYTES:
            self._lost += self._waiting.popleft().unsaved_samples

    def _has_failed(self, error: StoreError) -> None:
        if self._failed_wall is None:
            self._failed_wall = self._wall_time
        self._failure = str(error)
        since = self._moment(self._failed_wall)
        folder = self._place.path.absolute().parent
        self.problem = f"recording stopped at {since}: {error} on {folder}; it resumes when there is room"
        if "no space" not in str(error):
            self.problem = f"recording stopped at {since}: {error} in {folder}; it resumes when that is fixed"

    def _has_lost(self, error: LostFileError) -> None:
        """A file that was removed stays removed: nothing is put in its place."""
        since = self._moment(self._wall_time)
        self.problem = f"recording ended at {since}: {error} while it was written; start a new one"
        self._closed = self.is_lost = True
        self._waiting.clear()
        self._segment = None
        self._store.abandon()

    def _has_succeeded(self) -> None:
        """Notes the gap behind it, in the file too."""
        if self._failed_wall is None:
            self._say_refused()
            return
        gap = {"from": self._failed_wall, "to": self._wall_time, "lost": self._lost, "why": self._failure}
        self._gaps = [*self._gaps[-_MOST_GAPS + 1 :], gap]
        self._failed_wall, self._lost, self.problem = None, 0, None
        self._notes.append(meta_row("gaps", self._gaps))

    def _say_refused(self) -> None:
        if self._refused and self.problem is None:
            self.problem = f"{self._refused} samples hold numbers beyond 64 bits and were not recorded"


def _meta_rows(meta: RecordingMeta) -> list[Operation]:
    values = {**asdict(meta), "ended": False, "problem": None}
    return [meta_row(key, value) for key, value in values.items()]
