"""The shape of a sample's fields, read from its class, and nested values cut into columns by it.

A file keeps the shapes it was written with, so a field that is new or gone is no reason to refuse it.
A level whose values are all equal, as most are within a minute (no workers, the same reasons why a field is missing),
is one value and no columns.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Union

import gpuwatch.samples as vocabulary
from gpuwatch.recording.columns import ColumnReader, DamagedError, write_column

_INT64 = 2**63
_CLASSES: dict[str, Any] = {name: value for name, value in vars(vocabulary).items() if dataclasses.is_dataclass(value)}
EXACT = frozenset({"energy_joules", "call_seconds", "cgroup_throttled_seconds"})
"""Counters that only grow: what matters is the difference of two, so these are never rounded to single precision."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, a string, a truth value or None."""

    exact: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """A tuple of any length, all of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Fixed:
    """A tuple of this many values, each with a shape of its own."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping from strings."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass of the vocabulary."""

    name: str
    fields: tuple[tuple[str, Shape], ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """Something that is no scalar, or None."""

    inner: Shape


Shape = Scalar | Listed | Fixed | Mapped | Record | Maybe


@cache
def record_of(cls: type) -> Record:
    """The shape of a dataclass."""
    hints = typing.get_type_hints(cls)
    return Record(
        cls.__name__, tuple((each.name, _shape(hints[each.name], each.name)) for each in dataclasses.fields(cls))
    )


def to_plain(shape: Shape) -> Any:
    """The shape as JSON can hold it."""
    if isinstance(shape, Scalar):
        return "exact" if shape.exact else ""
    if isinstance(shape, Listed):
        return {"list": to_plain(shape.item)}
    if isinstance(shape, Fixed):
        return {"fixed": [to_plain(item) for item in shape.items]}
    if isinstance(shape, Mapped):
        return {"map": to_plain(shape.value)}
    if isinstance(shape, Maybe):
        return {"maybe": to_plain(shape.inner)}
    return {"record": [shape.name, [[name, to_plain(field)] for name, field in shape.fields]]}


def from_plain(plain: Any) -> Shape:
    """The shape that `to_plain` made this of.

    Raises:
        ValueError: it did not.
    """
    if isinstance(plain, str):
        return Scalar(plain == "exact")
    match plain:
        case {"list": item}:
            return Listed(from_plain(item))
        case {"fixed": [*items]}:
            return Fixed(tuple(from_plain(item) for item in items))
        case {"map": value}:
            return Mapped(from_plain(value))
        case {"maybe": inner}:
            return Maybe(from_plain(inner))
        case {"record": [str(name), [*fields]]}:
            return Record(RENAMED_KINDS.get(name, name), tuple((field, from_plain(each)) for field, each in fields))
    raise ValueError("not a shape")


def revived(shape: Shape, value: Any) -> Any:
    """A plain value of lists and dictionaries as what it was: tuples, mappings and dataclasses."""
    if isinstance(shape, Scalar) or value is None:
        return value
    if isinstance(shape, Maybe):
        return revived(shape.inner, value)
    if isinstance(shape, Listed):
        return tuple(revived(shape.item, each) for each in value) if value else ()
    if isinstance(shape, Fixed):
        return tuple(revived(item, each) for item, each in zip(shape.items, value, strict=True))
    if isinstance(shape, Mapped):
        return {key: revived(shape.value, each) for key, each in value.items()}
    return built(shape.name, {name: revived(field, value[name]) for name, field in shape.fields if name in value})


_RENAMED = {
    "rung": "visibility",
    "climb": "how_to_see_more",
    "batch_looks": "batches_inspected",
    "feeder_looks": "feeder_rounds",
}
"""Fields of recordings of version 1."""
RENAMED_KINDS = {"Standing": "CurrentLine"}
"""Kinds of samples of recordings of version 1."""


def built(name: str, fields: Mapping[str, Any]) -> Any:
    """The dataclass of that name, without fields that it does not have; those that the file lacks have defaults."""
    cls = _CLASSES[name]
    known = _names(cls)
    values = {_RENAMED.get(field, field): value for field, value in fields.items()}
    if values.get("visibility") == "proc":
        values["visibility"] = "process"
    return cls(**{field: value for field, value in values.items() if field in known})


Check = Callable[[Sequence[Any]], bool]


def check_of(hint: Any) -> Check:
    """Says of values whether all are of a type, as a class gives it to its field."""
    return _check_of(hint)


@cache
def _check_of(hint: Any) -> Check:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _check_of_union(arguments)
    if origin is typing.Literal:
        return check_of(type(arguments[0]))  # a later version may have more of them
    if origin is tuple and arguments[-1] is Ellipsis:
        item = check_of(arguments[0])
        return lambda values: set(map(type, values)) <= {tuple} and item(list(chain.from_iterable(values)))
    if origin is tuple:
        places = [check_of(each) for each in arguments]
        return lambda values: (
            all(type(value) is tuple and len(value) == len(places) for value in values)
            and all(check(column) for check, column in zip(places, zip(*values, strict=True), strict=False))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        text, item = check_of(str), check_of(arguments[1])
        return lambda values: (
            set(map(type, values)) <= {dict}
            and text(list(chain.from_iterable(values)))
            and item(list(chain.from_iterable(value.values() for value in values)))
        )
    if dataclasses.is_dataclass(hint):
        return _check_of_record(typing.cast(type, hint))
    allowed = {int, float} if hint is float else {hint}
    if int in allowed:
        return lambda values: (
            set(map(type, values)) <= allowed
            and all(-_INT64 <= value < _INT64 for value in values if type(value) is int)
        )
    return lambda values: set(map(type, values)) <= allowed


def _check_of_union(arguments: Sequence[Any]) -> Check:
    checks = [check_of(each) for each in arguments if each is not type(None)]
    is_optional = type(None) in arguments

    def fits(values: Sequence[Any]) -> bool:
        known = [value for value in values if value is not None] if is_optional else values
        return any(check(known) for check in checks) or (
            len(checks) > 1 and all(any(check((value,)) for check in checks) for value in known)
        )

    return fits


def _check_of_record(cls: type) -> Check:
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    checks = [check_of(hints[name]) for name in names]
    row = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)

    def fits(values: Sequence[Any]) -> bool:
        if not values:
            return True
        if set(map(type, values)) != {cls}:
            return False
        return all(check(column) for check, column in zip(checks, zip(*map(row, values), strict=True), strict=True))

    return fits


@cache
def _names(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls))


def _shape(hint: Any, name: str) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        others = [each for each in arguments if each is not type(None)]
        inner = _shape(others[0], name) if len(others) == 1 else Scalar(name in EXACT)
        return inner if isinstance(inner, Scalar) else Maybe(inner)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return Listed(_shape(arguments[0], name))
        return Fixed(tuple(_shape(each, name) for each in arguments))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return Mapped(_shape(arguments[1], name))
    if dataclasses.is_dataclass(hint):
        return record_of(typing.cast(type, hint))
    return Scalar(name in EXACT)


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
