"""Whether the training thread is inside a loop that trains.

A program that has left it uploads, sleeps or waits for its user: it does not hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.classify import Reading
from gpuwatch.sources.stacks.places import Owner, Places
from gpuwatch.sources.stacks.sites import CodeKey, code_key
from gpuwatch.sources.syntax_child.protocol import Loop

_KEPT: Final = 1024
_WHOLE: Final = (0, 1 << 31)


class Text(Protocol):
    """Where loops are looked up."""

    def loops(self, file: str, number: int | None) -> Sequence[Loop]:
        """The loops around a line, innermost first."""

    def parses(self, file: str) -> bool:
        """Whether the file's statements are known."""


class TrainingLoops:
    """The loops around the backwards and optimizer steps that were sampled so far.

    Of the user's own functions the outermost loop around such a line counts, or all of the function where its source
    is not known. A library's function that the user's code calls counts as a whole: what called the user's code, such
    as a notebook's kernel, is there before and after the training as well.
    """

    def __init__(self, places: Places, text: Text) -> None:
        self._places = places
        self._text = text
        self._lines: dict[CodeKey, set[tuple[int, int]]] = {}
        self._noted: set[int] = set()

    def hold(self, frames: Sequence[Frame], reading: Reading) -> bool | None:
        """Whether a stack is inside one of them; None while none is known."""
        if reading.trains:
            self._note(frames, reading.where)
        if not self._lines:
            return None
        if reading.trains or reading.waits or reading.phase == "start":
            return True
        return any(
            first <= (frame.line or 0) <= last
            for frame in frames
            for first, last in self._lines.get(code_key(frame), ())
        )

    def _note(self, frames: Sequence[Frame], where: int) -> None:
        if where in self._noted or len(self._noted) >= _KEPT:
            return
        self._noted.add(where)
        places = [self._places.of(frame.code.file) for frame in frames]
        outermost = max((index for index, place in enumerate(places) if place.owner is Owner.USER), default=-1)
        for frame, place in zip(frames[: outermost + 1], places, strict=False):
            if place.owner is Owner.USER:
                self._add(frame, self._around(frame))
            elif place.owner is Owner.LIBRARY and place.package != "torch":
                self._add(frame, _WHOLE)

    def _around(self, frame: Frame) -> tuple[int, int] | None:
        loops = self._text.loops(frame.code.file, frame.line)
        if loops:
            return loops[-1].first, loops[-1].last
        return None if self._text.parses(frame.code.file) else _WHOLE

    def _add(self, frame: Frame, lines: tuple[int, int] | None) -> None:
        if lines is not None:
            self._lines.setdefault(code_key(frame), set()).add(lines)
