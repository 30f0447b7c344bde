"""One thread's frames, read while it runs on: what was torn is seen and read again.

Since 3.11 frames lie one behind the other in the thread's data stack, so a single system call copies the pointer to
the current frame, all of the data stack and that pointer again. Frames elsewhere (generators; all of them up to 3.10)
are expected where the last sample saw them and copied by the same call. A sample counts only if the pointer did not
move, each frame's code is a code object, and the chain ends where a thread's stack begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from gpuwatch.reader.codes import Code, Codes, KnownCode, NoCodeError
from gpuwatch.reader.layout import (
    CHUNK_FIRST_FRAME,
    CHUNK_HEADER,
    CHUNK_PREVIOUS,
    CHUNK_SIZE,
    FIRST_FOREIGN_OWNER,
    OWNED_BY_THREAD,
    Layout,
)
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `address` and `locals_address` are of the target's memory and age with the sample."""

    code: Code
    line: int | None
    address: int
    locals_address: int


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's frames, innermost first; its root is the module or a thread's bootstrap."""

    thread: int  # the kernel's id where the target keeps it (3.11 and later), else the pthread's
    is_main: bool
    frames: tuple[Frame, ...]


_MAX_CHUNKS = 64
_MAX_CHUNK_BYTES = 1 << 20
_MAX_STACK_BYTES = 4 << 20  # of all chunks, which are copied in each sample; 64 of the usual size are 1 MiB
_FIRST_REACH = 4096  # a page; few stacks reach further, and each page more costs up to 5 us a sample
_FIRST_CFRAMES, _MORE_CFRAMES, _MAX_CFRAMES = 4, 4, 16
"""Evaluation loops whose current frame is copied: those a thread was seen in last. Each costs 0.4 us a sample."""


class TornError(Exception):
    """The thread moved on while it was read."""


class StalePlanError(TornError):
    """The thread's data stack has grown or shrunk by a chunk since the plan was made."""


