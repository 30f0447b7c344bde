"""Minutes of metrics, and hours of them, as the file keeps them.

A report of a day reads 1 440 minutes and no samples. As rows a day of eight GPUs and eight ranks is 350 000 figures, a
second of CPU to take apart and half a second to add up again; as columns of an hour it is a tenth of that, for 2.5 MB
more in the file, and only what is shown is decoded.
"""

from __future__ import annotations

import bisect
import math
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec

from gpuwatch.recording import pooled
from gpuwatch.recording.chunks import inflated
from gpuwatch.recording.columns import ColumnReader, DamagedError, pack, unpack, write_column
from gpuwatch.recording.pooled import MARKS, MinuteColumns, Part, are_figures
from gpuwatch.recording.types import Rollup
from gpuwatch.timeline.tiers import MINUTE_NS


def pack_minute(rows: Sequence[Rollup]) -> bytes:
    """The rollups of one minute as a blob."""
    out = bytearray(len(rows).to_bytes(4, "little"))
    for column in zip(*(row[1:] for row in rows), strict=True):
        write_column(column, out)
    return zlib.compress(bytes(out), 6)


def unpack_minute(
    minute_ns: int,
    data: object,
    crc: object,
    subjects: Collection[str] | None = None,
    metrics: Collection[str] | None = None,
) -> list[Rollup]:
    """The other way; only those of some subjects and metrics, where they are named.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    if not isinstance(data, bytes) or zlib.crc32(data) != crc:
        raise DamagedError("the checksum does not match")
    plain = inflated(data)
    count, columns = int.from_bytes(plain[:4], "little"), ColumnReader(plain[4:])
    read = [columns.read(count) for _ in Rollup._fields[1:] if not columns.is_at_end]  # the first ones had no p5
    if not all(set(map(type, texts)) <= {str} for texts in read[:2]) or not all(map(are_figures, read[2:])):
        raise DamagedError("not the figures of a minute")
    return [
        Rollup(minute_ns, *row)
        for row in zip(*read, strict=True)
        if (metrics is None or row[1] in metrics) and (subjects is None or row[0] in subjects)
    ]


HOUR_NS = 60 * MINUTE_NS
_NAMES = ("minute", *Rollup._fields[3:])  # of the hour
_LAST_MINUTE = 59
_WIDTH = len(_NAMES)
_WHOLE_NUMBERS = ("minute", "count")
_MARKED = frozenset({"utilization_percent", "step_seconds"})
"""Whose percentiles a report of a long time shows."""


def pack_hour(hour_ns: int, minutes: Iterable[Iterable[Rollup]]) -> bytes | None:
    """The minutes of an hour as one blob, in the order of time; None where they hold no figure.

    They stay in the file too: of a torn one, they reach further.
    """
    found: dict[str, dict[str, array[float]]] = {}
    for row in chain.from_iterable(minutes):
        series = found.setdefault(row.metric, {}).get(row.subject)
        if series is None:
            series = found[row.metric][row.subject] = array("d")
        series.extend(((row.minute_ns - hour_ns) // MINUTE_NS, *row[3:]))
    if not found:
        return None
    index, bodies = [], []
    for metric, subjects in found.items():
        body = bytearray()
        for place, name in enumerate(_NAMES):
            values = [value for series in subjects.values() for value in series[place::_WIDTH]]
            write_column([int(value) for value in values] if name in _WHOLE_NUMBERS else values, body)
        data = zlib.compress(bytes(body), 6)
        marks = [_marks(series) for series in subjects.values()] if metric in _MARKED else None
        lengths = [len(series) // _WIDTH for series in subjects.values()]
        index.append((metric, list(subjects), lengths, marks, len(data), zlib.crc32(data)))
        bodies.append(data)
    head = pack(index)
    return b"".join((zlib.crc32(head).to_bytes(4, "little"), len(head).to_bytes(4, "little"), head, *bodies))


def _marks(series: array[float]) -> list[float]:
    """The hour's percentiles, so that those of a day are put together from 24 distributions instead of 1 440."""
    columns: dict[str, Sequence[float]] = {name: series[place::_WIDTH] for place, name in enumerate(_NAMES)}
    found = pooled.quantiles(MinuteColumns([Part(columns, 0, len(series) // _WIDTH)]), MARKS)
    return [mark for mark in found if mark is not None]


class Hour:
    """One hour being read; a metric is inflated and a column decoded when it is first asked for.

    Args:
        hour_ns: its beginning.
        data: as it was written.
        damaged: called where a column does not decode, whose values are then unknown.

    Raises:
        DamagedError: the bytes are not what was written.
    """

    def __init__(self, hour_ns: int, data: object, damaged: Callable[[], None] = lambda: None) -> None:
        if not isinstance(data, bytes):
            raise DamagedError("an hour is missing")
        length = int.from_bytes(data[4:8], "little")
        head = data[8 : 8 + length]
        if len(head) < length or zlib.crc32(head) != int.from_bytes(data[:4], "little"):
            raise DamagedError("the checksum does not match")
        self.hour_ns = hour_ns
        self._data = data
        self._parts: dict[str, _Metric] = {}
        at = 8 + length
        for metric, subjects, lengths, marks, size, crc in _index_of(head):
            self._parts[metric] = _Metric(hour_ns, (subjects, lengths, marks), data[at : at + size], crc, damaged)
            at += size

    @property
    def metrics(self) -> Collection[str]:
        """Those that have a value in it."""
        return self._parts.keys()

    def parts(
        self, metric: str, start_ns: int, end_ns: int, subjects: Collection[str] | None
    ) -> Iterator[tuple[str, Part]]:
        """The minutes that touch (start, end] of each subject.

        Raises:
            DamagedError: the bytes are not what was written.
        """
        found = self._parts.get(metric)
        if found is not None:
            yield from found.parts(start_ns, end_ns, subjects)


_Index = tuple[str, list[str], list[int], list[list[float]] | None, int, int]
"""Metric, subjects, how many minutes each has, the percentiles of each, length and checksum of the columns."""


def _index_of(head: bytes) -> Sequence[_Index]:
    """The index of an hour; one that was made up may hold anything.

    Raises:
        DamagedError: it is none.
    """
    try:
        return msgspec.convert(unpack(head), list[_Index])
    except (ValueError, msgspec.ValidationError) as error:
        raise DamagedError("not the index of an hour") from error


class _Metric:
    def __init__(
        self,
        hour_ns: int,
        index: tuple[list[str], list[int], list[list[float]] | None],
        data: bytes,
        crc: int,
        damaged: Callable[[], None],
    ) -> None:
        self._damaged = damaged
        self._hour_ns = hour_ns
        self._subjects, self._lengths, self._marks = index
        self._data = data
        self._crc = crc
        self._columns: _Columns | None = None

    def parts(self, start_ns: int, end_ns: int, subjects: Collection[str] | None) -> Iterator[tuple[str, Part]]:
        if self._columns is None:
            if zlib.crc32(self._data) != self._crc:
                raise DamagedError("the checksum does not match")
            if min(self._lengths, default=0) < 0 or max(self._lengths, default=0) > _LAST_MINUTE + 1:
                raise DamagedError("an hour has 60 minutes")
            if any(len(marks) not in (0, len(MARKS)) for marks in self._marks or ()):
                raise DamagedError("not the percentiles of an hour")
            self._columns = _Columns(inflated(self._data), sum(self._lengths), self._hour_ns, self._damaged)
        before, until = (start_ns - MINUTE_NS - self._hour_ns) // MINUTE_NS, (end_ns - self._hour_ns) // MINUTE_NS
        at = 0
        for place, (subject, length) in enumerate(zip(self._subjects, self._lengths, strict=True)):
            begin, at = at, at + length
            if subjects is not None and subject not in subjects:
                continue
            first, last = begin, at
            if before >= 0:
                first = bisect.bisect_right(self._columns["minute"], before, begin, at)
            if until < _LAST_MINUTE:
                last = bisect.bisect_right(self._columns["minute"], until, first, at)
            marks = self._marks[place] if self._marks is not None and (first, last) == (begin, at) else None
            if first < last:
                yield subject, Part(self._columns, first, last, marks)


class _Columns(dict[str, Sequence[Any]]):
    """By name; decoded when asked for."""

    def __init__(self, plain: bytes, count: int, hour_ns: int, damaged: Callable[[], None]) -> None:
        super().__init__()
        self._damaged = damaged
        reader = ColumnReader(plain)
        self._raw = {name: reader.cut() for name in _NAMES}
        self._count, self._hour_ns = count, hour_ns
        minutes = ColumnReader(self._raw.pop("minute")).read(count)
        if any(type(minute) is not int or not 0 <= minute <= _LAST_MINUTE for minute in minutes):
            raise DamagedError("an hour has 60 minutes")
        self["minute"] = minutes

    def __missing__(self, name: str) -> Sequence[Any]:
        if name == "minute_ns":
            times_ns = range(self._hour_ns, self._hour_ns + HOUR_NS, MINUTE_NS)
            values: Sequence[Any] = list(map(times_ns.__getitem__, self["minute"]))
        else:
            values = self._figures(name)
        self[name] = values
        return values

    def _figures(self, name: str) -> Sequence[Any]:
        with suppress(DamagedError):
            values = ColumnReader(self._raw.pop(name)).read(self._count)
            if are_figures(values):
                return values
        self._damaged()
        return [0 if name == "count" else math.nan] * self._count
