"""Objects of another CPython: their types, plain values and attributes, read without trusting a single pointer.

The target runs on while it is read, so any address may by now hold something else. What does not look like the
object it should be is None: an unknown, never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuwatch.reader.layout import OBJECT_SIZE, OBJECT_TYPE, TEXT_ENCODINGS, TEXT_HEAD, InstanceDict, Layout
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.refusals import Cache

LONG_SUBCLASS, LIST_SUBCLASS, TUPLE_SUBCLASS, TEXT_SUBCLASS, DICT_SUBCLASS, TYPE_SUBCLASS = (
    1 << bit for bit in (24, 25, 26, 28, 29, 31)
)
HEAP_TYPE, READY = 1 << 9, 1 << 12
TYPE_FLAGS = 168  # tp_flags
MOST_CLASSES = 4096  # that are kept; torch and its world define about 15,000, of which few hold loaders
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
    """What shows whether the bytes are those of a class at all."""

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


_LIST_ITEMS = 24
_DIGITS = 24
_DIGIT_BITS = 30
_LONGEST_INT = 64  # digits
_LONGEST_TEXT = 4096
_LONGEST_MRO = 64
_MOST_TYPES = 20_000  # addresses, of which most hold no type
_FIRST_PAGE = 1 << 16
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

    def __init__(self, memory: Memory, layout: Layout) -> None:
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
        """The str there, None where it is longer than 4,096 characters or kept in the form that 3.12 dropped."""
        info = self.type_of(address)
        if info is None or not info.flags & TEXT_SUBCLASS:
            return None
        head = self.read(address + OBJECT_SIZE, TEXT_HEAD)
        shape = None if head is None else self.text_shape(address, head)
        data = None if shape is None else self.read(*shape[:2]) if shape[1] else b""
        return None if shape is None or data is None else _decode_text(data, shape[2])

    def text_shape(self, address: int, head: bytes) -> tuple[int, int, int] | None:
        """Where the characters of a str lie, their bytes, and the bytes of each; by the bytes behind its header."""
        shape = self.layout.text_shape(address, head)
        return None if shape is None or shape[1] > _LONGEST_TEXT else (shape[0], shape[1] * shape[2], shape[2])

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
            data = self.read(address + OBJECT_SIZE, 8)
            return None if data is None else float(struct.unpack("<d", data)[0])
        return None

    def length(self, address: int) -> int | None:
        """The length of the list or tuple there."""
        info = self.type_of(address)
        if info is None or not info.flags & (LIST_SUBCLASS | TUPLE_SUBCLASS):
            return None
        data = self.read(address + OBJECT_SIZE, 8)
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
        return data.decode(TEXT_ENCODINGS[width])
    except UnicodeDecodeError:
        return None


MANAGED_DICT, INLINE_VALUES = 1 << 4, 1 << 2
_DICT_KEYS = 32  # ma_keys, followed by ma_values
_INSTANCE_DICT = 24  # before the object
_VALUES_VALID = 3  # PyDictValues.valid
_LARGEST_DICT = 4096  # entries
_MOST_FOLLOWED = 64
_MAX_LOG2_SIZE = 16
_PLAIN_DEFAULTS = frozenset({"int", "bool", "float", "str", "NoneType", "tuple", "list"})


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the pointer to an attribute's value lies, true as long as each witness (address, bytes) is found."""

    address: int
    witnesses: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """A dict's keys and, where they lie apart from them, its values."""

    keys: int
    values: int | None
    witnesses: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The entries of a dict's keys: `size` bytes each, the pointer to the key at `key`, to the value behind it."""

    entries: int
    count: int
    size: int
    key: int