class Plan:
    """One thread's pieces, in this order: its pointers, its data stack, single frames, and the pointers again.

    `chunks` are the (start, position in the view, last possible offset of a frame) of the data stack, newest first.
    `root_frame` is where the thread's first frame lies in it, `base_frame` the end of each chain; 0: not known.
    """

    def __init__(self, memory: Memory, layout: Layout, thread: int, frame_size: int) -> None:
        self._memory = memory
        self._frame_size = frame_size
        self._cframe_frame = layout.cframe_frame
        self._pointers = [(thread + layout.thread_frame, 8)]
        self._pieces: list[tuple[int, int]] = []
        self._chunk = self.root_frame = self.base_frame = 0
        self._cframes: list[int] = []
        self._next_cframe = 0
        self._reach = _FIRST_REACH
        if layout.thread_chunk is not None:
            self._pointers.append((thread + layout.thread_chunk, 8))
            self._chunk = memory.pointer(thread + layout.thread_chunk)
            self._pieces, complete = _chunks(memory, self._chunk)
            if complete:
                self.root_frame = self._pieces[-1][0] + CHUNK_FIRST_FRAME
        if layout.thread_base_frame is not None:
            self.base_frame = memory.pointer(thread + layout.thread_base_frame)
        if layout.cframe_frame is not None:
            self._cframes = [memory.pointer(thread + layout.thread_frame)]
        self.set_singles(())

    def set_singles(self, addresses: Iterable[int]) -> None:
        """Copies these frames too from now on."""
        cframes = [(address + (self._cframe_frame or 0), 8) for address in self._cframes]
        singles = [(address, self._frame_size) for address in addresses]
        pointers = [*self._pointers, *cframes]
        stack = [
            (start, min(size, self._reach if not index else size)) for index, (start, size) in enumerate(self._pieces)
        ]
        pieces = [*pointers, *stack, *singles, *pointers]
        if any(not 0 < address < 1 << 63 for address, _ in pieces):
            raise TornError
        self._gather = Gather(self._memory, pieces)
        self._count = len(pieces)
        self._words = struct.Struct(f"<{len(pointers)}Q")
        position = self._words.size
        self.chunks: list[tuple[int, int, int]] = []
        for start, size in stack:
            self.chunks.append((start, position, size - self._frame_size))
            position += size
        self._singles = {address: position + index * self._frame_size for index, (address, _) in enumerate(singles)}

    def read(self, *, moving: bool = False) -> tuple[memoryview, int]:
        """All the pieces, and the address of the current frame: 0 where no Python runs.

        With `moving` that is the frame that was current when the copying began, whether or not it still is; only the
        evaluation loop has to be the same, for what lay on the C stack is soon overwritten.

        Raises:
            StalePlanError: The thread's frames lie elsewhere now.
            TornError: The thread went on meanwhile, or is in an evaluation loop that was not known yet.
            UnreadableAddressError: A piece is not there any more.
            CannotReadError: The process is gone.
        """
        view = self._gather.read()
        before = self._words.unpack_from(view)
        if self._chunk and before[1] != self._chunk:
            raise StalePlanError
        number = 0
        if self._cframe_frame is not None:
            if before[0] not in self._cframes:
                self._learn(before[0], moving=moving)
                raise TornError
            number = 2 + self._cframes.index(before[0])
        after = self._words.unpack_from(view, len(view) - self._words.size)
        if before[number] != after[number] and not moving:
            raise TornError
        if number and before[0] != after[0]:
            raise TornError
        return view, before[number]

    @property
    def view(self) -> memoryview:
        """What the last read copied."""
        return self._gather.view

    def position(self, address: int) -> int | None:
        """Where in the view a frame lies, None if it was not planned for."""
        for start, position, last_offset in self.chunks:
            if 0 <= address - start <= last_offset:
                return position + address - start
        return self._singles.get(address)

    def extend_to(self, address: int) -> None:
        """Copies more of the newest chunk from now on if that is where a frame lies that was not copied.

        Raises:
            TornError: It was; sample again.
        """
        if not self._pieces:
            return
        start, size = self._pieces[0]
        offset = address - start
        if self._reach < size and 0 <= offset <= size - self._frame_size:
            while self._reach < offset + self._frame_size:
                self._reach *= 2
            self.set_singles(list(self._singles))
            raise TornError

    def neighbours(self, address: int, other: int) -> bool:
        """Whether both lie in the same chunk of the data stack."""
        return any(
            0 <= address - start <= last_offset and 0 <= other - start <= last_offset
            for start, _, last_offset in self.chunks
        )

    def _learn(self, cframe: int, *, moving: bool) -> None:
        """Copies the current frame of this evaluation loop too from now on, in the place of another one.

        Up to 3.12 each entry into the loop has a _PyCFrame of its own on the C stack, and the thread only points to it.
        """
        count = len(self._cframes)
        if count < _FIRST_CFRAMES or (moving and count < _MAX_CFRAMES):
            self._cframes += [cframe] * (1 if count < _FIRST_CFRAMES else _MORE_CFRAMES)
            self.set_singles(list(self._singles))
            return
        slot = self._next_cframe % count
        self._next_cframe = slot + 1
        self._cframes[slot] = cframe
        for index in (2 + slot, self._count - count + slot):
            self._gather.move(index, cframe + (self._cframe_frame or 0))


def _chunks(memory: Memory, newest: int) -> tuple[list[tuple[int, int]], bool]:
    """The (address, bytes) of the chunks of a data stack, newest first, and whether that is all of them.

    Raises:
        TornError: They cannot be chunks.
    """
    found: list[tuple[int, int]] = []
    address, total = newest, 0
    while address and len(found) < _MAX_CHUNKS and total < _MAX_STACK_BYTES:
        head = memory.read(address, CHUNK_HEADER)
        size = int.from_bytes(head[CHUNK_SIZE : CHUNK_SIZE + 8], "little")
        if not CHUNK_HEADER < size <= 1 << 32 or address in dict(found):
            raise TornError
        found.append((address, min(size, _MAX_CHUNK_BYTES)))
        total += found[-1][1]
        address = int.from_bytes(head[CHUNK_PREVIOUS : CHUNK_PREVIOUS + 8], "little")
    return found, bool(found) and not address


