"""Attributes of the target's instances: where their values lie, and how to tell later that they still lie there.

A dict is never changed in place in a way that a reader could rely on, so all that leads to a value is kept as
witnesses: places of the target's memory with the bytes that stood there. As long as they stand, so does the slot.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from gpuwatch.reader.containment import Cache
from gpuwatch.reader.object_layout import InstanceDict
from gpuwatch.reader.objects import TYPE_POINTER, Objects, plausible, words
from gpuwatch.reader.type_info import DICT_SUBCLASS, MOST_CLASSES, TypeInfo

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
            self._forget_class(info)
            return {}
        return {
            name: value
            for name, data in zip(slots, found, strict=False)
            if data is not None and (value := int.from_bytes(data, "little")) and plausible(value)
        }

    def _forget_class(self, info: TypeInfo | None) -> None:
        """After a read that did not fit: another class may have been made at the address of a known one."""
        if info is not None:
            self._objects.forget(info.address)

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
        header = (address + TYPE_POINTER, info.address.to_bytes(8, "little"))
        table = self._instance_table(address, info, (header, info.witness()))
        return {} if table is None else self._find(table, names)

    def all_slots(self, address: int, info: TypeInfo) -> list[Slot]:
        """The slots of all attributes of the instance, none where it has more than 64."""
        header = (address + TYPE_POINTER, info.address.to_bytes(8, "little"))
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
        header = (address + TYPE_POINTER, info.address.to_bytes(8, "little"))
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
            and (shape := self._objects.decode_text_shape(key, head[16:])) is not None
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
