"""Reads a recording: while it is written, after it was closed, after a kill, and what is left of a damaged one.

`_Contents` queries the file and notes what is damaged, `Recording` is what the rest of gpuwatch sees.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from gpuwatch.recording.chunks import Arrivals, KindReader, fitting, gathered, samples_of_chunk, samples_of_row
from gpuwatch.recording.columns import DamagedError, check_of, revived
from gpuwatch.recording.file import open_recording
from gpuwatch.recording.minutes import Minutes
from gpuwatch.recording.rollups import HOUR_NS, Hour, MinuteColumns, Part, parts_of, unpack_minute
from gpuwatch.recording.schema import CHUNK_BITS, CannotOpenError, FindingSpan, RecordingMeta, Rollup, checksum
from gpuwatch.samples import (
    BatchCount,
    CurrentLine,
    GpuFacts,
    GpuHealth,
    GpuStatus,
    NvmlState,
    PhaseSpan,
    RunMemory,
    Sample,
    XidEvent,
)
from gpuwatch.timeline.columns import MINUTE_NS, SECOND_NS
from gpuwatch.timeline.times import Anchor, wall_time_at

_LAST_WALL_TIME = 253_402_300_800.0
"""The year 10,000, which no calendar here knows."""
_LEAST_INTERVAL = 0.01
_FIRST_TIME = -(2**62)
_LAST_TIME = 2**62
_SEGMENT_NS = MINUTE_NS  # a segment ends with its minute
_MOST_A_MINUTE = 64  # one is sealed before its minute ends where more than 4 MB came, once a second at most
_LONGEST_NS = 366 * 24 * 3600 * SECOND_NS
_MALFORMED = (DamagedError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
_MANY_STRETCHES = 8
"""Of time, beyond which it is asked first which of them hold the kinds that are wanted."""
_RECENT_NS = 120 * SECOND_NS
_RECENT = (NvmlState, GpuStatus, GpuHealth, BatchCount, RunMemory, CurrentLine)
"""Reported every 30 s at least, so the last two minutes hold the newest."""
_SPAN = re.compile(r'"kind": "(\w+)", "start_ns": (-?\d+), "end_ns": (null|-?\d+)')

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A segment, sealed or open, and the arrivals of its first and last sample."""

    number: int
    start_ns: int
    end_ns: int


