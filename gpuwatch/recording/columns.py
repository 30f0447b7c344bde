"""Samples as few bytes: fields cut into columns by the shape of their class, and each column packed.

A column is constant, a dictionary, whole numbers, decimals, floats, or what it takes. Whole numbers lose nothing, nor
do floats with at most nine decimals, which is what drivers and nanosecond clocks give. Other floats keep single
precision (6e-8, and nothing below 1e-38) unless they are counters. Byte planes instead of whole numbers one after the
other let deflate find the ones that do not change: 138 M values of a simulated day took 119 MB, as floats 592 MB.
What fits none of these, and each row of the tail, is MessagePack: of any string that a process may have, UTF-8 or not.

A file keeps the shapes it was written with, so a field that is new or gone is no reason to refuse it. A level whose
values are all equal, as most are within a minute (no workers, the same reasons why a field is missing), is one value
and no columns.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
import typing
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from math import isfinite
from operator import attrgetter, itemgetter, sub
from typing import Any, Union

import msgspec

import gpuwatch.samples as vocabulary

_EMPTY, _CONSTANT, _DICTIONARY, _WHOLE, _DECIMAL, _SINGLE, _DOUBLE, _MASKED, _PACKED = range(9)
_DIRECT, _DELTA = 0, 1
_MOST_ENTRIES = 256
_PROBE = 64  # values that show whether few different ones come again and again
_EXPONENTS = (0, 3, 6, 9)
_BIG_ENDIAN = sys.byteorder == "big"
_SHIFT = 1.5 * 2**52
"""Added to a number, it leaves its nearest integer in the low bits: a fifth of the time that round() takes."""
_MOST_SHIFTED = 2.0**51
_INT64 = 2**63
_MOST_VALUES = 1 << 22  # of a minute's samples of one kind: a constant column of a hostile file may claim any number


class DamagedError(Exception):
    """Bytes that are not what was written."""


def write_column(values: Sequence[Any], out: bytearray, *, exact: bool = False) -> None:
    """Appends a column to `out`."""
    kind, payload = _encode(values, exact)
    out += bytes((kind,)) + len(payload).to_bytes(4, "little") + payload


class ColumnReader:
    """Takes columns off the bytes again, in the order in which they were written.

    All of them together hold no more values than a minute has: few bytes may stand for any number of equal ones.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._left = _MOST_VALUES

    def flag(self) -> bytes:
        """The next byte."""
        self._at += 1
        return self._data[self._at - 1 : self._at]

    @property
    def is_at_end(self) -> bool:
        """Whether no column is left."""
        return self._at >= len(self._data)

    def cut(self) -> bytes:
        """The bytes of the next column, which another reader may take off later."""
        begin = self._at
        self._at += 5 + int.from_bytes(self._data[begin + 1 : begin + 5], "little")
        return self._data[begin : self._at]

    def read(self, count: int) -> Sequence[Any]:
        """The next column, of this many values.

        Raises:
            DamagedError: there is none.
        """
        head = self._data[self._at : self._at + 5]
        if len(head) < 5 or not 0 <= count <= self._left:
            raise DamagedError("a column is missing")
        self._left -= count
        length = int.from_bytes(head[1:], "little")
        self._at += 5
        payload = self._data[self._at : self._at + length]
        self._at += length
        try:
            values = _decode(head[0], payload, count)
        except (ValueError, IndexError, TypeError, OverflowError, RecursionError) as error:
            raise DamagedError("a column does not decode") from error
        if len(values) != count:
            raise DamagedError("a column has the wrong length")
        return values


