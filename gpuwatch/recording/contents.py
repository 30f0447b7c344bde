"""What a recording's file holds, as far as it can be read: damaged parts are counted and left out."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.recording.chunks import Arrivals, fitting, samples_of_chunk, samples_of_row
from gpuwatch.recording.columns import DamagedError
from gpuwatch.recording.head import LAST_WALL_TIME
from gpuwatch.recording.hours import HOUR_NS
from gpuwatch.recording.kinds import KindReader
from gpuwatch.recording.opening import open_recording
from gpuwatch.recording.schema import CHUNK_BITS, checksum
from gpuwatch.recording.types import CannotOpenError
from gpuwatch.samples import Sample
from gpuwatch.timeline.wall_times import Anchor

_FIRST_TIME = -(2**62)
_LAST_TIME = 2**62
_SEGMENT_NS = 60_000_000_000  # a segment ends with its minute
_MOST_A_MINUTE = 64  # one is sealed before its minute ends where more than 4 MB came, once a second at most
_LONGEST_NS = 366 * 24 * 3600 * 1_000_000_000
_MALFORMED = (DamagedError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment, sealed or open, and the arrivals of its first and last sample."""

    number: int
    start_ns: int
    end_ns: int


class Contents:
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

    def checked_rows(self, what: str, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """As `rows`, of rows that end with their checksum."""
        return (row[:-1] for row in self.rows(what, statement, values) if self.is_intact(row, what))

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
            and 0 <= wall_time < LAST_WALL_TIME
        )

    def stretches(self) -> list[Stretch]:
        """The segments in order."""
        sealed = self.rows("its index", "SELECT id, start_ns, end_ns FROM segment WHERE length(data) > 8 ORDER BY id")
        tail = self.rows(
            "its tail", "SELECT segment, min(start_ns), max(end_ns) FROM tail GROUP BY segment ORDER BY segment"
        )
        found = {row[0]: Stretch(*row) for row in (*tail, *sealed) if _is_stretch(row)}
        in_order = sorted(found.values(), key=lambda stretch: stretch.number)
        kept: list[Stretch] = []
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
        subjects: Collection[str] | None,
    ) -> list[tuple[int, Sample]]:
        """The samples of one segment that came in (start, end], in the order in which they came, and when."""
        what = f"segment {number}"
        with self._lock:
            self._transaction("BEGIN")
            try:
                head = self.rows(what, "SELECT data, crc FROM segment WHERE id = ?", (number,))
                if head:
                    return self._sealed(number, head[0], (start_ns, end_ns), kinds, subjects)
                tail = self.rows(what, "SELECT data, crc FROM tail WHERE segment = ? ORDER BY id", (number,))
            finally:
                self._transaction("COMMIT")
        return self._open(what, tail, (start_ns, end_ns), kinds, subjects)

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
        subjects: Collection[str] | None,
    ) -> list[tuple[int, Sample]]:
        what = f"segment {number}"
        first = number << CHUNK_BITS
        chunks = self.rows(
            what,
            "SELECT kind, subject, count, data, crc FROM chunk WHERE id >= ? AND id < ? AND kind IN "
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
        for kind, subject, count, data, crc in chunks:
            if subjects is not None and subject not in subjects:
                continue
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
        subjects: Collection[str] | None,
    ) -> list[tuple[int, Sample]]:
        found: list[tuple[int, Sample]] = []
        for row in rows:
            with self.noting(what):
                for time_ns, sample in samples_of_row(kinds, _intact(*row), subjects):
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
