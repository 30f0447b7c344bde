"""One column of values as few bytes: constant, dictionary, whole numbers, decimals, floats, or what it takes.

Whole numbers lose nothing, nor do floats with at most nine decimals, which is what drivers and nanosecond clocks give.
Other floats keep single precision (6e-8, and nothing below 1e-38) unless they are counters. Byte planes instead of
whole numbers one after the other let deflate find the ones that do not change: 138 M values of a simulated day took
119 MB, as floats 592 MB.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from operator import sub
from typing import Any

from gpuwatch.recording.packing import pack, unpack

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
_MOST_VALUES = 1 << 24  # a constant column of a hostile file may claim any number


class DamagedError(Exception):
    """Bytes that are not what was written."""


def write_column(values: Sequence[Any], out: bytearray, *, exact: bool = False) -> None:
    """Appends a column to `out`."""
    kind, payload = _encode(values, exact)
    out += bytes((kind,)) + len(payload).to_bytes(4, "little") + payload


class ColumnReader:
    """Takes columns off the bytes again, in the order in which they were written."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

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
        """The next column, of so many values.

        Raises:
            DamagedError: there is none.
        """
        head = self._data[self._at : self._at + 5]
        if len(head) < 5 or count > _MOST_VALUES:
            raise DamagedError("a column is missing")
        length = int.from_bytes(head[1:], "little")
        self._at += 5
        payload = self._data[self._at : self._at + length]
        self._at += length
        try:
            values = _decode(head[0], payload, count)
        except (ValueError, IndexError, TypeError, OverflowError) as error:
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
        entries = set(values[:_PROBE])
        if len(entries) <= _PROBE // 2:
            entries = set(values)
            if len(entries) <= min(_MOST_ENTRIES, count // 2 + 1):
                return _DICTIONARY, _dictionary(values, entries)
    except TypeError:
        return _PACKED, pack(values)
    types = set(map(type, values))
    if types == {float}:
        return _floats(values, exact)
    if types == {int}:
        whole = _whole(values)
        return (_PACKED, pack(values)) if whole is None else (_WHOLE, whole)
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


def _dictionary(values: Sequence[Any], entries: set[Any]) -> bytes:
    listed = list(entries)
    if all(type(entry) in (int, float) for entry in listed):
        listed.sort()
    places = {entry: place for place, entry in enumerate(listed)}
    head = pack(listed)
    return len(head).to_bytes(4, "little") + head + bytes(map(places.__getitem__, values))


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


def _whole(values: Sequence[int]) -> bytes | None:
    """As 64-bit integers; None beyond."""
    try:
        return _integers(array("q", values), values)
    except OverflowError:
        return None


def _integers(values: array[int], listed: Sequence[int]) -> bytes:
    """As they are, or if they only grow as differences; `listed` are the same, which need not be made into objects."""
    count = len(listed)
    grows = count > 3 and listed[0] < listed[count // 3] < listed[2 * count // 3] < listed[-1]
    if grows and listed[-1] - listed[0] < _INT64:
        try:
            steps = array("q", list(map(sub, listed[1:], listed)))
        except OverflowError:
            grows = False
        else:
            return bytes((_DELTA,)) + listed[0].to_bytes(8, "little", signed=True) + _planes(steps)
    return bytes((_DIRECT,)) + _planes(values)


def _from_integers(payload: bytes, count: int) -> array[int]:
    if payload[0] == _DIRECT:
        return _from_planes("q", payload[1:], count)
    first = int.from_bytes(payload[1:9], "little", signed=True)
    return array("q", accumulate(_from_planes("q", payload[9:], count - 1), initial=first))


def _floats(values: Sequence[float], exact: bool) -> tuple[int, bytes]:
    """As whole multiples of a decimal where all of them are; else in single precision."""
    for exponent in _EXPONENTS:
        scale = 10.0**exponent
        if not all(_is_whole(value * scale, scale, value) for value in values[:: len(values) // 4 + 1]):
            continue
        shifted = array("d", [value * scale + _SHIFT for value in values])
        if [(value - _SHIFT) / scale for value in shifted] == [*values]:
            whole = array("q", shifted.tobytes())
            return _DECIMAL, bytes((exponent,)) + _integers(whole, whole.tolist())
    if not exact:
        single = array("f", values)
        if isfinite(sum(single)):
            return _SINGLE, _planes(single)
    return _DOUBLE, _planes(array("d", values))


def _from_decimals(payload: bytes, count: int) -> list[float]:
    scale = 10.0 ** payload[0]
    return [(value - _SHIFT) / scale for value in array("d", _from_integers(payload[1:], count).tobytes())]


def _is_whole(scaled: float, scale: float, value: float) -> bool:
    return abs(scaled) < _MOST_SHIFTED and (scaled + _SHIFT - _SHIFT) / scale == value


def _planes(values: array[Any]) -> bytes:
    """The bytes of all values, all first ones first; a place where all are equal takes one byte."""
    if _BIG_ENDIAN:
        values.byteswap()
    data, size, count = values.tobytes(), values.itemsize, len(values)
    planes = [data[place::size] for place in range(size)]
    same = [plane.count(plane[:1]) == count for plane in planes]
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
