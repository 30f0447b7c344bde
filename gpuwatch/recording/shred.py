"""Nested values cut into columns by their shape, and put together again.

A level whose values are all equal, as most are within a minute (no workers, the same reasons why a field is missing),
is one value and no columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any

from gpuwatch.recording.columns import ColumnReader, DamagedError, write_column
from gpuwatch.recording.shapes import Fixed, Listed, Mapped, Maybe, Scalar, Shape, built, revived

_SAME, _SPREAD = b"\x00", b"\x01"


def write_values(shape: Shape, values: Sequence[Any], out: bytearray) -> None:
    """Appends the columns of values of one shape."""
    if isinstance(shape, Scalar):
        write_column(values, out, exact=shape.exact)
        return
    if not values or values.count(values[0]) == len(values):
        out += _SAME
        write_column(values[:1], out)
        return
    out += _SPREAD
    if isinstance(shape, Maybe):
        write_column([value is not None for value in values], out)
        write_values(shape.inner, [value for value in values if value is not None], out)
    elif isinstance(shape, Listed):
        write_column(list(map(len, values)), out)
        write_values(shape.item, list(chain.from_iterable(values)), out)
    elif isinstance(shape, Fixed):
        for place, item in enumerate(shape.items):
            write_values(item, list(map(itemgetter(place), values)), out)
    elif isinstance(shape, Mapped):
        write_column([tuple(value) for value in values], out)
        write_values(shape.value, list(chain.from_iterable(value.values() for value in values)), out)
    else:
        for name, field in shape.fields:
            write_values(field, list(map(attrgetter(name), values)), out)


def read_values(shape: Shape, count: int, columns: ColumnReader) -> Sequence[Any]:
    """The values that were written, as tuples, mappings and dataclasses.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    if isinstance(shape, Scalar):
        return columns.read(count)
    if columns.flag() == _SAME:
        return [revived(shape, value) for value in columns.read(min(count, 1))] * count
    if isinstance(shape, Maybe):
        known = columns.read(count)
        inner = iter(read_values(shape.inner, sum(known), columns))
        return [next(inner) if is_known else None for is_known in known]
    if isinstance(shape, Listed):
        lengths = columns.read(count)
        items = iter(read_values(shape.item, sum(lengths), columns))
        return [_take(items, length) for length in lengths]
    if isinstance(shape, Fixed):
        return list(zip(*(read_values(item, count, columns) for item in shape.items), strict=True))
    if isinstance(shape, Mapped):
        keys = columns.read(count)
        each = iter(read_values(shape.value, sum(map(len, keys)), columns))
        return [dict(zip(names, _take(each, len(names)), strict=True)) for names in keys]
    parts = [read_values(field, count, columns) for _, field in shape.fields]
    names = [name for name, _ in shape.fields]
    return [built(shape.name, dict(zip(names, row, strict=True))) for row in zip(*parts, strict=True)]


def _take(values: Iterator[Any], count: int) -> tuple[Any, ...]:
    found = tuple(islice(values, count))
    if len(found) != count:
        raise DamagedError("values are missing")
    return found