class Attributes:
    """Finds attributes by name, as `vars(object)[name]` would: no descriptor is asked, no class searched."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._layout = objects.layout
        self._shadowed: Cache[tuple[TypeInfo, frozenset[str]], frozenset[str]] = Cache(MOST_CLASSES)

    def forget(self) -> None:
        """Drops what is known of classes."""
        self._shadowed.clear()

    def values(self, address: int, names: frozenset[str]) -> dict[str, int]:
        """The addresses of those attributes' values that the object has, and that its class does not hide.

        A name for which the class has a property, or another descriptor, is left out: what Python would say
        cannot be known from outside.
        """
        info = self._objects.type_of(address)
        slots = {} if info is None else self.slots(address, info, names - self._hidden(info, names))
        witnesses = {witness for slot in slots.values() for witness in slot.witnesses}
        pieces = [(place, len(expected)) for place, expected in witnesses]
        found = self._objects.read_each([*((slot.address, 8) for slot in slots.values()), *pieces]) if slots else []
        if any(got != expected for got, (_, expected) in zip(found[len(slots) :], witnesses, strict=True)):
            if info is not None:
                self._objects.forget(info.address)  # another class may have been made at the address of a known one
            return {}
        return {
            name: value
            for name, data in zip(slots, found, strict=False)
            if data is not None and (value := int.from_bytes(data, "little")) and plausible(value)
        }

    def hidden(self, info: TypeInfo, name: str) -> bool:
        """Whether the class answers for `name` itself, by a property or another descriptor."""
        return bool(self._hidden(info, frozenset((name,))))

    def _hidden(self, info: TypeInfo, names: frozenset[str]) -> frozenset[str]:
        key = (info, names)
        if key not in self._shadowed:
            hidden: set[str] = set()
            for ancestor in self._objects.ancestors(info):
                if ancestor.heap:
                    for name, value in self.dictionary(ancestor.dictionary, names).items():
                        kind = self._objects.type_of(value)
                        if kind is None or kind.heap or kind.name not in _PLAIN_DEFAULTS:
                            hidden.add(name)
            self._shadowed[key] = frozenset(hidden)
        return self._shadowed[key]

    def dictionary(self, address: int, names: Collection[str]) -> dict[str, int]:
        """The addresses of a dict's values for those names that it has."""
        table = self._dict_table(address, ())
        if table is None:
            return {}
        found = {name: self._objects.pointer(slot.address) for name, slot in self._find(table, names).items()}
        return {name: value for name, value in found.items() if value is not None and plausible(value)}

    def slots(self, address: int, info: TypeInfo, names: Collection[str]) -> dict[str, Slot]:
        """The slots of those attributes of the instance that it may have: an empty one is a slot that holds 0."""
        header = (address + OBJECT_TYPE, info.address.to_bytes(8, "little"))
        table = self._instance_table(address, info, (header, info.witness()))
        return {} if table is None else self._find(table, names)

    def all_slots(self, address: int, info: TypeInfo) -> list[Slot]:
        """The slots of all attributes of the instance, none where it has more than 64."""
        header = (address + OBJECT_TYPE, info.address.to_bytes(8, "little"))
        table = self._instance_table(address, info, (header, info.witness()))
        keys = None if table is None else self._keys(table.keys)
        if table is None or keys is None or keys.count > _MOST_FOLLOWED:
            return []
        start, step = (keys.entries + keys.key + 8, keys.size) if table.values is None else (table.values, 8)
        return [Slot(start + step * index, table.witnesses) for index in range(keys.count)]

    def _instance_table(self, address: int, info: TypeInfo, witnesses: tuple[tuple[int, bytes], ...]) -> _Table | None:
        kind = self._layout.instance_dict
        if kind is InstanceDict.OFFSET or not info.flags & MANAGED_DICT:
            if info.dict_offset <= 0:
                return None  # none, or counted from the end of objects of variable length, which no loader is
            return self._pointed_dict(address + info.dict_offset, witnesses)
        if kind is InstanceDict.VALUES_BEFORE:
            if (data := self._objects.read(address - _INSTANCE_DICT - 8, 16)) is None:
                return None
            values, _ = words(data)
            if values:
                return self._values_table(values, info, (*witnesses, (address - _INSTANCE_DICT - 8, data)))
        elif kind is InstanceDict.TAGGED:
            if (data := self._objects.read(address - _INSTANCE_DICT, 8)) is None:
                return None
            (pointer,) = words(data)
            if pointer & 1:
                return self._values_table(pointer + 1, info, (*witnesses, (address - _INSTANCE_DICT, data)))
        elif info.flags & INLINE_VALUES:
            valid = address + info.basic_size + _VALUES_VALID
            if (flag := self._objects.read(valid, 1)) == b"\1":
                return self._values_table(address + info.basic_size, info, (*witnesses, (valid, flag)))
        return self._pointed_dict(address - _INSTANCE_DICT, witnesses)

    def _values_table(self, values: int, info: TypeInfo, witnesses: tuple[tuple[int, bytes], ...]) -> _Table | None:
        place = info.address + self._layout.cached_keys
        data = self._objects.read(place, 8)
        if data is None or not info.heap:
            return None
        (keys,) = words(data)
        return _Table(keys, values + self._layout.values_header, (*witnesses, (place, data)))

    def _pointed_dict(self, place: int, witnesses: tuple[tuple[int, bytes], ...]) -> _Table | None:
        data = self._objects.read(place, 8)
        return None if data is None else self._dict_table(words(data)[0], (*witnesses, (place, data)))

    def _dict_table(self, address: int, witnesses: tuple[tuple[int, bytes], ...]) -> _Table | None:
        info = self._objects.type_of(address)
        if info is None or not info.flags & DICT_SUBCLASS:
            return None
        if (data := self._objects.read(address + _DICT_KEYS, 16)) is None:
            return None
        keys, values = words(data)
        header = (address + OBJECT_TYPE, info.address.to_bytes(8, "little"))
        own = (*witnesses, header, (address + _DICT_KEYS, data))
        return _Table(keys, values + self._layout.values_header if values else None, own)

    def _find(self, table: _Table, names: Collection[str]) -> dict[str, Slot]:
        """Where the pointers to the values of `names` lie."""
        keys = self._keys(table.keys)
        if keys is None or not keys.count or not names:
            return {}
        data = self._objects.read(keys.entries, keys.count * keys.size)
        if data is None:
            return {}
        places = {
            key: index
            for index in range(keys.count)
            if plausible(key := struct.unpack_from("<Q", data, index * keys.size + keys.key)[0])
        }
        found: dict[str, Slot] = {}
        for key, name in self._names(list(places), names).items():
            entry = keys.entries + places[key] * keys.size + keys.key
            place = entry + 8 if table.values is None else table.values + 8 * places[key]
            found[name] = Slot(place, (*table.witnesses, (entry, key.to_bytes(8, "little"))))
        return found if self._keys(table.keys) == keys else {}  # it was resized meanwhile

    def _names(self, keys: list[int], names: Collection[str]) -> dict[int, str]:
        """Those keys that are one of `names`, by two calls for all of them."""
        lengths = {len(name.encode()) for name in names}
        heads = self._objects.read_each([(key, 40) for key in keys]) if keys else []
        shapes = {
            key: shape
            for key, head in zip(keys, heads, strict=True)
            if head is not None
            and self._objects.alive(words(head)[0])
            and (shape := self._objects.text_shape(key, head[16:])) is not None
            and shape[1] in lengths
            and shape[2] == 1
        }
        texts = self._objects.read_each([shape[:2] for shape in shapes.values()]) if shapes else []
        wanted = {name.encode(): name for name in names}
        return {
            key: wanted[data] for key, data in zip(shapes, texts, strict=True) if data is not None and data in wanted
        }

    def _keys(self, address: int) -> _Keys | None:
        if not plausible(address) or (data := self._objects.read(address, 40)) is None:
            return None
        if self._layout.compact_keys:
            log2_size, log2_index_bytes, kind = data[8], data[9], data[10]
            references, _, usable, count = words(data[:32])
            if kind > 2 or not log2_size <= log2_index_bytes <= log2_size + 3:
                return None
            size, start = 1 << log2_size, 32 + (1 << log2_index_bytes)
            entry, key = (24, 8) if kind == 0 else (16, 0)
        else:
            references, size, _, usable, count = words(data)
            width = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4
            start, entry, key = 40 + size * width, 24, 8
        sane = 0 < references < 1 << 32 and size.bit_count() == 1 and size <= 1 << _MAX_LOG2_SIZE
        if not sane or count > _LARGEST_DICT or usable > size or count > size:
            return None
        return _Keys(address + start, count, entry, key)
