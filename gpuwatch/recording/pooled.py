"""Minutes of one metric column by column, and the figures of a long stretch that are put together from them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, repeat
from operator import attrgetter, mul
from typing import Any

from gpuwatch.recording.types import Rollup
from gpuwatch.timeline.tiers import MINUTE_NS

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
