"""What the reader says of loops over loaders, asked no oftener than its answers change."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Stack
from gpuwatch.sources.stacks.classify import Reading
from gpuwatch.sources.stacks.reading import Counters

CONFIRM_NS: Final = 100_000_000
COUNT_NS: Final = 50_000_000
_KEPT: Final = 2048


class SteadyCounters:
    """The loop a stack stands in, from the last time that the same callers stood on the same lines.

    Asking the reader costs three system calls, at 100 Hz a third of all that looking costs. The same lines stand in the
    same loop as long as its iterator is in use, so the whole question is put for lines not seen since the iterator
    changed, and ten times a second for one function that loops over two loaders in turn.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._state: LoaderState | None = None
        self._loops: dict[int, int | None] = {}  # by `Reading.around`: how far from the root the loop's frame is
        self._confirmed_ns = -CONFIRM_NS
        self.counted_ns = 0
        """When the count that the last state holds was read."""

    def state(self, stack: Stack, reading: Reading, now_ns: int) -> LoaderState | None:
        """The innermost loop over a loader's iterator that the stack stands in."""
        if reading.phase == "start":
            self._confirmed_ns = now_ns - CONFIRM_NS  # of the iterator that is being made nothing can be known yet
            return None
        if now_ns - self._confirmed_ns >= CONFIRM_NS or reading.around not in self._loops:
            return self._ask(stack, reading, now_ns)
        depth = self._loops[reading.around]
        if depth is None:
            return None
        state = self._state
        if state is None or not 0 < depth <= len(stack.frames):
            return self._ask(stack, reading, now_ns)
        count = state.batches_yielded
        if now_ns - self.counted_ns >= COUNT_NS:
            again = self._counters.recheck(state)
            if again is None or again < count:
                return self._ask(stack, reading, now_ns)
            count, self.counted_ns = again, now_ns
        frame = len(stack.frames) - depth
        if count != state.batches_yielded or frame != state.frame:
            state = self._state = replace(state, batches_yielded=count, frame=frame)
        return state

    def _ask(self, stack: Stack, reading: Reading, now_ns: int) -> LoaderState | None:
        state = self._counters.state(stack)
        before, self._state = self._state, state or self._state
        self.counted_ns = self._confirmed_ns = now_ns
        if state is not None and (before is None or before.iterator != state.iterator):
            self._loops.clear()
        if len(self._loops) >= _KEPT:
            self._loops.clear()
        if state is None:
            self._loops[reading.around] = None
        elif state.frame >= reading.around_from:
            self._loops[reading.around] = len(stack.frames) - state.frame
        else:
            self._loops.pop(reading.around, None)
        return state
