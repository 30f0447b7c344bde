"""DataLoader iterators that frames iterate over: directly, through enumerate and its like, through generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwatch.reader.iterators import IteratorTypes
from gpuwatch.reader.objects import TUPLE_SUBCLASS, Objects, TypeInfo, plausible, words
from gpuwatch.reader.slots import Candidate, SlotReader, Slots

DEPTH = 3
"""How many wrappers one inside the other are followed: enumerate(tqdm(prepared loader)) has three."""
_MOST_ZIPPED = 16
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
    """

    iterator: int
    members: tuple[int, ...]
    held: bool
    witnesses: Witnesses


class LoopFinder:
    """Finds loops in frames' slots."""

    def __init__(self, objects: Objects, types: IteratorTypes, slots: SlotReader) -> None:
        self._objects = objects
        self._types = types
        self._slots = slots

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
        if info.name == "generator" and not info.heap:
            return self._follow_generator(one, witnesses, depth - 1)
        if info.name in _WRAPPERS and (not info.heap or "." in info.name):
            return self._follow_wrapper(one, witnesses, info, depth - 1)
        return None

    def _follow_generator(self, one: Candidate, witnesses: Witnesses, depth: int) -> Loop | None:
        frame = self._slots.generator_slots(one.object)
        if frame is None:
            return None
        (inner,) = self._slots.candidates([frame[0]])
        loops = self._inner(inner, (*witnesses, *frame[1]), depth)
        return replace(loops[0], held=one.held) if loops else None

    def _follow_wrapper(self, one: Candidate, witnesses: Witnesses, info: TypeInfo, depth: int) -> Loop | None:
        data = self._objects.read(one.object + 8, 8 * (max(_WRAPPERS[info.name]) + 1))
        if data is None or (fields := words(data))[0] != info.address:
            return None
        inner: list[Candidate] = []
        for index in _WRAPPERS[info.name]:
            pointer, place = fields[index], one.object + 8 + 8 * index
            kind = self._objects.type_of(pointer)
            if kind is not None and kind.flags & TUPLE_SUBCLASS:
                witnesses = (*witnesses, (place, pointer.to_bytes(8, "little")))
                start = pointer + self._objects.layout.tuple_items
                items = self._objects.items(pointer, _MOST_ZIPPED) or ()
                inner += [Candidate(item, item, start + 8 * at, one.held) for at, item in enumerate(items)]
            elif plausible(pointer):
                inner.append(Candidate(pointer, pointer, place, one.held))
        loops = self._inner(inner, witnesses, depth)
        if not loops:
            return None
        members = tuple(dict.fromkeys(member for loop in loops for member in loop.members))
        return Loop(loops[0].iterator, members, one.held, loops[0].witnesses)

    def _inner(self, inner: list[Candidate], witnesses: Witnesses, depth: int) -> list[Loop]:
        types = self._objects.types_of(one.object for one in inner)
        return [
            loop for one in inner if (loop := self._follow(one, witnesses, types.get(one.object), depth)) is not None
        ]