def _encode(values: Sequence[Any], exact: bool) -> tuple[int, bytes]:
    count = len(values)
    if not count:
        return _EMPTY, b""
    first = values[0]
    if first == values[-1] == values[count // 2] and values.count(first) == count:
        return _CONSTANT, pack(first)
    try:
        listed = _dictionary(values) if len(set(values[:_PROBE])) <= _PROBE // 2 else None
    except TypeError:
        return _PACKED, pack(values)
    if listed is not None:
        return _DICTIONARY, listed
    return _whole(values) or _decimals(values) or _others(values, exact)


def _others(values: Sequence[Any], exact: bool) -> tuple[int, bytes]:
    types = set(map(type, values))
    if types == {float}:
        return _floats(values, exact)
    if type(None) in types and types <= {int, float, type(None)}:
        return _MASKED, _masked(values, exact)
    if types == {int, float}:  # what a driver gives as a whole number is an int in JSON
        floats = [float(value) for value in values]
        if floats == [*values]:
            return _floats(floats, exact)
    return _PACKED, pack(values)


def _decode(kind: int, payload: bytes, count: int) -> Sequence[Any]:
    if kind == _EMPTY:
        return ()
    if kind == _CONSTANT:
        return [_hashable(unpack(payload))] * count
    if kind == _DICTIONARY:
        length = int.from_bytes(payload[:4], "little")
        entries = [_hashable(each) if type(each) is list else each for each in unpack(payload[4 : 4 + length])]
        return list(map(entries.__getitem__, payload[4 + length :]))
    if kind == _WHOLE:
        return _from_integers(payload, count)
    if kind == _DECIMAL:
        return _from_decimals(payload, count)
    if kind in (_SINGLE, _DOUBLE):
        return _from_planes("f" if kind == _SINGLE else "d", payload, count)
    if kind == _MASKED:
        return _from_masked(payload, count)
    if kind == _PACKED:
        return [_hashable(value) for value in unpack(payload)]
    raise DamagedError(f"unknown kind of column {kind}")


def _hashable(value: Any) -> Any:
    return tuple(_hashable(each) for each in value) if isinstance(value, list) else value


def _dictionary(values: Sequence[Any]) -> bytes | None:
    """The place of each among those that are different; None where there are too many of those."""
    places: dict[Any, int] = defaultdict(itertools.count().__next__)
    try:
        codes = bytes(map(places.__getitem__, values))
    except ValueError:  # a 257th
        return None
    if len(places) > len(values) // 2 + 1:
        return None
    listed = [*places]
    if all(type(entry) in (int, float) for entry in listed):
        listed.sort()
        order = bytearray(_MOST_ENTRIES)
        for place, entry in enumerate(listed):
            order[places[entry]] = place
        codes = codes.translate(order)
    head = pack(listed)
    return len(head).to_bytes(4, "little") + head + codes


def _masked(values: Sequence[Any], exact: bool) -> bytes:
    known = [value for value in values if value is not None]
    mask = int("1" + "".join("0" if value is None else "1" for value in values), 2)
    out = bytearray(mask.to_bytes(len(values) // 8 + 1, "big"))
    write_column(known, out, exact=exact)
    return bytes(out)


def _from_masked(payload: bytes, count: int) -> list[Any]:
    length = count // 8 + 1
    bits = bin(int.from_bytes(payload[:length], "big"))[3:]
    known = iter(ColumnReader(payload[length:]).read(bits.count("1")))
    return [next(known) if bit == "1" else None for bit in bits]


def _whole(values: Sequence[Any]) -> tuple[int, bytes] | None:
    """As 64-bit integers; None where one is none."""
    try:
        return _WHOLE, _integers(array("q", values))
    except (TypeError, OverflowError):
        return None


def _integers(values: array[int]) -> bytes:
    """As they are, or if they only grow as differences."""
    length = len(values)
    grows = length > 3 and values[0] < values[length // 3] < values[2 * length // 3] < values[-1]
    if grows and values[-1] - values[0] < _INT64:
        with suppress(OverflowError):
            steps = _steps(values) or _little_endian(array("q", list(map(sub, values[1:], values))))
            return bytes((_DELTA,)) + values[0].to_bytes(8, "little", signed=True) + _planes(steps, 8)
    return bytes((_DIRECT,)) + _planes(_little_endian(values), 8)


def _steps(values: array[int]) -> bytes | None:
    """The differences of numbers of which the last is greater than the first; None where they do not only grow.

    All of them are made by one subtraction of two long numbers whose digits the values are, in a quarter of the time:
    as long as none is negative, none takes anything from the one above it, and the first that is has its highest bit
    set.
    """
    if values[0] < 0:
        return None
    data = _little_endian(values)
    steps = (int.from_bytes(data[8:], "little") - int.from_bytes(data[:-8], "little")).to_bytes(len(data) - 8, "little")
    return steps if steps[7::8].isascii() else None


def _from_integers(payload: bytes, count: int) -> array[int]:
    if payload[0] == _DIRECT:
        return _from_planes("q", payload[1:], count)
    first = int.from_bytes(payload[1:9], "little", signed=True)
    return array("q", itertools.accumulate(_from_planes("q", payload[9:], count - 1), initial=first))


def _decimals(values: Sequence[Any]) -> tuple[int, bytes] | None:
    """As whole multiples of a decimal; None where one is none."""
    shift = _SHIFT  # a local name is found sooner
    try:
        for exponent in _EXPONENTS:
            scale = 10.0**exponent
            if not all(_is_whole(value * scale, scale, value) for value in values[:: len(values) // 4 + 1]):
                continue
            shifted = [value * scale + shift for value in values]
            if [(value - shift) / scale for value in shifted] == [*values]:
                return _DECIMAL, bytes((exponent,)) + _integers(array("q", array("d", shifted).tobytes()))
    except (TypeError, OverflowError):  # something that is no number, or too great a one
        pass
    return None


def _floats(values: Sequence[float], exact: bool) -> tuple[int, bytes]:
    """In single precision, if that may be and can."""
    if not exact:
        single = array("f", values)
        if isfinite(sum(single)):
            return _SINGLE, _planes(_little_endian(single), 4)
    return _DOUBLE, _planes(_little_endian(array("d", values)), 8)


def _from_decimals(payload: bytes, count: int) -> list[float]:
    scale = 10.0 ** payload[0]
    return [(value - _SHIFT) / scale for value in array("d", _from_integers(payload[1:], count).tobytes())]


def _is_whole(scaled: float, scale: float, value: float) -> bool:
    return abs(scaled) < _MOST_SHIFTED and (scaled + _SHIFT - _SHIFT) / scale == value


def _little_endian(values: array[Any]) -> bytes:
    if not _BIG_ENDIAN:
        return values.tobytes()
    swapped = values[:]
    swapped.byteswap()
    return swapped.tobytes()


def _planes(data: bytes, size: int) -> bytes:
    """The bytes of all values, all first ones first; a place where all are equal takes one byte."""
    length = len(data) // size
    planes = [data[place::size] for place in range(size)]
    same = [plane.count(plane[:1]) == length for plane in planes]
    mask = sum(1 << place for place, is_same in enumerate(same) if is_same)
    return bytes((mask,)) + b"".join(
        plane[:1] if is_same else plane for plane, is_same in zip(planes, same, strict=True)
    )


def _from_planes(code: str, payload: bytes, count: int) -> array[Any]:
    values = array(code)
    size, mask, at = values.itemsize, payload[0], 1
    data = bytearray(size * count)
    for place in range(size):
        width = 1 if mask >> place & 1 else count
        plane = payload[at : at + width]
        at += width
        data[place::size] = plane * count if width == 1 and count != 1 else plane
    if at != len(payload):
        raise DamagedError("a column has the wrong length")
    values.frombytes(data)
    if _BIG_ENDIAN:
        values.byteswap()
    return values


_STRING, _MAPPING = 1, 2
"""Extension types: a string that is no UTF-8, and a mapping with such keys, as a list of pairs."""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


def _restore(code: int, data: memoryview) -> Any:
    if code == _STRING:
        return bytes(data).decode("utf-8", "surrogatepass")
    if code == _MAPPING:
        return dict(_decoder.decode(data))
    raise ValueError(f"unknown extension {code}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(ext_hook=_restore)


def pack(value: Any) -> bytes:
    """Bytes of None, booleans, 64-bit integers, floats, strings, tuples, lists, mappings and dataclasses.

    Raises:
        TypeError, OverflowError: for anything else.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_escaped(value))


def pack_list(packed: Sequence[bytes]) -> bytes:
    """Bytes of the list of values that are packed already."""
    return b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed)


def unpack(data: bytes) -> Any:
    """The value again, with lists for tuples and dictionaries for dataclasses.

    Raises:
        ValueError: the bytes are not what `pack` makes.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else msgspec.msgpack.Ext(_STRING, value.encode("utf-8", "surrogatepass"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _escaped(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        pairs = [(_escaped(key), _escaped(each)) for key, each in value.items()]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return msgspec.msgpack.Ext(_MAPPING, _encoder.encode(pairs))
    if isinstance(value, (tuple, list)):
        return [_escaped(each) for each in value]
    return value


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
