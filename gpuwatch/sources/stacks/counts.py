"""Batches and iterations: how often a loop went around since it was first sampled.

A loop over loaders is counted by the counter of each iterator that it used; a training loop that reads none, by the
variable that it counts with. It is the innermost loop around the optimizer's step, or around the backward where no
optimizer of torch's steps; its code names the variable, the target's memory holds its value.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuwatch.reader.loaders import LoaderReader, LoaderState
from gpuwatch.reader.refusals import Cache
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import LoaderFacts
from gpuwatch.sources.stacks.classify import Classifier, CodeKey, Mark, Owner, Reading, code_key
from gpuwatch.sources.stacks.source_text import SourceText
from gpuwatch.sources.syntax import Loop

_MARGIN: Final = 1.5
_RATE_WINDOW_NS: Final = 20_000_000_000
_LENGTHS_KEPT: Final = 8
_ITERATORS_KEPT: Final = 4


def first_round(state: LoaderState) -> int:
    """How many of an epoch's batches are the first of their worker, and so may wait for its start; none without any."""
    workers, length = state.settings.num_workers or 0, state.settings.batches_per_epoch
    return workers if length is None else min(workers, max(1, length // 2))


@dataclass(frozen=True, slots=True)
class _Left:
    """An iterator that was left for another: its count as seen, and with what was added for its last batches."""

    seen: int
    credited: int
    as_epoch: bool


class BatchCounter:
    """Adds up `_num_yielded` over iterators; it begins with the first sample, not with the epoch.

    The last batches of an iterator pass between two samples. They are added where the length of an epoch is known and
    they fit into that time.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.epochs = 0
        self.exact = True
        self._iterator: int | None = None
        self._left: dict[int, _Left] = {}
        self._yielded = 0
        self._seen_ns = 0
        self._first = (0, 0)  # when, and how many the first iterator had yielded by then
        self._rates: deque[tuple[int, int]] = deque()
        self._lengths: deque[int] = deque(maxlen=_LENGTHS_KEPT)
        self._waiting = False

    def see(self, state: LoaderState, now_ns: int) -> None:
        """Takes note of an iterator's counter."""
        self.exact = True
        yielded = state.batches_yielded
        if self._iterator is None:
            self._first = now_ns, yielded
        elif state.iterator == self._iterator and yielded >= self._yielded:
            self.batches += yielded - self._yielded
        elif (left := self._returned_to(state)) is not None:
            # Both iterators live and are read in turn.
            self._leave(self._iterator, self._yielded, as_epoch=False)
            self.batches += max(0, yielded - left.credited)
            self.epochs -= left.as_epoch
        else:
            before, seen = self._iterator, self._yielded
            self._finish(state.settings.batches_per_epoch, now_ns)
            self._leave(before, seen, as_epoch=True)
            self.epochs += 1
            self.batches += yielded
        self._left.pop(state.iterator, None)
        self._iterator, self._yielded, self._seen_ns = state.iterator, yielded, now_ns
        self._rates.append((now_ns, self.batches))
        while now_ns - self._rates[0][0] > _RATE_WINDOW_NS:
            self._rates.popleft()

    def _returned_to(self, state: LoaderState) -> _Left | None:
        """What is known of an iterator that was read before; a new one at its address begins below its count."""
        left = self._left.get(state.iterator)
        if left is None or state.iterator == self._iterator or state.batches_yielded < left.seen:
            return None
        return None if left.seen == state.settings.batches_per_epoch else left

    def _leave(self, iterator: int, seen: int, *, as_epoch: bool) -> None:
        self._left[iterator] = _Left(seen, self._yielded, as_epoch)
        if len(self._left) > _ITERATORS_KEPT:
            del self._left[next(iter(self._left))]

    def see_wait(self, waits: bool) -> None:
        """Counts entries into next() where no counter can be read: short ones are missed."""
        self.exact = False
        if waits and not self._waiting:
            self.batches += 1
        self._waiting = waits

    def go_on_from(self, earlier: BatchCounter, batches_per_epoch: int | None) -> None:
        """Continues the count of the same loop over a loader that was rebuilt since."""
        when, yielded = self._first
        if earlier._iterator is not None and self._iterator is not None:
            earlier._finish(batches_per_epoch, when)
            self.batches += yielded
            self.epochs += 1
        self.batches += earlier.batches
        self.epochs += earlier.epochs
        self._rates.clear()
        self._lengths.extend(earlier._lengths)

    def _finish(self, batches_per_epoch: int | None, now_ns: int) -> None:
        """Adds what the old iterator still gave after it was last sampled."""
        length = batches_per_epoch or max(self._lengths, default=0)
        missing = length - self._yielded
        if 0 < missing <= self._possible(now_ns - self._seen_ns):
            self.batches += missing
            self._yielded = length
        self._lengths.append(self._yielded)

    def _possible(self, nanoseconds: int) -> float:
        """How many batches a stretch of this loop may have held, by its rate of late."""
        if len(self._rates) < 2 or self._rates[-1][0] == self._rates[0][0]:
            return 1.0
        (start_ns, start), (end_ns, end) = self._rates[0], self._rates[-1]
        return _MARGIN * nanoseconds * (end - start) / (end_ns - start_ns) + 1.0


CONFIRM_NS: Final = 100_000_000
RECOUNT_NS: Final = 50_000_000
_PLACES_KEPT: Final = 2048


class SteadyCounters:
    """The loop a stack stands in, from the last time that the same callers stood on the same lines.

    Asking the reader costs three system calls, at 100 Hz a third of all that sampling costs. The same lines are in the
    same loop as long as its iterator is in use, so the whole question is put for lines not seen since the iterator
    changed, and ten times a second for one function that loops over two loaders in turn.
    """

    def __init__(self, counters: LoaderReader) -> None:
        self._counters = counters
        self._state: LoaderState | None = None
        self._loops: Cache[int, int | None] = Cache(_PLACES_KEPT)
        """By `Reading.around`: how far from the root the loop's frame is."""
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
        if now_ns - self.counted_ns >= RECOUNT_NS:
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
        if state is None:
            self._loops[reading.around] = None
        elif state.frame >= reading.around_from:
            self._loops[reading.around] = len(stack.frames) - state.frame
        else:
            self._loops.pop(reading.around, None)
        return state


_READ_NS: Final = 100_000_000
_STEPS_SURE: Final = 3
_BACKWARDS_SURE: Final = 100
"""Samples of backward without one of a step, from which on the loop around the backward is taken. Around gradient
accumulation that would be the wrong one, and a step of 1 ms every second shows in a tenth of a second's samples."""
_LOOPS_KEPT: Final = 64
_LARGEST: Final = 1 << 62
_NO_LOADER: Final = LoaderFacts(0)
"""The variable counts as a loader's iterator does; one that went back is another loop's."""

_Key = tuple[CodeKey, int]
"""The code that a loop is written in, and its first line."""


class Iterations:
    """The count of one process.

    Args:
        classifier: Of its stacks.
        text: Where loops are looked up.
        integer: (frame, name) -> the value of that variable of the frame, None where it holds no int.
    """

    def __init__(self, classifier: Classifier, text: SourceText, integer: Callable[[Frame, str], int | None]) -> None:
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
        self.counter.see(LoaderState(self._rounds, _NO_LOADER, "", value, 0), now_ns)
