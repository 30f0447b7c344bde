"""Minutes of metrics, and hours of them: column by column, as the file keeps them, and figures put together from them.

A report of a day reads 1,440 minutes and no samples. As rows a day of eight GPUs and eight ranks is 350,000 figures, a
second of CPU to take apart and half a second to add up again; as columns of an hour it is a tenth of that, for 2.5 MB
more in the file, and only what is shown is decoded.
"""

from __future__ import annotations

import bisect
import math
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, repeat
from operator import attrgetter, mul
from typing import Any

import msgspec

from gpuwatch.recording.chunks import inflated
from gpuwatch.recording.columns import ColumnReader, DamagedError, pack, unpack, write_column
from gpuwatch.recording.schema import Rollup
from gpuwatch.timeline.columns import MINUTE_NS

_HOUR_NS = 3_600_000_000_000
MARKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
"""The percentiles that are kept of a whole hour."""


_FIGURES = ("minute_ns", *Rollup._fields[3:])


@dataclass(frozen=True, slots=True)
class Swing:
    """A mean and the sample standard deviation of single values around it."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Part:
    """Some minutes one after the other: those from `first` to before `last` of longer columns.

    `marks` are the percentiles of all their values, where those are known.
    """

    columns: Mapping[str, Sequence[Any]]
    first: int
    last: int
    marks: Sequence[float] | None = None

    def column(self, name: str) -> Sequence[Any]:
        """One of the names of `Rollup`'s figures."""
        return self.columns[name][self.first : self.last]

    @property
    def has_p5(self) -> bool:
        """Whether the 5th percentiles are known: the first recordings do not have them."""
        return self.marks is not None or not any(value != value for value in self.column("p5"))


