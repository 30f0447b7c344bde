"""One thread's frames, read while it runs on: what was torn is seen and read again.

Since 3.11 frames lie one behind the other in the thread's data stack, so a single system call copies the pointer to
the current frame, all of the data stack and that pointer again. Frames elsewhere (generators; all of them up to 3.10)
are expected where the last look saw them and copied by the same call. A look counts only if the pointer stood still,
each frame's code is a code object, and the chain ends where a thread's stack begins.
"""

from __future__ import annotations

import struct

from gpuwatch.reader.codes import Codes, KnownCode, NoCodeError
from gpuwatch.reader.layout import FIRST_FOREIGN_OWNER, OWNED_BY_THREAD, Layout
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.plan import Plan, StalePlanError, TornError
from gpuwatch.reader.types import Code, Frame

TRIES = 8
STRICT_TRIES = 3
"""After so many looks at a thread that calls functions faster than it is copied, the order of the data stack has to
vouch for the chain alone: else code that calls much would be seen too rarely."""
MAX_DEPTH = 2048
KEPT_INNERMOST = 400
KEPT_OUTERMOST = 100
RECHECK_EVERY = 32
"""Looks between two comparisons of the codes at hand with the target: a third of a second at 100 Hz."""

KNOWN_ROOTS = frozenset(
    {
        "<module>",
        "_run_module_as_main",  # python -m
        "_bootstrap",  # threading.Thread
        "_shutdown",  # threading, at the end of the main thread
    }
)
_MAX_KEPT_FRAMES = 8192
_POINTER_BITS = ~7  # since 3.14 the low bits of a frame's code tell how it is counted

_SINGLES_KEPT_FOR = 16  # looks
_MAX_SINGLES = 128
_MAX_GENERATORS = 32  # singles since 3.11
_MOST_REPLACED = 4  # frames one behind the other; torch.compile leaves one

_Raw = tuple[int, int, int, int]
"""A frame as it was copied: its address, its code's, f_lasti or a pointer into the bytecode, and its owner."""


class NoFrameError(Exception):
    """The thread runs no Python code now."""


class ThreadReader:
    """Looks again and again at the thread whose PyThreadState is at `thread`."""

    def __init__(self, memory: Memory, layout: Layout, codes: Codes, thread: int) -> None:
        self._memory = memory
        self._layout = layout
        self._codes = codes
        self._thread = thread
        self._struct = _frame_struct(layout)
        self._single = Gather(memory, ((thread, self._struct.size),))
        self._plan: Plan | None = None
        self._looks = 0
        self._outside: dict[int, int] = {}
        self._frames: dict[int, tuple[int, int, Frame | None, int]] = {}
        self._last: tuple[list[_Raw], tuple[Frame, ...]] | None = None
        self._whole: list[Frame] = []  # of the last look, before the deepest are left out
        self._doubtful_root: tuple[int, int, int] | None = None

    def frames(self) -> tuple[Frame, ...]:
        """The frames of the thread, innermost first.

        Raises:
            TornError: They changed during each of `TRIES` looks.
            NoFrameError: It runs no Python.
            CannotReadError: The process is gone.
        """
        self._looks += 1
        recheck = self._looks % RECHECK_EVERY == 0
        idle = False
        for number in range(TRIES):
            try:
                plan = self._plan or self._new_plan()
                raw, end = self._look(plan, moving=number >= STRICT_TRIES and not self._layout.heap_frames)
                if recheck and self._codes.forget_replaced({code for _, code, _, _ in raw}):
                    self._frames.clear()
                    self._last = None
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

    def _look(self, plan: Plan, *, moving: bool) -> tuple[list[_Raw], int | None]:
        """The frames as they were copied, and the address the chain ended with: None where it goes on."""
        view, address = plan.read(moving=moving)
        if not address:
            raise TornError if moving else NoFrameError
        raw, end, outside, missed = self._walk(plan, view, address)
        if missed:
            # They were read after the rest: all of it counts only if the thread still stands where it stood.
            again = plan.read()[1]
            since = self._looks - _SINGLES_KEPT_FOR
            self._outside = {frame: look for frame, look in self._outside.items() if look > since}
            earlier = [frame for frame in self._outside if frame not in outside]
            most = _MAX_SINGLES if self._layout.heap_frames else _MAX_GENERATORS
            plan.set_singles([*outside, *earlier[::-1]][:most])
            if again != address:
                raise TornError
        self._outside.update(dict.fromkeys(outside, self._looks))
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
        """The frames with their code and line; what has not moved since the last look is taken from there.

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
        """How many of the outermost frames stand where they stood in the last look: most of them, as a rule."""
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
        by its function, or by being the end of two looks in a row (threads of C code, embedded Pythons).
        """
        if plan.base_frame:
            return end == plan.base_frame
        if raw[0] == plan.root_frame or frame.code.name in KNOWN_ROOTS:
            return True
        if plan.root_frame:
            return False
        confirmed = self._doubtful_root == (self._looks - 1, raw[0], raw[1])
        self._doubtful_root = (self._looks, raw[0], raw[1])
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
