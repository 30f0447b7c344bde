"""The minutes of one metric of one subject, column by column: what sums of a day are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any

from gpuwatch.recording.types import Rollup

_HOUR_NS = 3_600_000_000_000
MARKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
"""The percentiles that are kept of a whole hour."""


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

    def rows(self, subject: str, metric: str) -> Iterator[Rollup]:
        """As rows."""
        minutes, *figures = (self.column(name) for name in ("minute_ns", *Rollup._fields[3:]))
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
