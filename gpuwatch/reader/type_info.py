"""A class of another CPython: which bytes of a type object say what, and what is kept of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

LONG_SUBCLASS, LIST_SUBCLASS, TUPLE_SUBCLASS, TEXT_SUBCLASS, DICT_SUBCLASS, TYPE_SUBCLASS = (
    1 << bit for bit in (24, 25, 26, 28, 29, 31)
)
HEAP_TYPE, READY = 1 << 9, 1 << 12
TYPE_FLAGS = 168  # tp_flags
MOST_CLASSES = 4096  # that are kept; torch and its world define about 15 000, of which few hold loaders
TYPE_SIZE = 352  # up to and with tp_mro

_HEAD = struct.Struct("<QQQQ")  # ob_refcnt, ob_type, ob_size, tp_name
_NAME, _BASICSIZE, _NEXT, _DICTIONARY, _DICTOFFSET, _MRO = 24, 32, 224, 264, 288, 344
_LARGEST_OBJECT = 1 << 20
_WORD = struct.Struct("<Q")
_SIGNED = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A class of the target."""

    address: int
    name: str  # as tp_name has it: only classes written in C carry their module in it
    flags: int
    order: int  # tp_mro, the tuple of it and its bases
    dictionary: int
    basic_size: int
    dict_offset: int
    name_address: int
    may_iterate: bool  # has tp_iternext, which classes inherit even where it only raises

    @property
    def heap(self) -> bool:
        """Made at run time: by a class statement, or by an extension that says so."""
        return bool(self.flags & HEAP_TYPE)

    def witness(self) -> tuple[int, bytes]:
        """Where to look, and what to find there, as long as this class lives at its address."""
        return self.address + _NAME, struct.pack("<QQ", self.name_address, self.basic_size)


class TypeHead(NamedTuple):
    """What tells whether the bytes are those of a class at all."""

    references: int
    metatype: int
    name_address: int
    flags: int


def type_head(data: bytes) -> TypeHead:
    """From the first TYPE_SIZE bytes of a type object."""
    references, metatype, _, name_address = _HEAD.unpack_from(data)
    return TypeHead(references, metatype, name_address, _word(data, TYPE_FLAGS))


def type_info(address: int, data: bytes, name: str) -> TypeInfo | None:
    """The class at an address by the same bytes, None where its sizes are none that a class has."""
    basic_size, dict_offset = _word(data, _BASICSIZE), _SIGNED.unpack_from(data, _DICTOFFSET)[0]
    if not 16 <= basic_size < _LARGEST_OBJECT or abs(dict_offset) >= _LARGEST_OBJECT:
        return None
    return TypeInfo(
        address=address,
        name=name,
        flags=_word(data, TYPE_FLAGS),
        order=_word(data, _MRO),
        dictionary=_word(data, _DICTIONARY),
        basic_size=basic_size,
        dict_offset=dict_offset,
        name_address=_word(data, _NAME),
        may_iterate=_word(data, _NEXT) != 0,
    )


def _word(data: bytes, offset: int) -> int:
    return int(_WORD.unpack_from(data, offset)[0])
