"""Looks at the training thread, held back until it is known what the loop they stand in is for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuwatch.samples.stacks import StackPhase
from gpuwatch.sources.stacks.classify import Reading
from gpuwatch.sources.stacks.loops import Loops
from gpuwatch.sources.stacks.sites import CodeKey, Site

HOLD_NS: Final = 2_000_000_000
_MOST_HELD: Final = 1024


@dataclass(slots=True)
class Look:
    """One usable look. `starts_in` is the code that called iter(), while the loop it begins is not yet seen."""

    time_ns: int
    reading: Reading
    site: Site | None
    batches: int = 0  # the loop's count by then
    iterator: int | None = None
    yielded: int = 0  # batches of this iterator
    first_wait: bool = False
    starts_in: CodeKey | None = None
    infers: bool = False  # of a process that trains nothing: what looks like its evaluation is its work
    handed: StackPhase | None = None  # what waiting for another thread or process is, where it does

    @property
    def is_pinned(self) -> bool:
        """Whether its loop's loader has workers and a thread that pins their batches."""
        state = self.site.state if self.site is not None else None
        return state is not None and bool(state.num_workers and state.pin_memory)

    @property
    def phase(self) -> str:
        """The phase it belongs to, given the role of its loop."""
        reading, role = self.reading, self.site.role if self.site is not None else None
        if role == "eval" or (reading.evaluates and not self.infers):
            return "eval"
        if role == "neither":
            return "other"
        return self.handed or reading.phase


class HeldLooks:
    """A queue whose head waits until its loop's role is proven, or supposed after 2 s."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._queue: deque[Look] = deque()

    def put(self, look: Look) -> None:
        """Adds the newest look; one in a loop tells which loop the iter() before it began."""
        if look.site is not None:
            for earlier in reversed(self._queue):
                if earlier.starts_in is None:
                    break
                if earlier.starts_in == look.site.code:
                    earlier.site, earlier.starts_in = look.site, None
        self._queue.append(look)

    def drop_since(self, time_ns: int) -> None:
        """Forgets the looks after a time: the process was stopped at some moment since."""
        while self._queue and self._queue[-1].time_ns > time_ns:
            self._queue.pop()

    def ready(self, until_ns: int, now_ns: int) -> Iterator[Look]:
        """The looks up to a time whose phase is known by now, in their order."""
        while self._queue and self._queue[0].time_ns <= until_ns:
            head = self._queue[0]
            if not self._settled(head):
                if now_ns - head.time_ns < HOLD_NS and len(self._queue) < _MOST_HELD:
                    return
                self._suppose(head)
            yield self._queue.popleft()

    def _settled(self, look: Look) -> bool:
        decided = look.site is None or self._loops.decide(look.site)
        return look.reading.evaluates or (decided and look.starts_in is None)

    def _suppose(self, look: Look) -> None:
        if look.site is not None:
            self._loops.suppose(look.site)
        elif look.starts_in is not None:
            known = [site for site in self._loops if site.code == look.starts_in and site.role is not None]
            look.site = known[-1] if known and all(site.role == known[0].role for site in known) else None
            look.starts_in = None
