"""What the timeline keeps: rows in time order in typed arrays, and tiers, equal buckets of a second and of a minute.

Tiers hold seconds for 2 h and minutes for 24 h. Nothing is flushed from one to the next: each sample goes into its
bucket of both at once. So a sample that comes late (the hook's history at hello, a GPU gap read steps later) lands
where it belongs as long as its tier reaches.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuwatch.timeline.windows import Stats, known, stats

NAN = math.nan

_CHECK_EVERY_ROWS = 64


def number(value: float | None) -> float:
    """A value for a float column: NaN where it is unknown."""
    return NAN if value is None else value


class Table:
    """Parallel typed arrays, one row per moment, bounded by age and by count.

    The arrays stay straight and are trimmed in batches at the front, rather than wrapped round: a window is then a
    slice, which `sum` and `sorted` read at C speed. A float costs 4 bytes here, 32 in a list.

    Args:
        columns: name to typecode ("f", "d", "q", "b"). Float columns say unknown by NaN.
        max_age_ns: rows this much older than the newest one may go.
        max_rows: however young they are.
    """

    __slots__ = ("_check_at", "_columns", "_max_age_ns", "_max_rows", "_trimmed_ns", "times")

    def __init__(self, columns: Mapping[str, str], *, max_age_ns: int, max_rows: int) -> None:
        self.times: array[int] = array("q")
        self._trimmed_ns: int | None = None
        self._columns: dict[str, array[Any]] = {name: array(typecode) for name, typecode in columns.items()}
        self._max_age_ns = max_age_ns
        self._max_rows = max_rows
        self._check_at = _CHECK_EVERY_ROWS

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, name: str) -> array[Any]:
        return self._columns[name]

    def add(self, time_ns: int, values: Sequence[float]) -> int:
        """Adds a row in the order of the columns and returns its place; a late one goes where it belongs."""
        if not self.times or time_ns >= self.times[-1]:
            self.times.append(time_ns)
            for column, value in zip(self._columns.values(), values, strict=True):
                column.append(value)
        else:
            place = bisect_right(self.times, time_ns)
            self.times.insert(place, time_ns)
            for column, value in zip(self._columns.values(), values, strict=True):
                column.insert(place, value)
        if len(self.times) >= self._check_at:
            self.trim(self.times[-1])
        return len(self.times) - 1 if time_ns >= self.times[-1] else bisect_right(self.times, time_ns) - 1

    def since(self, time_ns: int) -> int:
        """The place of the first row later than `time_ns`: windows are half open, (start, end]."""
        return bisect_right(self.times, time_ns)

    def until(self, time_ns: int) -> int:
        """One past the place of the last row not later than `time_ns`."""
        return bisect_right(self.times, time_ns)

    def has(self, time_ns: int) -> bool:
        """Whether there is a row of exactly this moment."""
        place = bisect_left(self.times, time_ns)
        return place < len(self.times) and self.times[place] == time_ns

    def reaches(self, time_ns: int) -> bool:
        """Whether everything since `time_ns` is still here."""
        return self._trimmed_ns is None or self._trimmed_ns <= time_ns

    def trim(self, now_ns: int) -> None:
        """Drops rows that are too old or too many."""
        dead = max(bisect_left(self.times, now_ns - self._max_age_ns), len(self.times) - self._max_rows)
        if dead > 0:
            self._trimmed_ns = self.times[dead - 1]
            del self.times[:dead]
            for column in self._columns.values():
                del column[:dead]
        self._check_at = len(self.times) + max(_CHECK_EVERY_ROWS, len(self.times) // 16)


class Odometer:
    """A running total over a counter that a driver reload may set back."""

    __slots__ = ("_last", "resets", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.resets = 0
        self._last: float | None = None

    def read(self, counter: float | None) -> float:
        """The total after this reading; NaN where the counter was not read. A step back adds nothing."""
        if counter is None:
            return NAN
        if self._last is not None:
            if counter >= self._last:
                self.total += counter - self._last
            else:
                self.resets += 1
        self._last = counter
        return self.total


SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
SECONDS_KEPT = 2 * 3600
MINUTES_KEPT = 24 * 60

_MOST_COUNTED = 65_535  # in an unsigned short; means stay right to 1 part in 65,535 beyond it


class Buckets:
    """Typed arrays with one place per bucket of time; straight, trimmed at the front in batches.

    Args:
        width_ns: of a bucket.
        keep: buckets at least kept.
        columns: name to (typecode, value of an empty bucket).
    """

    __slots__ = ("_empty", "_keep", "arrays", "first", "length", "trimmed", "width_ns")

    def __init__(self, width_ns: int, keep: int, columns: Mapping[str, tuple[str, float]]) -> None:
        self.width_ns = width_ns
        self.first = 0
        self.length = 0
        self.trimmed = False
        self.arrays: dict[str, array[Any]] = {name: array(code) for name, (code, _) in columns.items()}
        self._empty = {name: array(code, (empty,)) for name, (code, empty) in columns.items()}
        self._keep = keep

    def place(self, time_ns: int) -> int:
        """The place of the bucket that holds `time_ns`, made if need be; -1 if it is too long ago."""
        place = time_ns // self.width_ns - self.first
        return place if 0 <= place < self.length else self._make(time_ns // self.width_ns)

    def span(self, start_ns: int, end_ns: int) -> slice:
        """The buckets whose middle lies in (start, end]."""
        half = self.width_ns // 2
        low = (start_ns + half) // self.width_ns - self.first
        high = (end_ns + half) // self.width_ns - self.first
        return slice(min(max(low, 0), self.length), min(max(high, 0), self.length))

    def total(self, name: str, start_ns: int, end_ns: int) -> Any:
        """The sum of one column over a stretch."""
        return sum(self.arrays[name][self.span(start_ns, end_ns)])

    def fill(self, times_ns: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """Sets buckets, in the order of time, to what is known of them as a whole."""
        if not times_ns:
            return
        self.place(times_ns[-1])  # makes room for all at once
        first, count = self.place(times_ns[0]), len(times_ns)
        if first >= 0 and times_ns[-1] // self.width_ns - times_ns[0] // self.width_ns == count - 1:
            for name, values in columns.items():
                self.arrays[name][first : first + count] = array(self.arrays[name].typecode, values)
            return
        for time_ns, *values in zip(times_ns, *columns.values(), strict=True):
            place = self.place(time_ns)
            if place >= 0:
                for name, value in zip(columns, values, strict=True):
                    self.arrays[name][place] = value

    def reaches(self, time_ns: int) -> bool:
        """Whether everything since `time_ns` is still here."""
        return not self.trimmed or (self.length > 0 and self.first * self.width_ns <= time_ns)

    def _make(self, bucket: int) -> int:
        if not self.length or bucket - self.first - self.length >= self._keep:
            self._clear(bucket)
        place = bucket - self.first
        if place < 0:
            if self.length - place > self._keep:
                return -1
            for name, column in self.arrays.items():
                column[0:0] = self._empty[name] * -place
            self.first, self.length = bucket, self.length - place
            return 0
        for name, column in self.arrays.items():
            column.extend(self._empty[name] * (place + 1 - self.length))
        self.length = place + 1
        self._trim()
        return bucket - self.first

    def _clear(self, bucket: int) -> None:
        self.trimmed = self.trimmed or self.length > 0
        for column in self.arrays.values():
            del column[:]
        self.first, self.length = bucket, 0

    def _trim(self) -> None:
        dead = self.length - self._keep
        if dead <= self._keep // 16:
            return
        self.trimmed = True
        for column in self.arrays.values():
            del column[:dead]
        self.first, self.length = self.first + dead, self.length - dead


class ValueBuckets(Buckets):
    """Mean, least and greatest of the values that fell into each bucket."""

    __slots__ = ("_figures",)

    def __init__(self, width_ns: int, keep: int) -> None:
        super().__init__(width_ns, keep, {"count": ("H", 0), "mean": ("f", NAN), "min": ("f", NAN), "max": ("f", NAN)})
        self._figures = tuple(self.arrays.values())

    def add(self, time_ns: int, value: float) -> None:
        """Counts a value into its bucket."""
        place = time_ns // self.width_ns - self.first
        if not 0 <= place < self.length:
            place = self._make(time_ns // self.width_ns)
            if place < 0:
                return
        counts, means, least, greatest = self._figures
        count = counts[place]
        if not count:
            counts[place] = 1
            means[place] = least[place] = greatest[place] = value
            return
        if count < _MOST_COUNTED:
            counts[place] = count + 1
        means[place] += (value - means[place]) / (count + 1)
        if value < least[place]:
            least[place] = value
        elif value > greatest[place]:
            greatest[place] = value

    def fill(self, times_ns: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """As of any buckets; the count is kept as far as it can be."""
        counts = [min(int(count), _MOST_COUNTED) for count in columns["count"]]
        super().fill(times_ns, {**columns, "count": counts})


class ValueTiers:
    """One metric's history in both widths."""

    __slots__ = ("minutes", "seconds")

    def __init__(self) -> None:
        self.seconds = ValueBuckets(SECOND_NS, SECONDS_KEPT)
        self.minutes = ValueBuckets(MINUTE_NS, MINUTES_KEPT)

    def add(self, time_ns: int, value: float) -> None:
        """Counts a value into the second and the minute it fell in."""
        self.seconds.add(time_ns, value)
        self.minutes.add(time_ns, value)

    def stats(self, start_ns: int, end_ns: int) -> Stats | None:
        """The distribution of bucket means over a stretch, with the least and greatest single values."""
        tier = self._reaching(start_ns)
        span = tier.span(start_ns, end_ns)
        found = stats(tier.arrays["mean"][span])
        if found is None:
            return None
        least, greatest = (known(tier.arrays[name][span]) for name in ("min", "max"))
        return replace(found, min=min(least), max=max(greatest))

    def means(self, start_ns: int, end_ns: int) -> array[float]:
        """The bucket means of a stretch; NaN where nothing was measured."""
        tier = self._reaching(start_ns)
        return tier.arrays["mean"][tier.span(start_ns, end_ns)]

    def _reaching(self, start_ns: int) -> ValueBuckets:
        return self.seconds if self.seconds.reaches(start_ns) else self.minutes


