"""One thread's frames, read while it runs on: what was torn is seen and read again.

Since 3.11 frames lie one behind the other in the thread's data stack, so a single system call copies the pointer to
the current frame, all of the data stack and that pointer again. Frames elsewhere (generators; all of them up to 3.10)
are expected where the last look saw them and copied by the same call. A look counts only if the pointer stood still,
each frame's code is a code object, and the chain ends where a thread's stack begins.
"""

from __future__ import annotations

import struct

from gpuwatch.reader.codes import Codes, KnownCode, NoCodeError
from gpuwatch.reader.layout import FIRST_FOREIGN_OWNER, Layout
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.plan import Plan, TornError
from gpuwatch.reader.types import Code, Frame

TRIES = 4
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

_Raw = tuple[int, int, int]
"""A frame as it was copied: its address, its code's, and f_lasti or a pointer into the bytecode."""


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
        self._frames: dict[int, tuple[int, int, Frame]] = {}
        self._doubtful_root: tuple[int, int] | None = None

    def frames(self) -> tuple[Frame, ...]:
        """The frames of the thread, innermost first.

        Raises:
            TornError: They changed during each of `TRIES` looks.
            NoFrameError: It runs no Python.
            CannotReadError: The process is gone.
        """
        self._looks += 1
        recheck = self._looks % RECHECK_EVERY == 0
        for _ in range(TRIES):
            try:
                raw, end, ended = self._look()
                if recheck and self._codes.forget_replaced({code for _, code, _ in raw}):
                    self._frames.clear()
                recheck = False
                frames = self._named(raw)
                if ended and not self._is_root(end, raw[-1], frames[-1]):
                    continue
            except (TornError, UnreadableAddressError):
                self._plan = None
            except NoCodeError:
                continue
            else:
                return _shortened(frames, ended)
        raise TornError

    def _look(self) -> tuple[list[_Raw], int, bool]:
        """The frames as they were copied, the address the chain ended with, and whether that was its end."""
        plan = self._plan
        if plan is None:
            plan = self._plan = self._planned(())
        view, address = plan.read()
        if not address:
            raise NoFrameError
        raw, end, ended, outside = self._walk(plan, view, address)
        if not raw:
            raise NoFrameError
        if not ended and len({frame for frame, _, _ in raw}) < MAX_DEPTH // 2:
            raise TornError
        if outside:
            # Some were read after the rest: all of it counts only if the thread still stands where it stood.
            if plan.read()[1] != address:
                raise TornError
            self._plan = self._planned(outside)
        return raw, end, ended

    def _walk(self, plan: Plan, view: memoryview, address: int) -> tuple[list[_Raw], int, bool, list[int]]:
        """Follows the chain; at last the frames outside the data stack, if any had to be read on its own."""
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
                    missed = True
                    self._single.move(0, address)
                    fields = unpack(self._single.read())
                else:
                    fields = unpack(view, position)
                outside.append(address)
            if heap:
                address, code, instruction = fields
            else:
                code, address, instruction, owner = fields
            if owner < FIRST_FOREIGN_OWNER:
                raw.append((last, code & _POINTER_BITS, instruction))
            if not address:
                break
        return raw, last, not address, outside if missed else []

    def _named(self, raw: list[_Raw]) -> list[Frame]:
        """The frames with their code and line; what has not moved since the last look is taken from there."""
        kept, known = self._frames, self._codes.known
        if len(kept) > _MAX_KEPT_FRAMES:
            kept.clear()
        frames: list[Frame] = []
        for address, code, instruction in raw:
            seen = kept.get(address)
            if seen is not None and seen[0] == code and seen[1] == instruction:
                frames.append(seen[2])
                continue
            owner = known.get(code) or self._codes.load(code)
            line = owner.table.line(self._offset(owner, instruction))
            frame = Frame(owner.code, line, address, address + self._layout.frame_locals)
            kept[address] = (code, instruction, frame)
            frames.append(frame)
        return frames

    def _offset(self, code: KnownCode, instruction: int) -> int:
        """Where in the bytecode a frame stands, in bytes; negative before its first instruction."""
        if self._layout.version >= (3, 11):
            offset = instruction - code.bytecode
        else:
            offset = instruction * 2 if self._layout.version == (3, 10) else instruction
        if not -2 <= offset < code.bytecode_size:
            raise TornError
        return offset

    def _is_root(self, end: int, raw: _Raw, frame: Frame) -> bool:
        """Whether a chain that ends here is whole.

        A frame that is just being made names no previous one yet. 3.15 has a base frame at the end of each chain,
        3.11 to 3.14 begin the data stack with the root; otherwise it is known by its function, or by being the end
        of two looks in a row (threads that C code started, embedded Pythons).
        """
        plan = self._plan
        if plan is not None and plan.base_frame:
            return end == plan.base_frame
        if plan is not None and raw[0] == plan.root_frame:
            return True
        if frame.code.name in KNOWN_ROOTS:
            return True
        confirmed = self._doubtful_root == raw[:2]
        self._doubtful_root = raw[:2]
        return confirmed

    def _planned(self, singles: tuple[int, ...] | list[int]) -> Plan:
        return Plan(self._memory, self._layout, self._thread, self._struct.size, singles)


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


def _shortened(frames: list[Frame], ended: bool) -> tuple[Frame, ...]:
    """At most 500 of them, with one in the place of those left out."""
    if ended and len(frames) <= KEPT_INNERMOST + KEPT_OUTERMOST:
        return tuple(frames)
    inner = frames[:KEPT_INNERMOST]
    outer = frames[-KEPT_OUTERMOST:] if ended else []
    count = len(frames) - len(inner) - len(outer)
    name = f"<{count} frames left out>" if ended else f"<more than {count} frames left out>"
    return (*inner, Frame(Code(0, "", name, None, 0), None, 0, 0), *outer)
