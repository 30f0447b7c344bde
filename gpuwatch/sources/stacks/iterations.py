"""Iterations of a training loop that reads no loader, from the variable that it counts them with.

Which loop that is shows in the samples: it is the innermost one around the optimizer's step, or around the backward
where no optimizer of torch's steps. Its code tells the variable, the target's memory its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.classify import Classifier, Reading
from gpuwatch.sources.stacks.counts import BatchCounter
from gpuwatch.sources.stacks.loops import LoopText
from gpuwatch.sources.stacks.marks import Mark
from gpuwatch.sources.stacks.places import Owner
from gpuwatch.sources.stacks.sites import CodeKey, code_key
from gpuwatch.sources.syntax_child.protocol import Loop

_READ_NS: Final = 100_000_000
_STEPS_SURE: Final = 3
_BACKWARDS_SURE: Final = 100
"""Samples of backward without one of a step, from which on the loop around the backward is taken. Around gradient
accumulation that would be the wrong one, and a step of 1 ms every second shows in a tenth of a second's samples."""
_LOOPS_KEPT: Final = 64
_LARGEST: Final = 1 << 62

_Key = tuple[CodeKey, int]
"""The code that a loop is written in, and its first line."""


@dataclass(frozen=True, slots=True)
class _Count:
    """The variable's value, as `BatchCounter` takes a loader's: one that went back is another loop's."""

    iterator: int
    batches_yielded: int
    batches_per_epoch: int | None = None


class Iterations:
    """The count of one process.

    Args:
        classifier: Of its stacks.
        text: Where loops are looked up.
        integer: (frame, name) -> the value of that variable of the frame, None where it holds no int.
    """

    def __init__(self, classifier: Classifier, text: LoopText, integer: Callable[[Frame, str], int | None]) -> None:
        self.counter = BatchCounter()
        self.read_ns: int | None = None
        """When the variable was read last."""
        self._classifier = classifier
        self._text = text
        self._integer = integer
        self._loops: dict[_Key, Loop] = {}
        self._seen: dict[str, Counter[_Key]] = {"optimizer": Counter(), "backward": Counter()}
        self._counted: _Key | None = None
        self._rounds = 0
        self._last = 0

    def see(self, frames: Sequence[Frame], reading: Reading, now_ns: int) -> None:
        """Takes note of a sample, and reads the variable if that is due.

        Raises:
            CannotReadError: The process is gone.
        """
        if reading.trains:
            self._note(frames, reading)
        chosen = self._chosen()
        if chosen is None or (self.read_ns is not None and now_ns - self.read_ns < _READ_NS):
            return
        loop = self._loops[chosen]
        for frame in frames:
            if code_key(frame) == chosen[0] and loop.first <= (frame.line or 0) <= loop.last:
                self._read(chosen, frame, loop, now_ns)
                return

    def _note(self, frames: Sequence[Frame], reading: Reading) -> None:
        seen = self._seen[reading.phase]
        found = self._around(frames)
        if found is not None and (found[0] in self._loops or len(self._loops) < _LOOPS_KEPT):
            self._loops[found[0]] = found[1]
            seen[found[0]] += 1

    def _around(self, frames: Sequence[Frame]) -> tuple[_Key, Loop] | None:
        """The innermost loop that the user's code has around torch's work.

        It alone will do: the next one further out goes around once for many steps.
        """
        marks = [self._classifier.mark(frame) for frame in frames]
        outside = max((at + 1 for at, mark in enumerate(marks) if mark in (Mark.BACKWARD, Mark.OPTIMIZER)), default=0)
        for frame in frames[outside:]:
            if self._classifier.places.of(frame.code.file).owner is not Owner.USER:
                continue
            loops = self._text.loops(frame.code.file, frame.line)
            if loops:
                return (code_key(frame), loops[0].first), loops[0]
        return None

    def _chosen(self) -> _Key | None:
        for phase, sure in (("optimizer", _STEPS_SURE), ("backward", _BACKWARDS_SURE)):
            ((key, count),) = self._seen[phase].most_common(1) or ((None, 0),)
            if key is not None and count >= sure:
                return key
        return None

    def _read(self, key: _Key, frame: Frame, loop: Loop, now_ns: int) -> None:
        value = next((value for name in loop.counters if (value := self._integer(frame, name)) is not None), None)
        if value is None or abs(value) > _LARGEST:
            return
        if key != self._counted or value < self._last:
            self._counted = key
            self._rounds += 1
        self._last, self.read_ns = value, now_ns
        self.counter.see(_Count(self._rounds, value), now_ns)