TRIES = 8
STRICT_TRIES = 3
"""After this many samples of a thread that calls functions faster than it is copied, the order of the data stack has to
vouch for the chain alone: else code that calls much would be seen too rarely."""
MAX_DEPTH = 2048
KEPT_INNERMOST = 400
KEPT_OUTERMOST = 100
RECHECK_EVERY = 32
"""Samples between two comparisons of the known codes with the target: a third of a second at 100 Hz."""

KNOWN_ROOTS = frozenset(
    {
        "<module>",
        "_run_module_as_main",  # python -m
        "_bootstrap",  # threading.Thread
        "_shutdown",  # threading, at the end of the main thread
    }
)
_MAX_KEPT_FRAMES = 8192
_POINTER_BITS = ~7  # since 3.14 the low bits of a frame's code say how it is counted

_SINGLES_KEPT_FOR = 16  # samples
_MAX_SINGLES = 128
_MAX_GENERATORS = 32  # singles since 3.11
_MOST_REPLACED = 4  # frames one behind the other; torch.compile leaves one

_Raw = tuple[int, int, int, int]
"""A frame as it was copied: its address, its code's, f_lasti or a pointer into the bytecode, and its owner."""


class NoFrameError(Exception):
    """The thread runs no Python code now."""


class ThreadReader:
    """Samples the thread whose PyThreadState is at `thread`."""

    def __init__(self, memory: Memory, layout: Layout, codes: Codes, thread: int) -> None:
        self._memory = memory
        self._layout = layout
        self._codes = codes
        self._thread = thread
        self._struct = _frame_struct(layout)
        self._single = Gather(memory, ((thread, self._struct.size),))
        self._plan: Plan | None = None
        self._sample_count = 0
        self._outside: dict[int, int] = {}
        self._frames: dict[int, tuple[int, int, Frame | None, int]] = {}
        self._last: tuple[list[_Raw], tuple[Frame, ...]] | None = None
        self._whole: list[Frame] = []  # of the last sample, before the deepest are left out
        self._doubtful_root: tuple[int, int, int] | None = None

    def frames(self) -> tuple[Frame, ...]:
        """The frames of the thread, innermost first.

        Raises:
            TornError: They changed during each of `TRIES` samples.
            NoFrameError: It runs no Python.
            CannotReadError: The process is gone.
        """
        self._sample_count += 1
        recheck = self._sample_count % RECHECK_EVERY == 0
        idle = False
        for number in range(TRIES):
            try:
                plan = self._plan or self._new_plan()
                raw, end = self._sample_once(plan, moving=number >= STRICT_TRIES and not self._layout.heap_frames)
                if recheck:
                    kept = {} if self._codes.forget_replaced({code for _, code, _, _ in raw}) else self._frames
                    self._frames = {address: kept[address] for address, _, _, _ in raw if address in kept}
                    self._last = self._last if kept else None
                recheck = False
                if self._last is not None and self._last[0] == raw:
                    return self._last[1]
                frames = self._named(plan, raw)
                if not frames or (end is not None and not self._is_root(plan, end, raw[-1], frames[-1])):
                    continue
            except (StalePlanError, UnreadableAddressError):
                self._plan = None
                self._outside.clear()
            except (TornError, NoCodeError):
                continue
            except NoFrameError:
                if idle:
                    raise
                idle = True  # a thread that left its evaluation loop meanwhile looks like that once
            else:
                self._whole = frames
                self._last = (raw, _shortened(frames, ended=end is not None))
                return self._last[1]
        raise TornError

    def _sample_once(self, plan: Plan, *, moving: bool) -> tuple[list[_Raw], int | None]:
        """The frames as they were copied, and the address the chain ended with: None where it goes on."""
        view, address = plan.read(moving=moving)
        if not address:
            raise TornError if moving else NoFrameError
        raw, end, outside, missed = self._walk(plan, view, address)
        if missed:
            # They were read after the rest: all of it counts only if the thread still stands where it stood.
            again = plan.read()[1]
            since = self._sample_count - _SINGLES_KEPT_FOR
            self._outside = {frame: look for frame, look in self._outside.items() if look > since}
            earlier = [frame for frame in self._outside if frame not in outside]
            most = _MAX_SINGLES if self._layout.heap_frames else _MAX_GENERATORS
            plan.set_singles([*outside, *earlier[::-1]][:most])
            if again != address:
                raise TornError
        self._outside.update(dict.fromkeys(outside, self._sample_count))
        if not raw:
            raise TornError if moving else NoFrameError
        if end is None and len({frame for frame, _, _, _ in raw}) < MAX_DEPTH // 2:
            raise TornError
        return raw, end

    def _walk(self, plan: Plan, view: memoryview, address: int) -> tuple[list[_Raw], int | None, list[int], bool]:
        """Follows the chain; also gives the frames outside the newest chunk, and whether some were not planned for."""
        unpack = self._struct.unpack_from
        heap = self._layout.heap_frames
        chunk, chunk_position, last_offset = plan.chunks[0] if plan.chunks else (0, 0, -1)
        raw: list[_Raw] = []
        outside: list[int] = []
        missed = False
        owner = last = 0
        for _ in range(MAX_DEPTH):
            last = address
            if 0 <= address - chunk <= last_offset:
                fields = unpack(view, chunk_position + address - chunk)
            else:
                position = plan.position(address)
                if position is None:
                    plan.extend_to(address)
                    missed = True
                    fields = unpack(self._single_frame(address))
                else:
                    fields = unpack(view, position)
                outside.append(address)
            if heap:
                address, code, instruction = fields
            else:
                code, address, instruction, owner = fields
            if owner < FIRST_FOREIGN_OWNER:
                raw.append((last, code & _POINTER_BITS, instruction, owner))
            if not address:
                return raw, last, outside, missed
        return raw, None, outside, missed

    def _single_frame(self, address: int) -> memoryview:
        self._single.move(0, address)
        try:
            return self._single.read()
        except UnreadableAddressError:
            raise TornError from None

    def _named(self, plan: Plan, raw: list[_Raw]) -> list[Frame]:
        """The frames with their code and line; what has not moved since the last sample is taken from there.

        In the data stack each frame begins where its caller's ends, or behind frames that were replaced before they
        began. Where it does not, the chain leads through what an earlier call left there.
        """
        kept, known = self._frames, self._codes.known
        if len(kept) > _MAX_KEPT_FRAMES:
            kept.clear()
        stacked = not self._layout.heap_frames
        younger = 0
        frames: list[Frame] = []
        same = self._same_callers(raw)
        for address, code, instruction, owner in raw[: len(raw) - max(0, same - 1)]:
            seen = kept.get(address)
            if seen is None or seen[0] != code or seen[1] != instruction:
                found = known.get(code) or self._codes.load(code)
                line = found.table.line(self._offset(found, instruction))
                frame = Frame(found.code, line, address, address + self._layout.frame_locals)
                seen = kept[address] = (code, instruction, None if found.is_shim else frame, found.frame_size)
            if seen[2] is not None:
                frames.append(seen[2])
            if stacked and owner == OWNED_BY_THREAD:
                end = address + seen[3]
                if younger and younger != end and plan.neighbours(younger, address):
                    self._check_gap(plan, end, younger)
                younger = address
        if same > 1:
            frames += self._whole[1 - same :]
        return frames

    def _same_callers(self, raw: list[_Raw]) -> int:
        """How many of the outermost frames stand where they stood in the last sample: most of them, as a rule."""
        last = self._last[0] if self._last is not None else []
        if len(self._whole) != len(last):
            return 0  # some have no line to show, so that they cannot be identified by their places
        same = 0
        for old, new in zip(reversed(last), reversed(raw), strict=False):
            if old != new:
                break
            same += 1
        return same

    def _check_gap(self, plan: Plan, start: int, end: int) -> None:
        """Whether whole frames that never ran fill the stretch between a caller's frame and its callee's.

        torch.compile runs its own code in a frame behind the one it replaces, which stays as the call made it. What
        an ended call left there stands on a later instruction than the first.

        Raises:
            TornError: They do not.
        """
        for _ in range(_MOST_REPLACED):
            position = plan.position(start)
            if not start < end or position is None:
                break
            code, _, instruction, owner = self._struct.unpack_from(plan.view, position)
            replaced = self._codes.load(code & _POINTER_BITS)
            if owner != OWNED_BY_THREAD or self._offset(replaced, instruction) > 0:
                break
            start += replaced.frame_size
            if start == end:
                return
        raise TornError

    def _offset(self, code: KnownCode, instruction: int) -> int:
        """Where in the bytecode a frame stands, in bytes; negative before its first instruction."""
        if self._layout.version >= (3, 11):
            offset = instruction - code.bytecode
        else:
            offset = instruction * 2 if self._layout.version == (3, 10) else instruction
        if not -2 <= offset < code.bytecode_size:
            raise TornError
        return offset

    def _is_root(self, plan: Plan, end: int, raw: _Raw, frame: Frame) -> bool:
        """Whether a chain that ends here is whole.

        A frame that is just being made, and a generator that has just paused, name no previous one. 3.15 has a base
        frame at the end of each chain, 3.11 to 3.14 begin the data stack with the root. Up to 3.10 the root is known
        by its function, or by being the end of two samples in a row (threads of C code, embedded Pythons).
        """
        if plan.base_frame:
            return end == plan.base_frame
        if raw[0] == plan.root_frame or frame.code.name in KNOWN_ROOTS:
            return True
        if plan.root_frame:
            return False
        confirmed = self._doubtful_root == (self._sample_count - 1, raw[0], raw[1])
        self._doubtful_root = (self._sample_count, raw[0], raw[1])
        return confirmed

    def _new_plan(self) -> Plan:
        self._plan = Plan(self._memory, self._layout, self._thread, self._struct.size)
        return self._plan


