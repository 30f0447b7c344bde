"""A class of another CPython: which bytes of a type object say what, and what is kept of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

LONG_SUBCLASS, LIST_SUBCLASS, TUPLE_SUBCLASS, TEXT_SUBCLASS, DICT_SUBCLASS, TYPE_SUBCLASS = (
    1 << bit for bit in (24, 25, 26, 28, 29, 31)
)
HEAP_TYPE, READY = 1 << 9, 1 << 12
TYPE_FLAGS = 168  # tp_flags
TYPE_SIZE = 352  # up to and with tp_mro

_HEAD = struct.Struct("<QQQQ")  # ob_refcnt, ob_type, ob_size, tp_name
_NAME, _BASICSIZE, _NEXT, _BASE, _DICTIONARY, _DICTOFFSET, _MRO = 24, 32, 224, 256, 264, 288, 344
_LARGEST_OBJECT = 1 << 20
_WORD = struct.Struct("<Q")
_SIGNED = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A class of the target."""

    address: int
    name: str  # as tp_name has it: only classes written in C carry their module in it
    flags: int
    base: int
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


@dataclass(frozen=True, slots=True)
class TypeFields:
    """What the bytes of a type object say, before any of it is believed."""

    references: int
    metatype: int
    name_address: int
    flags: int
    base: int
    order: int
    dictionary: int
    basic_size: int
    dict_offset: int
    following: int  # tp_iternext

    @classmethod
    def of(cls, data: bytes) -> TypeFields:
        """From the first TYPE_SIZE bytes of the object."""
        references, metatype, _, name_address = _HEAD.unpack_from(data)
        flags, base, order, dictionary, basic_size, following = (
            _WORD.unpack_from(data, offset)[0] for offset in (TYPE_FLAGS, _BASE, _MRO, _DICTIONARY, _BASICSIZE, _NEXT)
        )
        dict_offset = _SIGNED.unpack_from(data, _DICTOFFSET)[0]
        return cls(
            references, metatype, name_address, flags, base, order, dictionary, basic_size, dict_offset, following
        )

    def info(self, address: int, name: str) -> TypeInfo | None:
        """The class at an address, None where its sizes are none that a class has."""
        if not 16 <= self.basic_size < _LARGEST_OBJECT or abs(self.dict_offset) >= _LARGEST_OBJECT:
            return None
        return TypeInfo(
            address,
            name,
            self.flags,
            self.base,
            self.order,
            self.dictionary,
            self.basic_size,
            self.dict_offset,
            self.name_address,
            self.following != 0,
        )
