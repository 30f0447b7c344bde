"""DataLoader iterators that a stack's frames iterate over, and values of the frames' variables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpuwatch.reader.codes import Code
from gpuwatch.reader.memory import IOV_MAX, Gather, UnreadableAddressError
from gpuwatch.reader.objects import (
    LIST_SUBCLASS,
    MOST_CLASSES,
    TUPLE_SUBCLASS,
    Attributes,
    Objects,
    TypeInfo,
    plausible,
    words,
)
from gpuwatch.reader.refusals import Cache
from gpuwatch.reader.stacks import Frame

COUNT = "_num_yielded"
BASE = "_BaseDataLoaderIter"
MODULE = "torch.utils.data.dataloader"


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


_MOST_SLOTS = 4096
_MOST_SHAPES = 20_000
_TAG_BITS, _TAGGED_INT = 7, 3


@dataclass(frozen=True, slots=True)
class CodeShape:
    """How many slots the frames of a code object have."""

    variables: int
    stack: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the slots of one frame lie; `top` is where it stands how many are used, None where that is not known."""

    address: int
    shape: CodeShape
    top: int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pointer found in a slot, or in a wrapper that a slot leads to."""

    object: int
    raw: int  # as it stands in the slot, where 3.14 and later keep a low bit or two for themselves
    place: int
    held: bool  # on the value stack: a for loop's, not just a variable

    def witness(self) -> tuple[int, bytes]:
        """The slot and what stood in it."""
        return self.place, self.raw.to_bytes(8, "little")


class SlotReader:
    """Reads frames' slots, innermost loop first: the value stack from its top down, then the variables.

    A running frame keeps its stack pointer in a register, so which of its stack slots are used is known only while
    it calls another Python function without C code in between (3.11 and later). Otherwise all are read, and those
    above the top hold what was popped last: the caller must check whether it is still alive.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._layout = objects.layout
        self._shapes: Cache[int, tuple[Code | None, CodeShape | None]] = Cache(_MOST_SHAPES)

    def forget(self) -> None:
        """Drops what is known of code objects."""
        self._shapes.clear()

    def shape(self, address: int, code: Code | None = None) -> CodeShape | None:
        """The shape of the code object there; `code`, as the stack has it, shows when another took its place."""
        known = self._shapes.get(address)
        if known is None or known[0] is not code:
            known = self._shapes[address] = (code, self._read_shape(address))
        return known[1]

    def _read_shape(self, address: int) -> CodeShape | None:
        info = self._objects.type_of(address)
        if info is None or info.name != "code" or info.heap:
            return None
        layout = self._layout
        fields = (layout.code_locals, layout.code_stack)
        counts = self._objects.read_each([(address + field, 4) for field in fields])
        if None in counts:
            return None
        variables, stack = (struct.unpack("<i", data)[0] for data in counts if data is not None)
        for offset in layout.code_cells:
            cells = self._objects.pointer(address + offset)
            length = None if cells is None else self._objects.length(cells)
            if length is None:
                return None
            variables += length
        if min(variables, stack) < 0 or variables + stack > _MOST_SLOTS:
            return None
        return CodeShape(variables, stack)

    def slots(self, frame: int, locals_address: int, shape: CodeShape) -> Slots:
        """The slots of a frame."""
        top = self._layout.frame_top
        return Slots(locals_address, shape, None if top is None else frame + top)

    def generator_slots(self, generator: int) -> tuple[Slots, tuple[tuple[int, bytes], ...]] | None:
        """The slots of the frame of the generator there, and the witnesses of its being that frame."""
        layout = self._layout
        frame: int | None = generator + layout.generator_frame
        witnesses: tuple[tuple[int, bytes], ...] = ()
        if not layout.generator_frame_inline:
            place = generator + layout.generator_frame
            frame = self._objects.pointer(place)
            if frame is None or not plausible(frame):
                return None
            witnesses = ((place, frame.to_bytes(8, "little")),)
        assert frame is not None
        code = self._objects.pointer(frame + layout.frame_code)
        if code is None or (shape := self.shape(self.untagged(code))) is None:
            return None
        place = frame + layout.frame_code
        return self.slots(frame, frame + layout.frame_locals, shape), (*witnesses, (place, code.to_bytes(8, "little")))

    def candidates(self, frames: list[Slots]) -> list[list[Candidate]]:
        """What the slots of each frame point at, by one call for all frames."""
        pieces: list[tuple[int, int]] = []
        for frame in frames:
            pieces.append((frame.address, 8 * (frame.shape.variables + frame.shape.stack)))
            pieces.append((frame.address, 0) if frame.top is None else (frame.top, 8))
        data = self._objects.read_each(pieces) if pieces else []
        return [
            [] if slots is None else self._ordered(frame, words(slots), top)
            for frame, slots, top in zip(frames, data[::2], data[1::2], strict=True)
        ]

    def _ordered(self, frame: Slots, pointers: tuple[int, ...], top: bytes | None) -> list[Candidate]:
        variables, end = frame.shape.variables, len(pointers)
        if top:
            (used,) = struct.unpack_from("<q" if self._layout.frame_top_pointer else "<i", top)
            if self._layout.frame_top_pointer:
                used = (used - frame.address) // 8
            end = used if variables <= used <= end else end
        order = (*range(end - 1, variables - 1, -1), *range(variables))
        found: list[Candidate] = []
        seen: set[int] = set()
        for index in order:
            pointer = self.untagged(pointers[index])
            if plausible(pointer) and pointer not in seen:
                seen.add(pointer)
                found.append(Candidate(pointer, pointers[index], frame.address + 8 * index, index >= variables))
        return found

    def first_variable(self, frame: Frame) -> int | None:
        """What the frame's first variable points at: `self` in a method. None where another call's frame lies there.

        Frames of calls that follow each other share their place: that of `__iter__`, which just returned the new
        iterator, is next that of the old one's `__del__`.
        """
        places = ((frame.address + self._layout.frame_code, 8), (frame.locals_address, 8))
        code, variable = self._objects.read_each(places)
        if code is None or variable is None or self.untagged(words(code)[0]) != frame.code.address:
            return None
        return self.untagged(words(variable)[0])

    def untagged(self, pointer: int) -> int:
        """A slot's pointer without the bits that 3.14 and later keep in it, 0 where they say that it is an int."""
        if not self._layout.tagged_references:
            return pointer
        return 0 if pointer & _TAGGED_INT == _TAGGED_INT else pointer & ~_TAG_BITS


