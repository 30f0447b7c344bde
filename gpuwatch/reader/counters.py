"""How many batches a DataLoader has yielded: `_num_yielded` of the iterator that the training thread loops over.

Steps per second from it are exact to the batch. Counting a phase's returns in 100 Hz samples instead misses 30 %
at 58 steps a second and 53 % at 76, measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpuwatch.reader.anchors import Anchors
from gpuwatch.reader.attributes import Attributes
from gpuwatch.reader.iterators import COUNT, Count, IteratorTypes, int_type
from gpuwatch.reader.loader_settings import SettingsReader
from gpuwatch.reader.loops import Loop, LoopFinder
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.object_layout import object_layout
from gpuwatch.reader.objects import Objects
from gpuwatch.reader.slots import SlotReader, Slots
from gpuwatch.reader.types import Code, Frame, LoaderState, Stack

_LOADER_FILES = ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
_TORCH = ("-packages/torch/", "-packages/torchdata/")
_PACKAGES = "-packages/"
_STANDARD_LIBRARY = "/lib/python"
_IDENTITY = ("_index_sampler", "_dataset")
_FORGET_AFTER = 1024  # looks: a class may die, and another be made at its address
_LONGEST_PAUSE = 16  # looks without asking code again that never held an iterator
_MOST_ITERATORS = 16
_MOST_LOOPS = 64


class ReadableInterpreter(Protocol):
    """What of an interpreter is needed to read its objects."""

    version: tuple[int, int]
    memory: Memory


@dataclass(slots=True)
class _Known:
    """An iterator that was found, and how to read it again. `changed` is the look at which its count last grew."""

    count: Count
    state: LoaderState
    changed: int = 0
    loop: int = 0  # the iterator by which the loop is told that advances this one: another one in a zip
    next_look: int = 0  # for that loop


@dataclass(slots=True)
class _CodeRecord:
    """What is known of a code object: which part it plays, and whether looking at its frames is worth it."""

    code: Code
    of_loader: bool
    of_library: bool
    misses: int = 0
    next_look: int = 0


@dataclass(slots=True)
class _FrameLoops:
    """The loops of a frame, true as long as all witnesses are found."""

    code: int
    loops: list[Loop]
    gather: Gather = field(repr=False)
    expected: bytes = field(repr=False)

    def hold(self) -> bool:
        """Whether the frame still iterates over the same."""
        try:
            return self.gather.read() == self.expected
        except UnreadableAddressError:
            return False


class LoaderReader:
    """Finds the DataLoader iterator that a stack iterates over, and reads its count.

    On a version of Python whose objects' layout is not known every answer is None.
    """

    def __init__(self, interpreter: ReadableInterpreter) -> None:
        self._layout = object_layout(interpreter.version)
        if self._layout is None:
            return
        self._objects = Objects(interpreter.memory, self._layout)
        self._attributes = Attributes(self._objects)
        self._types = IteratorTypes(self._objects, self._attributes)
        self._settings = SettingsReader(self._objects, self._attributes)
        self._slots = SlotReader(self._objects)
        self._finder = LoopFinder(self._objects, self._types, self._slots)
        self._anchors = Anchors()
        self._known: dict[int, _Known] = {}
        self._records: dict[int, _CodeRecord] = {}
        self._frames: dict[int, _FrameLoops] = {}
        self._looks = 0

    def state(self, stack: Stack) -> LoaderState | None:
        """The innermost loop over a DataLoader iterator that the stack stands in.

        It is told, in this order, by the iterator whose `__next__` runs; by what the for loops and variables of
        the frames hold; by the frames below which such a `__next__` ran before, for wrappers that keep the iterator
        in an attribute. Loops of zip over several loaders are told by the first of them. None where there is no
        such loop, its iterator is still being made or has died, or what was read is torn.

        Raises:
            CannotReadError: The process is gone.
        """
        if self._layout is None:
            return None
        self._looks += 1
        if self._looks % _FORGET_AFTER == 0:
            self._forget()
        running = self._running(stack)
        if running is not None:
            iterator, caller = running
            self._anchors.remember(iterator, stack.frames[caller:])
            state = self._state_of(iterator, caller)
            first = self._first_of_loop(stack, caller, iterator)
            return state if first == iterator else self._state_of(first, caller) or state
        for index, iterator in self._held(stack):
            if (state := self._state_of(iterator, index)) is not None:
                return state
        return None

    def recheck(self, state: LoaderState) -> int | None:
        """The same iterator's count now, by one system call (seldom two) and without a stack.

        None once the iterator died with its epoch, another one took its place, or its attributes moved: ask
        `state` again. An iterator kept alive after its loop (persistent workers, a variable) still gives its
        last count, and one of persistent workers starts again at 0 with the next epoch.

        Raises:
            CannotReadError: The process is gone.
        """
        known = self._known.get(state.iterator) if self._layout is not None else None
        if known is None or known.state.loader != state.loader:
            return None
        return known.count.read()

    def _forget(self) -> None:
        for part in (self._objects, self._attributes, self._types, self._slots):
            part.forget()
        self._records.clear()
        self._frames.clear()

    def _record(self, code: Code) -> _CodeRecord:
        record = self._records.get(code.address)
        if record is None or record.code is not code:
            library = _STANDARD_LIBRARY in code.file and _PACKAGES not in code.file
            of_library = library or code.file.startswith("<frozen ") or any(part in code.file for part in _TORCH)
            record = _CodeRecord(code, code.file.endswith(_LOADER_FILES), of_library)
            self._records[code.address] = record
        return record

    def _running(self, stack: Stack) -> tuple[int, int] | None:
        """The iterator of which a method runs, and the index of the frame that called it."""
        for index, frame in enumerate(stack.frames):
            if self._record(frame.code).of_loader:
                found = self._objects.pointer(frame.locals_address)
                if found is None or self._know(found) is None:
                    continue
                caller = index + 1
                while caller < len(stack.frames) and self._record(stack.frames[caller].code).of_loader:
                    caller += 1
                return (found, caller) if caller < len(stack.frames) else None
        return None

    def _first_of_loop(self, stack: Stack, start: int, iterator: int) -> int:
        """The first of the iterators that the loop advances which advances this one."""
        known = self._known.get(iterator)
        if known is None:
            return iterator
        if self._looks >= known.next_look:
            known.next_look = self._looks + _LONGEST_PAUSE
            known.loop = iterator
            for frame in stack.frames[start:]:
                if not self._record(frame.code).of_library:
                    loops = self._loops([frame])[0]
                    known.loop = next((loop.iterator for loop in loops if iterator in loop.members), iterator)
                    break
        return known.loop

    def _held(self, stack: Stack) -> Iterator[tuple[int, int]]:
        """Iterators that frames hold and the frames' indices, innermost first."""
        anchor = self._anchors.find(stack.frames)
        group: list[tuple[int, Frame]] = []
        for index, frame in enumerate(stack.frames):
            if self._worth(frame):
                group.append((index, frame))
                if frame.address not in self._frames:
                    continue  # what is remembered most likely still holds: ask no frame further out before
            elif index + 1 < len(stack.frames):
                continue
            yield from self._held_by(group, anchor)
            group = []
        yield from self._held_by(group, anchor)
        if anchor is not None:
            yield anchor

    def _held_by(self, group: list[tuple[int, Frame]], anchor: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
        for (index, frame), loops in zip(group, self._loops([frame for _, frame in group]), strict=True):
            self._note(frame, bool(loops))
            if anchor is not None and anchor[0] < index:
                yield anchor
            for loop in self._by_activity(loops):
                yield index, loop.iterator

    def _worth(self, frame: Frame) -> bool:
        record = self._record(frame.code)
        if record.of_library or record.of_loader:
            return False
        return frame.address in self._frames or self._looks >= record.next_look

    def _note(self, frame: Frame, hit: bool) -> None:
        record = self._record(frame.code)
        record.misses = 0 if hit else record.misses + 1
        record.next_look = self._looks + min(record.misses, _LONGEST_PAUSE)

    def _by_activity(self, loops: list[Loop]) -> list[Loop]:
        """The loops on the value stack, then the variables, of these the one whose count grew last first."""
        if len(loops) < 2:
            return loops
        for loop in loops:
            self._state_of(loop.iterator, 0)
        return sorted(loops, key=lambda loop: (not loop.held, -self._last_change(loop)))

    def _last_change(self, loop: Loop) -> int:
        known = None if loop.held else self._known.get(loop.iterator)
        return 0 if known is None else known.changed

    def _loops(self, frames: list[Frame]) -> list[list[Loop]]:
        """The loops of each frame: remembered ones where all that led to them still stands."""
        found: dict[int, list[Loop]] = {}
        asked: list[tuple[int, Frame, Slots]] = []
        for index, frame in enumerate(frames):
            remembered = self._frames.get(frame.address)
            if remembered is not None and remembered.code == frame.code.address and remembered.hold():
                found[index] = remembered.loops
                continue
            self._frames.pop(frame.address, None)
            shape = self._slots.shape(frame.code.address, frame.code)
            if shape is not None:
                asked.append((index, frame, self._slots.slots(frame.address, frame.locals_address, shape)))
        if asked:
            for (index, frame, _), loops in zip(asked, self._finder.find([one[2] for one in asked]), strict=True):
                found[index] = loops
                if loops:
                    self._remember(frame, loops)
        return [found.get(index, []) for index in range(len(frames))]

    def _remember(self, frame: Frame, loops: list[Loop]) -> None:
        witnesses = list(dict.fromkeys(witness for loop in loops for witness in loop.witnesses))
        gather = Gather(self._objects.memory, [(place, len(expected)) for place, expected in witnesses])
        if len(self._frames) >= _MOST_LOOPS:
            self._frames.clear()
        expected = b"".join(expected for _, expected in witnesses)
        self._frames[frame.address] = _FrameLoops(frame.code.address, loops, gather, expected)

    def _state_of(self, iterator: int, frame: int) -> LoaderState | None:
        known = self._known.get(iterator)
        count = None if known is None else known.count.read()
        if known is None or count is None or count < known.state.batches_yielded:
            self._known.pop(iterator, None)
            if (known := self._know(iterator)) is None:
                return None
            count = known.state.batches_yielded
        if count != known.state.batches_yielded or frame != known.state.frame:
            if count != known.state.batches_yielded:
                known.changed = self._looks
            known.state = replace(known.state, batches_yielded=count, frame=frame)
        return known.state

    def _know(self, iterator: int) -> _Known | None:
        """The iterator's record, made anew where there is none; None for what is no iterator, or has no count yet."""
        known = self._known.get(iterator)
        if known is not None:
            return known
        info = self._objects.type_of(iterator)
        if info is None or not self._types.is_iterator(info):
            return None
        slots = self._attributes.slots(iterator, info, (COUNT, *_IDENTITY))
        value = self._objects.pointer(slots[COUNT].address) if COUNT in slots else None
        kind = None if value is None else int_type(self._objects, value)
        if kind is None:
            return None
        identity = tuple(slots[name] for name in _IDENTITY if name in slots)
        count = Count(self._objects, iterator, kind, slots[COUNT], identity)
        settings = self._settings.read(iterator) if (batches := count.read()) is not None else None
        if batches is None or settings is None:
            self._objects.forget(info.address)  # what did not fit may be a class made at a dead one's address
            return None
        state = LoaderState(
            iterator=iterator,
            loader=settings.loader,
            type_name=info.name,
            batches_yielded=batches,
            frame=0,
            num_workers=settings.num_workers,
            batch_size=settings.batch_size,
            pin_memory=settings.pin_memory,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            in_order=settings.in_order,
            drop_last=settings.drop_last,
            dataset=settings.dataset,
            batches_per_epoch=settings.batches_per_epoch,
        )
        while len(self._known) >= _MOST_ITERATORS:
            del self._known[next(iter(self._known))]
        known = self._known[iterator] = _Known(count, state, self._looks)
        return known