class _Contents:
    """Queries. Each one sees the file as it is then.

    Raises:
        CannotOpenError: it is no recording that can be read.
    """

    def __init__(self, path: Path) -> None:
        self._opened = open_recording(path)
        self._lock = threading.RLock()
        self.damaged: set[str] = {"its end"} if self._opened.is_cut_off else set()
        self._has_hours = bool(self.rows("its index", "SELECT 1 FROM sqlite_master WHERE name = 'rollup_1h'"))

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._opened.close()

    def rows(self, what: str, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query up to the first that cannot be read."""
        found: list[tuple[Any, ...]] = []
        with self._lock:
            try:
                for row in self._opened.rows(statement, values):
                    found.append(row)  # noqa: PERF402 - what came before an error counts
            except (sqlite3.DatabaseError, CannotOpenError, OverflowError):
                self.damaged.add(what)
        return found

    def checked_rows(self, what: str, statement: str) -> Iterator[tuple[Any, ...]]:
        """As `rows`, of rows that end with their checksum."""
        return (row[:-1] for row in self.rows(what, statement) if self.is_intact(row, what))

    def is_intact(self, row: Sequence[Any], what: str) -> bool:
        """Whether a row's last value is the checksum of the others."""
        if checksum(row[:-1]) == row[-1]:
            return True
        self.damaged.add(what)
        return False

    def meta(self) -> dict[str, Any]:
        """What the file says of itself; "" of what cannot be read."""
        found = {}
        for key, value in self.checked_rows("its head", "SELECT key, value, crc FROM meta"):
            with self.noting("its head"):
                found[key] = json.loads(value)
        return found

    def kinds(self) -> dict[int, KindReader]:
        """The kinds of samples in it, by number."""
        found = {}
        for number, _, shape in self.checked_rows("its kinds", "SELECT id, name, shape, crc FROM kind"):
            with self.noting("its kinds"):
                found[number] = KindReader(shape)
        return found

    def anchors(self) -> tuple[Anchor, ...]:
        """Wall times at monotonic times, oldest first."""
        rows = self.checked_rows("its clock", "SELECT id, time_ns, wall_time, crc FROM anchor ORDER BY id")
        return tuple(
            (time_ns, wall_time)
            for _, time_ns, wall_time in rows
            if isinstance(time_ns, int)
            and 0 <= time_ns < _LAST_TIME
            and isinstance(wall_time, float)
            and 0 <= wall_time < _LAST_WALL_TIME
        )

    def stretches(self) -> list[_Stretch]:
        """The segments in order."""
        sealed = self.rows("its index", "SELECT id, start_ns, end_ns FROM segment WHERE length(data) > 8 ORDER BY id")
        tail = self.rows(
            "its tail", "SELECT segment, min(start_ns), max(end_ns) FROM tail GROUP BY segment ORDER BY segment"
        )
        found = {row[0]: _Stretch(*row) for row in (*tail, *sealed) if _is_stretch(row)}
        in_order = sorted(found.values(), key=lambda stretch: stretch.number)
        kept: list[_Stretch] = []
        for stretch in in_order:
            is_next = not kept or kept[-1].end_ns <= stretch.start_ns <= kept[0].start_ns + _LONGEST_NS
            is_crowded = len(kept) >= _MOST_A_MINUTE and stretch.end_ns - kept[-_MOST_A_MINUTE].start_ns < _SEGMENT_NS
            if is_next and not is_crowded:
                kept.append(stretch)
        if len(kept) < len({*(row[0] for row in tail), *(row[0] for row in sealed)}):
            self.damaged.add("its index")
        return kept

    def samples(
        self,
        number: int,
        start_ns: int,
        end_ns: int,
        kinds: Mapping[int, KindReader],
    ) -> list[tuple[int, Sample]]:
        """The samples of one segment that came in (start, end], in the order in which they came, and when."""
        what = f"segment {number}"
        with self._lock:
            self._transaction("BEGIN")
            try:
                head = self.rows(what, "SELECT data, crc FROM segment WHERE id = ?", (number,))
                if head:
                    return self._sealed(number, head[0], (start_ns, end_ns), kinds)
                tail = self.rows(what, "SELECT data, crc FROM tail WHERE segment = ? ORDER BY id", (number,))
            finally:
                self._transaction("COMMIT")
        return self._open(what, tail, (start_ns, end_ns), kinds)

    def hours(self, start_ns: int, end_ns: int) -> list[tuple[int, Any]]:
        """The hours that may touch (start, end], in order."""
        if not self._has_hours:
            return []
        statement = "SELECT hour_ns, data FROM rollup_1h WHERE hour_ns > ? AND hour_ns <= ? ORDER BY hour_ns"
        return self.rows("its hours", statement, (max(_FIRST_TIME, start_ns - HOUR_NS), min(-_FIRST_TIME, end_ns)))

    def minutes(self, first_ns: int, last_ns: int) -> list[tuple[int, Any, Any]]:
        """The minutes that began in [first, last], in order."""
        statement = (
            "SELECT minute_ns, data, crc FROM rollup_1m WHERE minute_ns >= ? AND minute_ns <= ? ORDER BY minute_ns"
        )
        return self.rows("its minutes", statement, (max(_FIRST_TIME, first_ns), min(-_FIRST_TIME, last_ns)))

    def segments_with(self, kinds: Collection[int], first: int, last: int) -> set[int] | None:
        """The segments from `first` to `last` that may hold any of these kinds; None where that is not known."""
        number = f"id >> {CHUNK_BITS}"
        known = ", ".join(str(int(kind)) for kind in kinds)
        statement = f"SELECT DISTINCT {number} FROM chunk WHERE id >= ? AND id < ? AND kind IN ({known})"
        with self._lock:
            before = set(self.damaged)
            self._transaction("BEGIN")  # a segment that is sealed meanwhile is in one of the two
            try:
                found = self.rows("its index", statement, (first << CHUNK_BITS, last + 1 << CHUNK_BITS))
                found += self.rows("its tail", "SELECT DISTINCT segment FROM tail")
            finally:
                self._transaction("COMMIT")
            return None if self.damaged != before else {row[0] for row in found}

    def tail_rows(self) -> list[bytes]:
        """The rows of segments that are not sealed."""
        rows = self.rows("its tail", "SELECT data, crc FROM tail WHERE segment NOT IN (SELECT id FROM segment)")
        return [data for data, crc in rows if isinstance(data, bytes) and zlib.crc32(data) == crc]

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Goes on behind a part that is not what was written."""
        try:
            yield
        except _MALFORMED:
            self.damaged.add(what)

    def _transaction(self, statement: str) -> None:
        try:
            self._opened.connection.execute(statement)
        except sqlite3.DatabaseError:
            self.damaged.add("its pages")

    def _sealed(
        self,
        number: int,
        head: tuple[Any, ...],
        span: tuple[int, int],
        kinds: Mapping[int, KindReader],
    ) -> list[tuple[int, Sample]]:
        what = f"segment {number}"
        first = number << CHUNK_BITS
        chunks = self.rows(
            what,
            "SELECT kind, count, data, crc FROM chunk WHERE id >= ? AND id < ? AND kind IN "
            f"({', '.join(str(int(kind)) for kind in kinds)})",
            (first, first + (1 << CHUNK_BITS)),
        )
        if not chunks:
            return []
        try:
            arrivals = Arrivals.unpacked(_intact(*head))
            places = arrivals.places(*span)
        except _MALFORMED:
            self.damaged.add(what)
            return []
        found: dict[int, Sample] = {}
        for kind, count, data, crc in chunks:
            with self.noting(what):
                found.update(samples_of_chunk(kinds[kind], count, _intact(data, crc), places))
        in_order = sorted(place for place in found if place in places)
        return self._fitting(what, list(zip(arrivals.of(in_order), map(found.__getitem__, in_order), strict=True)))

    def _open(
        self,
        what: str,
        rows: Sequence[tuple[Any, ...]],
        span: tuple[int, int],
        kinds: Mapping[int, KindReader],
    ) -> list[tuple[int, Sample]]:
        found: list[tuple[int, Sample]] = []
        for row in rows:
            with self.noting(what):
                for time_ns, sample in samples_of_row(kinds, _intact(*row)):
                    if span[0] < time_ns <= span[1]:
                        found.append((time_ns, sample))
        return self._fitting(what, found)

    def _fitting(self, what: str, found: Sequence[tuple[int, Sample]]) -> list[tuple[int, Sample]]:
        fit = fitting(found)
        if len(fit) < len(found):
            self.damaged.add(what)
        return list(fit)


def _is_stretch(row: Sequence[Any]) -> bool:
    """Whether a row of the index is a minute that a recorder can have written."""
    if not all(isinstance(value, int) for value in row):
        return False
    number, start_ns, end_ns = row
    in_bounds = 0 <= number < _LAST_TIME >> CHUNK_BITS and 0 <= start_ns <= end_ns < _LAST_TIME
    return bool(in_bounds and end_ns - start_ns <= _SEGMENT_NS)


def _intact(data: object, crc: object) -> bytes:
    if not isinstance(data, bytes) or zlib.crc32(data) != crc:
        raise DamagedError("the checksum does not match")
    return data


class Recording:
    """A recording that is open for reading, from any thread. Also a context manager.

    Times are CLOCK_MONOTONIC of the machine it was made on. A sample belongs to the moment when it reached the
    recorder: what a replay at that moment must know, be it of a step that ended before.

    Args:
        path: of the file.
        moment: a wall time as text, for messages.

    Raises:
        CannotOpenError: it cannot be read; one sentence with cause and cure.
    """

    def __init__(
        self,
        path: Path,
        *,
        moment: Callable[[float], str] = lambda wall_time: time.strftime("%H:%M", time.localtime(wall_time)),
    ) -> None:
        self.path = path
        self._moment = moment
        self._contents = _Contents(path)
        self._kinds = self._contents.kinds()
        self.wall_anchors: tuple[Anchor, ...] = ()
        self._stretches: list[_Stretch] = []
        self.start_ns = 0
        self.end_ns = 0
        self.refresh()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._contents.close()

    def refresh(self) -> None:
        """Takes note of what was written since."""
        self._head = self._contents.meta()
        self._stretches = self._contents.stretches()
        self.wall_anchors = self._contents.anchors() or self.wall_anchors or self._first_anchor()
        self.start_ns = self.wall_anchors[0][0] - 1  # so that (start, end] is everything
        self.end_ns = max([self.start_ns, *(each.end_ns for each in self._stretches)])

    @property
    def meta(self) -> RecordingMeta:
        """What it is a recording of, and what is missing of it as far as that has been seen by now."""
        command, pid = self._head.get("command"), self._head.get("attached_pid")
        return RecordingMeta(
            hostname=str(self._head.get("hostname", "")),
            version=str(self._head.get("version", "")),
            label=str(self._head.get("label", "")),
            command=tuple(map(str, command)) if isinstance(command, list) else (),
            attached_pid=pid if isinstance(pid, int) else None,
            interval_seconds=max(_LEAST_INTERVAL, _number(self._head.get("interval_seconds"), 1.0)),
            started_wall=_number(self._head.get("started_wall"), 0.0),
            ended=self._head.get("ended") is True,
            problem="; ".join(self._problems()) or None,
        )

    def wall_time(self, time_ns: int) -> float:
        """The wall clock at a moment, its jumps included, as time.time() gives it."""
        return wall_time_at(self.wall_anchors, time_ns)

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Every GPU that was seen, as last described, by index."""
        rows = (row for row in self._event_rows(self.end_ns) if row[1] == GpuFacts.__name__)
        found = (sample for sample, _ in self._events(rows) if isinstance(sample, GpuFacts))
        newest = {sample.uuid: sample for sample in found}
        return tuple(sorted(newest.values(), key=lambda facts: facts.place))

    def samples(
        self,
        start_ns: int,
        end_ns: int,
        *,
        kinds: Collection[type] | None = None,
    ) -> Iterator[Sample]:
        """The samples that came in (start, end], in the order in which they came.

        They equal what was recorded, but for floats with more than nine decimals that are no counters: these have
        single precision (6e-8) once their minute is over.

        Args:
            start_ns: before the first.
            end_ns: of the last.
            kinds: the classes that are wanted; None for all.
        """
        return (sample for _, sample in self.arrivals(start_ns, end_ns, kinds=kinds))

    def arrivals(
        self,
        start_ns: int,
        end_ns: int,
        *,
        kinds: Collection[type] | None = None,
    ) -> Iterator[tuple[int, Sample]]:
        """The same, each with the moment at which it came."""
        names = None if kinds is None else {kind.__name__ for kind in kinds}
        wanted = {
            number: kind
            for number, kind in self._kinds.items()
            if kind.is_known and (names is None or kind.name in names)
        }
        touched = [each for each in self._stretches if each.end_ns > start_ns and each.start_ns <= end_ns]
        holding = None
        if kinds is not None and len(touched) > _MANY_STRETCHES:
            holding = self._contents.segments_with(wanted, touched[0].number, touched[-1].number)
        for stretch in touched:
            if holding is None or stretch.number in holding:
                yield from self._contents.samples(stretch.number, start_ns, end_ns, wanted)

    def facts_at(self, time_ns: int) -> list[Sample]:
        """What was reported once, or last, at or before a moment: what a timeline needs before the samples after it."""
        found: dict[object, Sample] = {}
        for sample, until_ns in self._events(_without_ended(self._event_rows(time_ns))):
            key = _key(sample)
            found.pop(key, None)
            is_over = until_ns is not None and until_ns <= time_ns
            if is_over or (isinstance(sample, PhaseSpan) and sample.end_ns is not None):
                continue
            found[key] = sample
        for sample in self.samples(time_ns - _RECENT_NS, time_ns, kinds=_RECENT):
            found.pop(_key(sample), None)
            found[_key(sample)] = sample
        return list(found.values())

    def findings(self, start_ns: int, end_ns: int) -> list[FindingSpan]:
        """The stretches of findings that touch [start, end], in the order of their beginning."""
        columns = "id, key, start_ns, end_ns, state, rule, severity, run, gpu, blob, crc"
        rows = self._contents.checked_rows("its findings", f"SELECT {columns} FROM finding ORDER BY id")
        found = [FindingSpan(*(*row[2:-1], row[1], row[-1])) for row in rows]
        is_span = check_of(FindingSpan)
        good = [span for span in found if is_span((span,))]
        if len(good) < len(found):
            self._contents.damaged.add("its findings")
        return [span for span in good if span.start_ns <= end_ns and (span.end_ns is None or span.end_ns >= start_ns)]

    def rollups(
        self,
        start_ns: int,
        end_ns: int,
        *,
        metrics: Collection[str] | None = None,
    ) -> list[Rollup]:
        """The figures of each minute that touches (start, end], the last one as far as it goes. See `schema`."""
        parts, rows = self._parts(start_ns, end_ns, metrics)
        found = [
            row
            for (subject, metric), own in parts.items()
            for part in own
            for row in MinuteColumns([part]).rows(subject, metric)
        ]
        return sorted(found + rows, key=itemgetter(0))

    def minutes(
        self,
        start_ns: int,
        end_ns: int,
        *,
        metrics: Collection[str] | None = None,
    ) -> dict[tuple[str, str], MinuteColumns]:
        """The same by subject and metric, as columns that are decoded when they are asked for: ten times as fast."""
        parts, rows = self._parts(start_ns, end_ns, metrics)
        loose: dict[tuple[str, str], list[Rollup]] = {}
        for row in rows:
            loose.setdefault((row.subject, row.metric), []).append(row)
        for key, own in loose.items():
            parts[key] = sorted((*parts.get(key, ()), *parts_of(own)), key=lambda part: part.column("minute_ns")[0])
        return {key: MinuteColumns(own) for key, own in parts.items()}

    def _problems(self) -> Iterator[str]:
        """What is missing of it, in words."""
        from_ns, gaps, refused = (self._head.get(name) for name in ("samples_from_ns", "gaps", "refused"))
        if isinstance(from_ns, int):
            yield (
                f"samples before {self._moment(self.wall_time(from_ns))} were dropped to stay below its maximum "
                "size; the figures of each minute are kept"
            )
        for gap in gaps if isinstance(gaps, list) else ():
            if isinstance(gap, dict) and gap.get("lost"):
                since, until = (self._moment(_number(gap.get(name), 0.0)) for name in ("from", "to"))
                yield f"{gap['lost']} samples are missing between {since} and {until}: {gap.get('why')}"
        if isinstance(refused, int):
            yield f"{refused} samples could not be recorded"
        names = sorted(self._contents.damaged)
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"damaged parts of the file are left out: {', '.join(names[:3])}{more}"

    def _first_anchor(self) -> tuple[Anchor, ...]:
        """Where those that were written cannot be read: its samples begin about when it was begun."""
        start_ns = self._stretches[0].start_ns if self._stretches else 0
        return ((start_ns, _number(self._head.get("started_wall"), 0.0)),)

    def _parts(
        self,
        start_ns: int,
        end_ns: int,
        metrics: Collection[str] | None,
    ) -> tuple[dict[tuple[str, str], list[Part]], list[Rollup]]:
        """What hours hold, and the rows of the minutes that are in none."""
        parts: dict[tuple[str, str], list[Part]] = {}
        rows: list[Rollup] = []
        first_ns = start_ns - MINUTE_NS + 1
        for hour_ns, data in self._contents.hours(start_ns, end_ns):
            own: list[tuple[tuple[str, str], Part]] | None = None
            with self._contents.noting("its hours"):
                hour = self._hour(hour_ns, data)
                own = [
                    ((subject, metric), part)
                    for metric in (hour.metrics if metrics is None else metrics)
                    for subject, part in hour.parts(metric, start_ns, end_ns)
                ]
            if own is None:  # its minutes are still there
                continue
            rows += self._minutes(first_ns, hour_ns - 1, metrics)
            first_ns = hour_ns + HOUR_NS
            for key, part in own:
                parts.setdefault(key, []).append(part)
        rows += self._minutes(first_ns, end_ns, metrics)
        rows += [row for row in self._open_minute(start_ns, end_ns) if metrics is None or row.metric in metrics]
        return parts, rows

    def _minutes(self, first_ns: int, last_ns: int, metrics: Collection[str] | None) -> list[Rollup]:
        found: list[Rollup] = []
        if first_ns <= last_ns:
            for minute_ns, data, crc in self._contents.minutes(first_ns, last_ns):
                with self._contents.noting("its minutes"):
                    found += unpack_minute(minute_ns, data, crc, metrics)
        return found

    def _hour(self, hour_ns: int, data: object) -> Hour:
        return Hour(hour_ns, data, lambda: self._contents.damaged.add("its hours"))

    def _open_minute(self, start_ns: int, end_ns: int) -> list[Rollup]:
        """Of the minute that is being written, or was when the writer was killed."""
        last = self._stretches[-1] if self._stretches else None
        if last is None or last.end_ns <= start_ns or last.start_ns > end_ns:
            return []
        minutes = Minutes()
        rows = self._contents.tail_rows()
        if not rows:
            return []
        with self._contents.noting("its tail"):
            for stream in gathered(rows, self._kinds).streams():
                minutes.take(stream)
        return minutes.finished(last.end_ns // MINUTE_NS * MINUTE_NS)

    def _event_rows(self, until_ns: int) -> list[Row]:
        return self._contents.rows(
            "its events",
            "SELECT time_ns, kind, subject, json, crc, until_ns FROM event WHERE time_ns <= ? ORDER BY id",
            (until_ns,),
        )

    def _events(self, rows: Iterable[Row]) -> Iterator[tuple[Sample, int | None]]:
        """What was reported once, in the order in which it came, and when it was over."""
        kinds = {kind.name: kind for kind in self._kinds.values()}
        for row in rows:
            kind = kinds.get(row[1])
            if kind is None or not kind.is_known or not self._contents.is_intact(row[:5], "its events"):
                continue
            with self._contents.noting("its events"):
                sample = revived(kind.shape, json.loads(row[3]))
                if not check_of(type(sample))((sample,)) or not isinstance(row[5], (int, type(None))):
                    raise ValueError("not the values of an event")
                yield sample, row[5]


def _without_ended(rows: list[Row]) -> Iterator[Row]:
    """Leaves out the phases that ended: a day may have 20,000, and to take one apart takes 15 us."""
    spans = [_SPAN.search(row[3]) if row[1] == PhaseSpan.__name__ and isinstance(row[3], str) else None for row in rows]
    ended = {
        (row[2], *span.group(1, 2)) for row, span in zip(rows, spans, strict=True) if span and span.group(3) != "null"
    }
    for row, span in zip(rows, spans, strict=True):
        if span is None or (row[2], *span.group(1, 2)) not in ended:
            yield row


def _key(sample: Sample) -> object:
    """Equal for samples of which only the newest counts."""
    cls = type(sample)
    if isinstance(sample, XidEvent):
        return (cls, sample)
    if isinstance(sample, PhaseSpan):
        return (cls, sample.trainer, sample.kind, sample.start_ns)
    if isinstance(sample, BatchCount):
        return (cls, sample.trainer, sample.loader)
    return (cls, getattr(sample, "uuid", None), getattr(sample, "trainer", None))


def _number(value: object, default: float) -> float:
    """A value of the head that is to be a number; a value that is not what it should be is as if it were not there."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LAST_WALL_TIME else default