_CELL_CONTENTS = 16  # PyCellObject.ob_ref
_MOST_NAMES = 4096
_MOST_NAMED_CODES = 2_000


class Variables:
    """Reads locals and, for names that are none, globals: what the code of a frame means by a name."""

    def __init__(self, objects: Objects, attributes: Attributes, slots: SlotReader) -> None:
        self._objects = objects
        self._attributes = attributes
        self._slots = slots
        self._names: Cache[int, tuple[Code, tuple[str | None, ...]]] = Cache(_MOST_NAMED_CODES)

    def forget(self) -> None:
        """Drops what is known of code objects."""
        self._names.clear()

    def integer(self, frame: Frame, name: str) -> int | None:
        """The int that `name` stands for in the frame; "self.step" is an attribute of a variable.

        None where it is not bound, holds no int, or is answered by a property, and where it is bound to another object
        by the time that this one was read: a count has a new int each time, and the memory of the old one is used again
        at once. Of 600 readings of a count that grew 750 times a second one was any other number.
        """
        address = self._place(frame, name)
        value = None if address is None else self._objects.integer(address)
        return value if value is not None and self._place(frame, name) == address else None

    def _place(self, frame: Frame, name: str) -> int | None:
        """The address of the object that `name` stands for."""
        variable, _, attribute = name.partition(".")
        address = self._bound(frame, variable)
        if address is not None and attribute:
            address = self._attributes.values(address, frozenset((attribute,))).get(attribute)
        return address

    def _bound(self, frame: Frame, name: str) -> int | None:
        """The address of the object that the name is bound to."""
        names = self._names_of(frame.code)
        if name in names:
            pointer = self._slots.untagged(self._objects.pointer(frame.locals_address + 8 * names.index(name)) or 0)
            info = self._objects.type_of(pointer)
            is_cell = info is not None and info.name == "cell" and not info.heap
            return self._objects.pointer(pointer + _CELL_CONTENTS) if is_cell else pointer or None
        globals_address = self._objects.pointer(frame.address + self._objects.layout.frame_globals)
        return None if globals_address is None else self._attributes.dictionary(globals_address, (name,)).get(name)

    def _names_of(self, code: Code) -> tuple[str | None, ...]:
        """The names of the slots, in their order."""
        known = self._names.get(code.address)
        if known is None or known[0] is not code:
            layout = self._objects.layout
            tables = [self._objects.pointer(code.address + at) for at in (layout.code_names, *layout.code_cells)]
            items = [item for table in tables if table for item in self._objects.items(table, _MOST_NAMES) or ()]
            known = self._names[code.address] = code, tuple(map(self._objects.text, items))
        return known[1]


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


LONGEST_PAUSE = 16
"""Samples without asking code again that never held an iterator: 0.16 s at 100 Hz."""
_LOADER_FILES = ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
_TORCH = ("-packages/torch/", "-packages/torchdata/")
_PACKAGES = "-packages/"
_STANDARD_LIBRARY = "/lib/python"
_MOST_FRAMES = 64
_MOST_CODES = 20_000
_MOST_BORING = 64


@dataclass(slots=True)
class CodeRecord:
    """What is known of a code object: which part it plays, and whether looking at its frames is worth it."""

    code: Code
    of_loader: bool
    of_library: bool
    misses: int = 0
    next_sample: int = 0


