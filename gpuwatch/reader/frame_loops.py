"""Which loops a stack's frames hold, with a memory of what was found: most frames never hold one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuwatch.reader.containment import Cache
from gpuwatch.reader.loops import Loop, LoopFinder
from gpuwatch.reader.memory import IOV_MAX, Gather, UnreadableAddressError
from gpuwatch.reader.objects import Objects, words
from gpuwatch.reader.slots import SlotReader, Slots
from gpuwatch.reader.types import Code, Frame

LONGEST_PAUSE = 16
"""Looks without asking code again that never held an iterator: 0.16 s at 100 Hz."""
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
    next_look: int = 0


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

    def worth(self, frame: Frame, look: int) -> bool:
        """Whether to ask the frame at this look: code in which nothing was found is asked ever more seldom."""
        record = self.record(frame.code)
        if record.of_library or record.of_loader:
            return False
        return frame.address in self._frames or look >= record.next_look

    def note(self, frame: Frame, hit: bool, look: int) -> None:
        """Whether something was found in the frame at this look."""
        record = self.record(frame.code)
        record.misses = 0 if hit else record.misses + 1
        record.next_look = look + min(record.misses, LONGEST_PAUSE)

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
