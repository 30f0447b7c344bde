"""Objects of another CPython: their types and plain values, read without trusting a single pointer.

The target runs on while it is read, so any address may by now hold something else. What does not look like the
object it should be is None: an unknown, never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from gpuwatch.reader.containment import Cache
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.object_layout import ObjectLayout
from gpuwatch.reader.type_info import (
    LIST_SUBCLASS,
    LONG_SUBCLASS,
    READY,
    TEXT_SUBCLASS,
    TUPLE_SUBCLASS,
    TYPE_FLAGS,
    TYPE_SIZE,
    TYPE_SUBCLASS,
    TypeInfo,
    type_head,
    type_info,
)

TYPE_POINTER = 8  # ob_type, behind the reference count
SIZE = 16  # ob_size of what has a variable length

_LIST_ITEMS = 24
_TEXT_INTERNED_BITS = 2  # the lowest of a str's state, before its kind
_DIGITS = 24
_DIGIT_BITS = 30
_LONGEST_INT = 64  # digits
_LONGEST_TEXT = 4096
_LONGEST_MRO = 64
_MOST_TYPES = 20_000  # addresses, of which most hold no type
_FIRST_PAGE = 1 << 16
_WORD = struct.Struct("<Q")
_SIGNED = struct.Struct("<q")
_HEADER = struct.Struct("<QQ")
_INT_HEAD = struct.Struct("<QQQII")


def words(data: bytes) -> tuple[int, ...]:
    """The 64-bit words of `data`."""
    return struct.unpack(f"<{len(data) // 8}Q", data)


def plausible(address: int) -> bool:
    """Whether an object may lie there: user space, and aligned as every allocator of CPython aligns."""
    return _FIRST_PAGE <= address < 1 << 56 and not address & 7


class Objects:
    """Reads objects of one target. Types are kept, `forget` drops them: a class may die and leave its address."""

    def __init__(self, memory: Memory, layout: ObjectLayout) -> None:
        self.memory = memory
        self.layout = layout
        self._types: Cache[int, TypeInfo | None] = Cache(_MOST_TYPES)
        self._word = Gather(memory, ((0, 8),))

    def forget(self, address: int | None = None) -> None:
        """Drops what is known of types, or of the one at `address`."""
        if address is None:
            self._types.clear()
        else:
            self._types.pop(address, None)

    def read(self, address: int, size: int) -> bytes | None:
        """The bytes there, None where nothing is mapped."""
        try:
            return self.memory.read(address, size)
        except UnreadableAddressError:
            return None

    def read_each(self, pieces: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Each piece, by one call where all are mapped; else only what is not is None."""
        try:
            return list(self.memory.read_many(pieces))
        except UnreadableAddressError:
            if len(pieces) == 1:
                return [None]
            middle = len(pieces) // 2
            return self.read_each(pieces[:middle]) + self.read_each(pieces[middle:])

    def pointer(self, address: int) -> int | None:
        """The pointer there."""
        self._word.move(0, address)
        try:
            return int(_WORD.unpack(self._word.read())[0]) if plausible(address) else None
        except UnreadableAddressError:
            return None

    def alive(self, references: int) -> bool:
        """Whether the first word of an object counts references.

        A freed object's is 0, or the allocator's link to the next free block, which no count reaches.
        """
        if self.layout.refcount_bits == 64:
            return 0 < references < 1 << 40
        return references & 0xFFFFFFFF != 0 and references >> 32 & 0xFFFF == 0

    def types_of(self, addresses: Iterable[int]) -> dict[int, TypeInfo]:
        """The types of those addresses that hold a living object."""
        asked = [address for address in dict.fromkeys(addresses) if plausible(address)]
        found: dict[int, TypeInfo] = {}
        for address, header in zip(asked, self.read_each([(one, 16) for one in asked]) if asked else (), strict=True):
            if header is None:
                continue
            references, type_address = _HEADER.unpack(header)
            if self.alive(references) and (info := self.type_at(type_address)) is not None:
                found[address] = info
        return found

    def type_of(self, address: int) -> TypeInfo | None:
        """The type of the living object there."""
        return self.types_of((address,)).get(address)

    def type_at(self, address: int) -> TypeInfo | None:
        """The class there, None where there is none."""
        try:
            return self._types[address]
        except KeyError:
            info = self._types[address] = self._read_type(address)
            return info

    def _read_type(self, address: int) -> TypeInfo | None:
        if not plausible(address) or (data := self.read(address, TYPE_SIZE)) is None:
            return None
        head = type_head(data)
        if not (self.alive(head.references) and head.flags & READY and self._is_metatype(head.metatype)):
            return None
        name = self.read_name(head.name_address)
        return None if name is None else type_info(address, data, name)

    def _is_metatype(self, address: int) -> bool:
        data = self.read(address + TYPE_FLAGS, 8) if plausible(address) else None
        return data is not None and bool(_WORD.unpack(data)[0] & TYPE_SUBCLASS)

    def read_name(self, address: int) -> str | None:
        """The NUL-terminated name there, None where it is none: empty, endless, or not printable."""
        try:
            name = self.memory.text(address, 256) if address >= _FIRST_PAGE else ""
        except UnreadableAddressError:
            return None
        return name if name.isprintable() and 0 < len(name) < 256 else None

    def ancestors(self, info: TypeInfo) -> list[TypeInfo]:
        """The class and its bases in method resolution order, as far as they can be read."""
        items = self.items(info.order, _LONGEST_MRO) or ()
        return [known for item in items if (known := self.type_at(item)) is not None] or [info]

    def integer(self, address: int) -> int | None:
        """The int there, a bool too."""
        info = self.type_of(address)
        if info is None or not info.flags & LONG_SUBCLASS:
            return None
        head = self.read(address, 32)
        return None if head is None else self._decode_int(address, head, info.address)

    def decode_small_int(self, head: Sequence[int], type_address: int) -> int | None:
        """The int of two digits at most: from its reference count, type, size and first two digits."""
        references, found_type, size, low, high = head
        if found_type != type_address or not self.alive(references):
            return None
        count, sign = self._int_size(size)
        if count == 1:
            return sign * low if low and not low >> _DIGIT_BITS else None
        if count == 2:
            return sign * (low | high << _DIGIT_BITS) if high and not (low | high) >> _DIGIT_BITS else None
        return None if count else 0

    def _int_size(self, size: int) -> tuple[int, int]:
        """The number of digits, and the sign."""
        if self.layout.tagged_int:
            return size >> 3, 1 - (size & 3)
        return ((1 << 64) - size, -1) if size >> 63 else (size, 1)

    def _decode_int(self, address: int, head: bytes, type_address: int) -> int | None:
        fields = _INT_HEAD.unpack(head)
        count, sign = self._int_size(fields[2])
        if count <= 2:
            return self.decode_small_int(fields, type_address)
        if count > _LONGEST_INT or (data := self.read(address + _DIGITS, 4 * count)) is None:
            return None
        digits: tuple[int, ...] = struct.unpack(f"<{count}I", data)
        if fields[1] != type_address or not digits[-1] or any(digit >> _DIGIT_BITS for digit in digits):
            return None
        return sign * int(sum(digit << (_DIGIT_BITS * index) for index, digit in enumerate(digits)))

    def text(self, address: int) -> str | None:
        """The str there, None where it is longer than 4 096 characters or kept in the form that 3.12 dropped."""
        info = self.type_of(address)
        if info is None or not info.flags & TEXT_SUBCLASS or (shape := self.text_shape(address)) is None:
            return None
        data = self.read(*shape[:2]) if shape[1] else b""
        return None if data is None else _decode_text(data, shape[2])

    def text_shape(self, address: int) -> tuple[int, int, int] | None:
        """Where the characters of a str lie, their bytes, and the bytes of each."""
        head = self.read(address + SIZE, 24)
        return None if head is None else self.decode_text_shape(address, head)

    def decode_text_shape(self, address: int, head: bytes) -> tuple[int, int, int] | None:
        """`text_shape` from the 24 bytes that follow the object's header."""
        length, _, state = struct.unpack_from("<qqI", head)
        state >>= _TEXT_INTERNED_BITS
        kind, compact, ascii_only = state & 7, state >> 3 & 1, state >> 4 & 1
        if not compact or kind not in (1, 2, 4) or not 0 <= length <= _LONGEST_TEXT:
            return None
        start = self.layout.text_header if ascii_only else self.layout.wide_text_header
        return address + start, length * kind, kind

    def plain(self, address: int) -> int | bool | float | str | None:
        """The bool, int, float or str there; None for everything else, the target's None too."""
        info = self.type_of(address)
        if info is None:
            return None
        if info.flags & LONG_SUBCLASS:
            number = self.integer(address)
            return number if number is None or info.heap or info.name != "bool" else bool(number)
        if info.flags & TEXT_SUBCLASS:
            return self.text(address)
        if info.name == "float" and not info.heap:
            data = self.read(address + SIZE, 8)
            return None if data is None else float(struct.unpack("<d", data)[0])
        return None

    def length(self, address: int) -> int | None:
        """The length of the list or tuple there."""
        info = self.type_of(address)
        if info is None or not info.flags & (LIST_SUBCLASS | TUPLE_SUBCLASS):
            return None
        data = self.read(address + SIZE, 8)
        length = -1 if data is None else int(_SIGNED.unpack(data)[0])
        return length if 0 <= length < 1 << 48 else None

    def items(self, address: int, limit: int) -> tuple[int, ...] | None:
        """The addresses of the first `limit` items of the list or tuple there."""
        length = self.length(address)
        if length is None:
            return None
        items = self.places(address, limit)[1]
        return items if len(items) == min(length, limit) else None

    def places(self, address: int, limit: int) -> tuple[int, tuple[int, ...]]:
        """Where the items of the list or tuple there stand, and the first `limit` of them."""
        info, length = self.type_of(address), self.length(address)
        first: int | None = address + self.layout.tuple_items
        if info is not None and info.flags & LIST_SUBCLASS:
            first = self.pointer(address + _LIST_ITEMS)
        if not length or first is None or (data := self.read(first, 8 * min(length, limit))) is None:
            return 0, ()
        return first, words(data)


def _decode_text(data: bytes, width: int) -> str | None:
    try:
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width])
    except UnicodeDecodeError:
        return None
