"""DataLoader iterators that frames iterate over: directly, through enumerate and its like, through generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwatch.reader.attributes import Attributes
from gpuwatch.reader.containment import Cache
from gpuwatch.reader.iterators import IteratorTypes
from gpuwatch.reader.objects import Objects, words
from gpuwatch.reader.slots import Candidate, SlotReader, Slots
from gpuwatch.reader.type_info import LIST_SUBCLASS, MOST_CLASSES, TUPLE_SUBCLASS, TypeInfo

DEPTH = 3
"""How many wrappers one inside the other are followed: enumerate(tqdm(prepared loader)) has three."""
_MOST_ZIPPED = 16
_NEXT = ("__next__",)
_WRAPPERS = {
    "enumerate": (2,),
    "zip": (2,),
    "map": (1,),
    "filter": (2,),
    "itertools.islice": (1,),
    "itertools.cycle": (1,),
    "itertools.chain": (2,),
    "itertools.zip_longest": (3,),
    "itertools.takewhile": (2,),
    "itertools.dropwhile": (2,),
    "itertools.accumulate": (2,),
    "itertools.batched": (1,),
}
"""Which word behind the type pointer leads on: to an iterator, or to a tuple of them."""

Witnesses = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """An iterator that a frame iterates over, or holds in a variable.

    `members` are all iterators that one step of the loop advances, the first of them is `iterator`: zip's.
    `witnesses` and the life of all `holders` are what led from the frame to it.
    """

    iterator: int
    members: tuple[int, ...]
    held: bool
    witnesses: Witnesses
    holders: tuple[int, ...] = ()


class LoopFinder:
    """Finds loops in frames' slots."""

    def __init__(self, objects: Objects, attributes: Attributes, types: IteratorTypes, slots: SlotReader) -> None:
        self._objects = objects
        self._attributes = attributes
        self._types = types
        self._slots = slots
        self._iterating: Cache[TypeInfo, bool] = Cache(MOST_CLASSES)

    def forget(self) -> None:
        """Drops what is known of classes."""
        self._iterating.clear()

    def _iterates(self, info: TypeInfo) -> bool:
        """Whether a class statement gave the class or a base of it a `__next__`."""
        if info not in self._iterating:
            ancestors = (one for one in self._objects.ancestors(info) if one.heap)
            self._iterating[info] = any(self._attributes.dictionary(one.dictionary, _NEXT) for one in ancestors)
        return self._iterating[info]

    def leads(self, pointers: Sequence[int]) -> bool:
        """Whether one of the slots' pointers may lead to an iterator."""
        types = self._objects.types_of(self._slots.untagged(pointer) for pointer in pointers)
        return any(
            self._types.is_iterator(info)
            or info.name in _WRAPPERS
            or info.name == "generator"
            or (info.heap and info.may_iterate and self._iterates(info))
            for info in set(types.values())
        )

    def find(self, frames: Sequence[Slots]) -> list[list[Loop]]:
        """The loops of each frame, in the order of its slots."""
        candidates = self._slots.candidates(list(frames))
        types = self._objects.types_of(one.object for each in candidates for one in each)
        return [
            [loop for one in each if (loop := self._follow(one, (), types.get(one.object), DEPTH)) is not None]
            for each in candidates
        ]

    def _follow(self, one: Candidate, before: Witnesses, info: TypeInfo | None, depth: int) -> Loop | None:
        if info is None:
            return None
        witnesses = (*before, one.witness())
        if self._types.is_iterator(info):
            return Loop(one.object, (one.object,), one.held, witnesses)
        if not depth:
            return None
        loop = None
        if info.name == "generator" and not info.heap:
            loop = self._follow_generator(one, witnesses, depth - 1)
        elif info.name in _WRAPPERS and (not info.heap or "." in info.name):
            loop = self._follow_wrapper(one, witnesses, info, depth - 1)
        elif info.heap and info.may_iterate and self._iterates(info):
            loop = self._follow_instance(one, witnesses, info, depth - 1)
        return None if loop is None else replace(loop, held=one.held, holders=(one.object, *loop.holders))

    def _follow_generator(self, one: Candidate, witnesses: Witnesses, depth: int) -> Loop | None:
        frame = self._slots.generator_slots(one.object)
        if frame is None:
            return None
        (inner,) = self._slots.candidates([frame[0]])
        return next(iter(self._inner(inner, (*witnesses, *frame[1]), depth)), None)

    def _follow_instance(self, one: Candidate, witnesses: Witnesses, info: TypeInfo, depth: int) -> Loop | None:
        """Through an object of a Python class that has `__next__`, as Lightning's fetchers: by its attributes."""
        inner: list[Candidate] = []
        for slot in self._attributes.all_slots(one.object, info):
            witnesses = (*witnesses, *slot.witnesses)
            if (pointer := self._objects.pointer(slot.address)) is not None:
                inner.append(Candidate(pointer, pointer, slot.address, one.held))
        return next(iter(self._inner(inner, tuple(dict.fromkeys(witnesses)), depth)), None)

    def _follow_wrapper(self, one: Candidate, witnesses: Witnesses, info: TypeInfo, depth: int) -> Loop | None:
        data = self._objects.read(one.object + 8, 8 * (max(_WRAPPERS[info.name]) + 1))
        if data is None or (fields := words(data))[0] != info.address:
            return None
        inner = [
            Candidate(fields[index], fields[index], one.object + 8 + 8 * index, one.held)
            for index in _WRAPPERS[info.name]
        ]
        loops = self._inner(inner, witnesses, depth)
        if not loops:
            return None
        return replace(
            loops[0],
            members=tuple(dict.fromkeys(member for loop in loops for member in loop.members)),
            witnesses=tuple(dict.fromkeys(witness for loop in loops for witness in loop.witnesses)),
            holders=tuple(dict.fromkeys(holder for loop in loops for holder in loop.holders)),
        )

    def _inner(self, inner: list[Candidate], witnesses: Witnesses, depth: int) -> list[Loop]:
        """The loops that lead on from a wrapper, from each item where it holds them in a tuple or list."""
        types = self._objects.types_of(one.object for one in inner)
        loops: list[Loop] = []
        for one in inner:
            info = types.get(one.object)
            if info is not None and info.flags & (TUPLE_SUBCLASS | LIST_SUBCLASS):
                start, items = self._objects.places(one.object, _MOST_ZIPPED)
                parts = [Candidate(item, item, start + 8 * at, one.held) for at, item in enumerate(items)]
                kinds = self._objects.types_of(items)
                found = [
                    self._follow(part, (*witnesses, one.witness()), kinds.get(part.object), depth) for part in parts
                ]
                loops += [loop for loop in found if loop is not None]
            elif (loop := self._follow(one, witnesses, info, depth)) is not None:
                loops.append(loop)
        return loops