@dataclass(slots=True)
class _Remembered:
    """The loops of a frame, true as long as all witnesses are found and what holds the iterators lives.

    `boring` are contents of the value stack above the innermost loop in which no other loop was found: that is where
    a loop inside the loop would stand.
    """

    code: int
    loops: list[Loop]
    gather: Gather = field(repr=False)
    expected: bytes = field(repr=False)
    holders: int
    boring: set[bytes] = field(default_factory=set, repr=False)

    def holds(self, objects: Objects, finder: LoopFinder) -> bool:
        """Whether the frame still iterates over the same, and over nothing more."""
        try:
            view = self.gather.read()
        except UnreadableAddressError:
            return False
        end = len(self.expected)
        above = end + 8 * self.holders
        if view[:end].tobytes() != self.expected or not all(map(objects.alive, words(view[end:above].tobytes()))):
            return False
        content = view[above:].tobytes()
        if content not in self.boring:
            if finder.leads(words(content)):
                return False
            if len(self.boring) >= _MOST_BORING:
                self.boring.clear()
            self.boring.add(content)
        return True


class FrameLoops:
    """Looks for loops in frames, and again by one call where it found one before."""

    def __init__(self, objects: Objects, slots: SlotReader, finder: LoopFinder) -> None:
        self._objects = objects
        self._slots = slots
        self._finder = finder
        self._records: Cache[int, CodeRecord] = Cache(_MOST_CODES)
        self._frames: dict[int, _Remembered] = {}

    def forget(self) -> None:
        """Drops what was found."""
        self._records.clear()
        self._frames.clear()

    def record(self, code: Code) -> CodeRecord:
        """What is known of a code object."""
        record = self._records.get(code.address)
        if record is None or record.code is not code:
            library = _STANDARD_LIBRARY in code.file and _PACKAGES not in code.file
            of_library = library or code.file.startswith("<frozen ") or any(part in code.file for part in _TORCH)
            record = CodeRecord(code, code.file.endswith(_LOADER_FILES), of_library)
            self._records[code.address] = record
        return record

    def remembered(self, frame: Frame) -> bool:
        """Whether a loop was found in the frame before."""
        return frame.address in self._frames

    def worth(self, frame: Frame, sample: int) -> bool:
        """Whether to ask the frame in this sample: code in which nothing was found is asked at growing intervals."""
        record = self.record(frame.code)
        if record.of_library or record.of_loader:
            return False
        return frame.address in self._frames or sample >= record.next_sample

    def note(self, frame: Frame, hit: bool, sample: int) -> None:
        """Whether something was found in the frame in this sample."""
        record = self.record(frame.code)
        record.misses = 0 if hit else record.misses + 1
        record.next_sample = sample + min(record.misses, LONGEST_PAUSE)

    def find(self, frames: Sequence[Frame]) -> list[list[Loop]]:
        """The loops of each frame: remembered ones where all that led to them still stands."""
        found: dict[int, list[Loop]] = {}
        asked: list[tuple[int, Frame, Slots]] = []
        for index, frame in enumerate(frames):
            remembered = self._frames.get(frame.address)
            if (
                remembered is not None
                and remembered.code == frame.code.address
                and remembered.holds(self._objects, self._finder)
            ):
                found[index] = remembered.loops
                continue
            self._frames.pop(frame.address, None)
            shape = self._slots.shape(frame.code.address, frame.code)
            if shape is not None:
                asked.append((index, frame, self._slots.slots(frame.address, frame.locals_address, shape)))
        if asked:
            for (index, frame, slots), loops in zip(asked, self._finder.find([one[2] for one in asked]), strict=True):
                found[index] = loops
                if loops:
                    self._remember(frame, slots, loops)
        return [found.get(index, []) for index in range(len(frames))]

    def _remember(self, frame: Frame, slots: Slots, loops: list[Loop]) -> None:
        witnesses = list(dict.fromkeys(witness for loop in loops for witness in loop.witnesses))
        holders = dict.fromkeys(holder for loop in loops for holder in loop.holders)
        bottom = slots.address + 8 * slots.shape.variables
        start = max((loop.witnesses[0][0] + 8 for loop in loops if loop.held), default=bottom)
        above = (start, max(bottom + 8 * slots.shape.stack - start, 0))
        pieces = [
            *((place, len(expected)) for place, expected in witnesses),
            *((holder, 8) for holder in holders),
            above,
        ]
        if len(pieces) > IOV_MAX:
            return
        if len(self._frames) >= _MOST_FRAMES:
            self._frames.clear()
        gather = Gather(self._objects.memory, pieces)
        expected = b"".join(expected for _, expected in witnesses)
        self._frames[frame.address] = _Remembered(frame.code.address, loops, gather, expected, len(holders))
