"""The count of a live DataLoader iterator, read again by one system call."""

from __future__ import annotations

import struct

from gpuwatch.reader.attributes import Attributes, Slot
from gpuwatch.reader.containment import Cache
from gpuwatch.reader.memory import Gather, UnreadableAddressError
from gpuwatch.reader.objects import Objects, plausible
from gpuwatch.reader.type_info import LONG_SUBCLASS, MOST_CLASSES, TypeInfo

COUNT = "_num_yielded"
BASE = "_BaseDataLoaderIter"
MODULE = "torch.utils.data.dataloader"
_INT_BYTES = 32  # header, size, two digits: 2**60 batches
_TRIES = 4  # an increment stores a new int: two in a row between two reads are rare, four are not a counter


class IteratorTypes:
    """Which classes are DataLoader iterators: those derived from torch's own base, torchdata's among them."""

    def __init__(self, objects: Objects, attributes: Attributes) -> None:
        self._objects = objects
        self._attributes = attributes
        self._known: Cache[TypeInfo, bool] = Cache(MOST_CLASSES)

    def forget(self) -> None:
        """Drops what is known of classes."""
        self._known.clear()

    def is_iterator(self, info: TypeInfo) -> bool:
        """Whether instances of the class have a count that can be believed."""
        if not info.heap:
            return False
        if info not in self._known:
            ancestors = self._objects.ancestors(info)
            self._known[info] = any(map(self._is_base, ancestors)) and not self._attributes.hidden(info, COUNT)
        return self._known[info]

    def _is_base(self, info: TypeInfo) -> bool:
        if info.name != BASE or not info.heap:
            return False
        module = self._attributes.dictionary(info.dictionary, ("__module__",)).get("__module__")
        return module is not None and self._objects.text(module) == MODULE


class Count:
    """An iterator's count, and the pointers whose change shows that another iterator took its place.

    An iterator dies with its epoch and the next one is often made at its address, its dict and keys included. So
    each read compares all that leads to the number with what stood there, and the objects that tell the loader
    (`identity`: its sampler and dataset). An int is immutable: adding one stores another object, as a rule one of
    two addresses in turn, so both are read along and a second call is needed only where the pointer is a new one.
    """

    def __init__(self, objects: Objects, iterator: int, int_type: int, slot: Slot, identity: tuple[Slot, ...]) -> None:
        self._objects = objects
        self._iterator = iterator
        self._int_type = int_type
        witnesses = list(dict.fromkeys(witness for one in (slot, *identity) for witness in one.witnesses))
        pieces = [(place, len(expected)) for place, expected in witnesses]
        self._expected = b"".join(expected for _, expected in witnesses)
        pieces += [(iterator, 8), *((one.address, 8) for one in identity), (slot.address, 8)]
        self._first_int = len(pieces)
        pieces += [(iterator, _INT_BYTES), (iterator, _INT_BYTES), (slot.address, 8)]
        self._gather = Gather(objects.memory, pieces)
        self._witnesses = self._gather.view[: len(self._expected)]
        self._rest = self._gather.view[len(self._expected) :]
        self._fields = struct.Struct(f"<{2 + len(identity)}Q 3Q2I 3Q2I Q")
        self._identities = len(identity)
        self._addresses = [0, 0]  # of the two ints
        self._last = 0
        self.identity: tuple[int, ...] = ()
        """The addresses found at the first read; a later read that finds others is None."""

    def read(self) -> int | None:
        """The count; None once the iterator is dead, replaced or changed in shape, or where no int is found."""
        for _ in range(_TRIES):
            try:
                self._gather.read()
            except UnreadableAddressError:
                if not any(self._addresses):
                    return None
                self._place(0, 0)
                self._place(1, 0)
                continue
            if self._witnesses.tobytes() != self._expected:
                return None
            references, *identity, before, after = self._head(fields := self._fields.unpack(self._rest))
            if not self._objects.alive(references) or (self.identity and self.identity != tuple(identity)):
                return None
            if before == after and before in self._addresses:
                self._last = self._addresses.index(before)
                start = 2 + self._identities + 5 * self._last
                count = self._objects.decode_small_int(fields[start : start + 5], self._int_type)
                if count is None or count < 0:
                    return None
                self.identity = tuple(identity)
                return count
            if not plausible(after):
                return None
            self._last = 1 - self._last
            self._place(self._last, after)
        return None

    def _head(self, fields: tuple[int, ...]) -> tuple[int, ...]:
        """The iterator's references, the identity, and the pointer to the int before and after it was read."""
        return (*fields[: 2 + self._identities], fields[-1])

    def _place(self, which: int, address: int) -> None:
        """Reads one of the two ints from there; 0 is a place that can always be read as long as the iterator lives."""
        self._addresses[which] = address
        self._gather.move(self._first_int + which, address or self._iterator)


def int_type(objects: Objects, address: int) -> int | None:
    """The class of the int there, None where it is no int."""
    info = objects.type_of(address)
    return info.address if info is not None and info.flags & LONG_SUBCLASS and info.name != "bool" else None
