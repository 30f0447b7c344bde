"""MessagePack of plain values, for any string that a process may have: also those that are no UTF-8."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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