class SumBuckets(Buckets):
    """Sums per bucket, and the least and greatest of some values.

    Args:
        width_ns: of a bucket.
        keep: buckets at least kept.
        typecode: of the sums. A minute of 1 ms steps needs doubles; a second does well with floats.
        sums: names of what is added up.
        ranges: names of what is kept as "NAME_min" and "NAME_max".
    """

    __slots__ = ("_lows_and_highs", "_sums")

    def __init__(self, width_ns: int, keep: int, typecode: str, sums: Sequence[str], ranges: Sequence[str]) -> None:
        columns: dict[str, tuple[str, float]] = dict.fromkeys(sums, (typecode, 0.0))
        for name in ranges:
            columns[f"{name}_min"] = columns[f"{name}_max"] = ("f", NAN)
        super().__init__(width_ns, keep, columns)
        self._sums = [self.arrays[name] for name in sums]
        self._lows_and_highs = [(self.arrays[f"{name}_min"], self.arrays[f"{name}_max"]) for name in ranges]

    def add(self, start_ns: int, end_ns: int, amounts: Sequence[float], values: Sequence[float]) -> None:
        """Spreads `amounts` evenly over (start, end], and counts `values` in each bucket it touches.

        Without the spreading, a 3 s step would show as two idle seconds and a tripled one.
        """
        first = start_ns // self.width_ns
        last = (end_ns - 1) // self.width_ns
        if last <= first:
            self._add_to(self.place(end_ns - 1), 1.0, amounts, values)
            return
        for bucket in range(max(first, last - self._keep), last + 1):
            begin = max(start_ns, bucket * self.width_ns)
            end = min(end_ns, (bucket + 1) * self.width_ns)
            self._add_to(self.place(begin), (end - begin) / (end_ns - start_ns), amounts, values)

    def _add_to(self, place: int, share: float, amounts: Sequence[float], values: Sequence[float]) -> None:
        if place < 0:
            return
        for column, amount in zip(self._sums, amounts, strict=True):
            if amount:
                column[place] += amount * share
        for (lows, highs), value in zip(self._lows_and_highs, values, strict=True):
            if value == value:
                if not lows[place] <= value:
                    lows[place] = value
                if not highs[place] >= value:
                    highs[place] = value