class MinuteColumns:
    """Minutes in the order of time, from several parts; each column is put together when it is first asked for."""

    __slots__ = ("_columns", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._columns: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return sum(part.last - part.first for part in self.parts)

    def column(self, name: str) -> list[Any]:
        """One of the names of `Rollup`'s figures."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = []
            for part in self.parts:
                found += part.column(name)
        return found

    def between(self, start_ns: int, end_ns: int) -> MinuteColumns:
        """Those that touch (start, end]."""
        kept = []
        for part in self.parts:
            minutes = part.columns["minute_ns"]
            first = bisect_right(minutes, start_ns - MINUTE_NS, part.first, part.last)
            last = bisect_right(minutes, end_ns, first, part.last)
            if first < last:
                is_whole = (first, last) == (part.first, part.last)
                kept.append(part if is_whole else Part(part.columns, first, last))
        return MinuteColumns(kept)

    def only(self, wanted: Collection[int]) -> MinuteColumns:
        """Those of some times."""
        places = [place for place, at_ns in enumerate(self.column("minute_ns")) if at_ns in wanted]
        columns = {name: list(map(self.column(name).__getitem__, places)) for name in _FIGURES}
        return MinuteColumns([Part(columns, 0, len(places))])

    def rows(self, subject: str, metric: str) -> Iterator[Rollup]:
        """As rows."""
        minutes, *figures = map(self.column, _FIGURES)
        return map(Rollup._make, zip(minutes, repeat(subject), repeat(metric), *figures, strict=False))


def are_figures(values: Sequence[Any]) -> bool:
    """Whether all values are numbers; NaN is one that is not known."""
    return set(map(type, values)) <= {int, float}


NO_MINUTES = MinuteColumns(())


def parts_of(rows: Iterable[Rollup]) -> list[Part]:
    """Rows of one metric of one subject, in the order of time: by hour, as the others are."""
    return [_part(list(own)) for _, own in groupby(rows, key=lambda row: row.minute_ns // _HOUR_NS)]


def _part(rows: Sequence[Rollup]) -> Part:
    columns = dict(zip(Rollup._fields, zip(*rows, strict=True), strict=True))
    return Part(columns, 0, len(rows))


_NEARLY = 1 - 1e-9  # shares of a whole, added up again

Minutes = Sequence[Rollup] | MinuteColumns
Marks = tuple[float, Sequence[tuple[float, float]]]
"""How many values, and the shares of them that lie below some."""


def total(minutes: Minutes) -> float:
    """The sum of all values."""
    return math.fsum(map(mul, _column(minutes, "count"), _column(minutes, "mean")))


def count(minutes: Minutes) -> int:
    """How many values there were."""
    return sum(_column(minutes, "count"))


def mean(minutes: Minutes) -> float | None:
    """Of all values; None without any."""
    values = count(minutes)
    return total(minutes) / values if values else None


def known_seconds(steps: Minutes, amounts: Minutes, known: Minutes) -> dict[int, float]:
    """By minute, the training seconds of just those steps in which an amount is known.

    Args:
        steps: their training seconds ("step_seconds").
        amounts: what may be unknown of a step ("wait_seconds").
        known: the seconds of the steps where it is known ("wait_train_seconds"); recorded only of minutes in which it
            is unknown in some steps, and not at all by early versions: a step is then taken to be as long as any other.
    """
    written = dict(zip(_column(known, "minute_ns"), _column(known, "mean"), strict=True))
    of_steps = {
        at: (amount, own)
        for at, amount, own in zip(*(_column(steps, name) for name in ("minute_ns", "count", "mean")), strict=True)
    }
    return {
        at: written.get(at, min(count, of_steps[at][0]) * of_steps[at][1])
        for at, count in zip(_column(amounts, "minute_ns"), _column(amounts, "count"), strict=True)
        if at in of_steps
    }


def least(minutes: Minutes) -> float:
    """The least value, of one minute at least."""
    found: float = min(_column(minutes, "min"))
    return found


def greatest(minutes: Minutes) -> float:
    """The greatest value."""
    found: float = max(_column(minutes, "max"))
    return found


def swing(minutes: Minutes) -> Swing | None:
    """Mean and standard deviation of all values: what each minute scattered, and how far its mean lies from theirs."""
    counts, means = _column(minutes, "count"), _column(minutes, "mean")
    values = sum(counts)
    if not values:
        return None
    middle = math.fsum(map(mul, counts, means)) / values
    squares = math.fsum(
        (amount - 1) * sigma * sigma + amount * (own - middle) ** 2
        for amount, own, sigma in zip(counts, means, _column(minutes, "sigma"), strict=True)
    )
    return Swing(middle, math.sqrt(squares / (values - 1)) if values > 1 else 0.0)


def quantiles(minutes: Minutes, shares: Sequence[float]) -> tuple[float | None, ...]:
    """The values below which these shares of all values lie, with each minute's values spread evenly between its marks.

    The marks are its least value, 5th percentile, median, 95th percentile and greatest value. Minutes that are alike
    give their own percentile back. Of whole hours, the percentiles that were kept of them take the minutes' place.
    """
    values = count(minutes)
    if not values:
        return (None,) * len(shares)
    edges = sorted(edge for marks in _distributions(minutes) for edge in _edges(marks))
    return tuple(_reached(edges, share * values) for share in shares)


def _column(minutes: Minutes, name: str) -> list[Any]:
    return minutes.column(name) if isinstance(minutes, MinuteColumns) else list(map(attrgetter(name), minutes))


def _distributions(minutes: Minutes) -> Iterator[Marks]:
    if not isinstance(minutes, MinuteColumns):
        yield from _of_minutes(map(attrgetter("count", "min", "p5", "p50", "p95", "max"), minutes))
        return
    for part in minutes.parts:
        if part.marks is None:
            columns = (part.column(name) for name in ("count", "min", "p5", "p50", "p95", "max"))
            yield from _of_minutes(zip(*columns, strict=True))
        else:
            yield sum(part.column("count")), list(zip(part.marks, MARKS, strict=True))


def _of_minutes(rows: Iterable[tuple[float, ...]]) -> Iterator[Marks]:
    for amount, low, p5, p50, p95, high in rows:
        if p5 == p5:
            yield amount, ((low, 0.0), (p5, 0.05), (p50, 0.5), (p95, 0.95), (high, 1.0))
        else:
            yield amount, ((low, 0.0), (p50, 0.5), (p95, 0.95), (high, 1.0))


def _reached(edges: Sequence[tuple[float, float, float]], goal: float) -> float:
    """The value that this many lie below."""
    below, density, at = 0.0, 0.0, -math.inf
    for value, change, mass in edges:
        reached = below + density * (value - at) if density > 0 else below
        if reached >= goal and density > 0:
            return min(value, at + max(0.0, goal - below) / density)
        below, at = reached + mass, value
        if mass and below >= goal * _NEARLY:
            return value
        density += change
    return at


def _edges(distribution: Marks) -> Iterator[tuple[float, float, float]]:
    """Where values begin and end to be, how densely, and how many lie on one point."""
    amount, marks = distribution
    for (low, share), (high, next_share) in pairwise(marks):
        mass = amount * (next_share - share)
        if high > low:
            density = mass / (high - low)
            yield low, density, 0.0
            yield high, -density, 0.0
        else:
            yield low, 0.0, mass


def pack_minute(rows: Sequence[Rollup]) -> bytes:
    """The rollups of one minute as a blob."""
    out = bytearray(len(rows).to_bytes(4, "little"))
    for column in zip(*(row[1:] for row in rows), strict=True):
        write_column(column, out)
    return zlib.compress(bytes(out), 6)


def unpack_minute(minute_ns: int, data: object, crc: object, metrics: Collection[str] | None = None) -> list[Rollup]:
    """The other way; only those of some metrics, where they are named.

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
    return [Rollup(minute_ns, *row) for row in zip(*read, strict=True) if metrics is None or row[1] in metrics]


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
    """The hour's percentiles, so that those of a day are put together from 24 distributions instead of 1,440."""
    columns: dict[str, Sequence[float]] = {name: series[place::_WIDTH] for place, name in enumerate(_NAMES)}
    found = quantiles(MinuteColumns([Part(columns, 0, len(series) // _WIDTH)]), MARKS)
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

    def parts(self, metric: str, start_ns: int, end_ns: int) -> Iterator[tuple[str, Part]]:
        """The minutes that touch (start, end] of each subject.

        Raises:
            DamagedError: the bytes are not what was written.
        """
        found = self._parts.get(metric)
        if found is not None:
            yield from found.parts(start_ns, end_ns)


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

    def parts(self, start_ns: int, end_ns: int) -> Iterator[tuple[str, Part]]:
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