def _frame_struct(layout: Layout) -> struct.Struct:
    """(previous, code, f_lasti) up to 3.10, (code, previous, instruction, owner) after: in the order of memory."""
    fields: tuple[tuple[int, str], ...]
    if layout.frame_owner is None:
        fields = ((layout.frame_previous, "Q"), (layout.frame_code, "Q"), (layout.frame_instruction, "i"))
    else:
        fields = (
            (layout.frame_code, "Q"),
            (layout.frame_previous, "Q"),
            (layout.frame_instruction, "Q"),
            (layout.frame_owner, "b"),
        )
    text, position = "<", 0
    for offset, kind in fields:
        text += f"{offset - position}x{kind}"
        position = offset + struct.calcsize(kind)
    return struct.Struct(text)


def _shortened(frames: list[Frame], *, ended: bool) -> tuple[Frame, ...]:
    """At most 500 of them, with one in the place of those left out."""
    if ended and len(frames) <= KEPT_INNERMOST + KEPT_OUTERMOST:
        return tuple(frames)
    inner = frames[:KEPT_INNERMOST]
    outer = frames[-KEPT_OUTERMOST:] if ended else []
    count = len(frames) - len(inner) - len(outer)
    name = f"<{count} frames left out>" if ended else f"<more than {count} frames left out>"
    return (*inner, Frame(Code(0, "", name, None, 0), None, 0, 0), *outer)
