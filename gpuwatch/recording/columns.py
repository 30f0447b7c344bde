"""One column of values as few bytes: constant, dictionary, whole numbers, decimals, floats, or what it takes.

Whole numbers lose nothing, nor do floats with at most nine decimals, which is what drivers and nanosecond clocks give.
Other floats keep single precision (6e-8) unless they are counters. Byte planes instead of whole numbers one after the
other let deflate find the ones that do not change: 138 M values of a simulated day took 119 MB, as floats 592 MB.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from operator import sub
from typing import Any

from gpuwatch.recording.packing import pack, unpack

_EMPTY, _CONSTANT, _DICTIONARY, _WHOLE, _DECIMAL, _SINGLE, _DOUBLE, _MASKED, _PACKED = range(9)
_DIRECT, _DELTA = 0, 1
_MOST_ENTRIES = 256
_PROBE = 64  # values that show whether few different ones come again and again
_EXPONENTS = (0, 3, 6, 9)
_BIG_ENDIAN = sys.byteorder == "big"
_SINGLE_LEAST, _SINGLE_MOST = 1e-30, 1e38
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
    if values.count(first) == count:
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
        return _from_whole(payload, count)
    if kind == _DECIMAL:
        scale = 10.0 ** payload[0]
        return [value / scale for value in _from_whole(payload[1:], count)]
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
    """Differences from the least, or from one to the next, whichever range is smaller; None beyond 64 bits."""
    low, high = min(values), max(values)
    if low < -_INT64 or high >= _INT64:
        return None
    steps = list(map(sub, values[1:], values))
    step_low, step_high = min(steps), max(steps)
    offsets: Sequence[int]
    if step_high - step_low < high - low:
        offsets, mode, base, rest, reach = steps, _DELTA, step_low, values[0], step_high - step_low
    else:
        offsets, mode, base, rest, reach = values, _DIRECT, low, 0, high - low
    if base:
        offsets = [value - base for value in offsets]
    width = (reach.bit_length() + 7) // 8
    edges = b"".join(edge.to_bytes(9, "little", signed=True) for edge in (base, rest))
    return bytes((mode, width)) + edges + _planes(array("I" if width <= 4 else "Q", offsets), width)


def _from_whole(payload: bytes, count: int) -> list[int]:
    mode, width = payload[0], payload[1]
    base = int.from_bytes(payload[2:11], "little", signed=True)
    rest = int.from_bytes(payload[11:20], "little", signed=True)
    offsets = _from_planes("I" if width <= 4 else "Q", payload[20:], count - mode, width)
    if mode == _DIRECT:
        return [value + base for value in offsets]
    values = [rest]
    for step in offsets:
        rest += step + base
        values.append(rest)
    return values


def _floats(values: Sequence[float], exact: bool) -> tuple[int, bytes]:
    for exponent in _EXPONENTS:
        scale = 10.0**exponent
        if not all(_is_whole(value * scale, scale, value) for value in values[:: len(values) // 4 + 1]):
            continue
        try:
            whole = list(map(round, [value * scale for value in values]))
        except (OverflowError, ValueError):
            break
        if [value / scale for value in whole] == list(values):
            data = _whole(whole)
            if data is not None:
                return _DECIMAL, bytes((exponent,)) + data
    if exact or not _fits_single(values):
        return _DOUBLE, _planes(array("d", values), 8)
    return _SINGLE, _planes(array("f", values), 4)


def _is_whole(scaled: float, scale: float, value: float) -> bool:
    return abs(scaled) < 2**53 and round(scaled) / scale == value


def _fits_single(values: Sequence[float]) -> bool:
    sizes = [abs(value) for value in values if value]
    return max(sizes) < _SINGLE_MOST and min(sizes) > _SINGLE_LEAST and all(size == size for size in sizes)


def _planes(values: array[Any], width: int) -> bytes:
    """The bytes of all values, all first ones first."""
    if _BIG_ENDIAN:
        values.byteswap()
    data, size = values.tobytes(), values.itemsize
    return b"".join(data[place::size] for place in range(width))


def _from_planes(code: str, payload: bytes, count: int, width: int | None = None) -> array[Any]:
    values = array(code)
    size = values.itemsize
    width = size if width is None else width
    if len(payload) != width * count:
        raise DamagedError("a column has the wrong length")
    data = bytearray(size * count)
    for place in range(width):
        data[place::size] = payload[place * count : (place + 1) * count]
    values.frombytes(data)
    if _BIG_ENDIAN:
        values.byteswap()
    return values
