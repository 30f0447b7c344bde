"""The pointers in a frame's slots: its locals, cells and free variables, then its value stack."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpuwatch.reader.containment import Cache
from gpuwatch.reader.objects import Objects, plausible, words
from gpuwatch.reader.types import Code, Frame

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
    """Where the slots of one frame lie; `top` is where it stands how many are used, None where nothing tells."""

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
        """The shape of the code object there; `code`, as the stack has it, tells when another took its place."""
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
        for field in layout.code_cells:
            cells = self._objects.pointer(address + field)
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
