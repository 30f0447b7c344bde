"""Loops over loaders, and what each is for: training, evaluation, or neither.

A loop is known by the loader it reads and the place it is written at. That it trains shows in samples of backward or
optimizer while it is the innermost one; that it evaluates, in their absence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gpuwatch.reader.types import Frame, LoaderState, Stack
from gpuwatch.samples.run import Role
from gpuwatch.sources.stacks.classify import Classifier, Reading
from gpuwatch.sources.stacks.counts import BatchCounter
from gpuwatch.sources.stacks.hints import Hint, hint_of
from gpuwatch.sources.stacks.marks import Mark
from gpuwatch.sources.stacks.source_text import Loop

LoopRole = Literal["train", "eval", "neither"]

EVAL_LOOKS: Final = 20
"""Looks without backward or optimizer after which a loop beside a training one evaluates."""
_WORKING_LOOKS: Final = 5
_SWITCHES: Final = 3
_SITES_KEPT: Final = 64
_ANCHORS: Final = 3

CodeKey = tuple[str, str, int]


class LoopText(Protocol):
    """Where loops are looked up."""

    def loops(self, file: str, number: int | None) -> Sequence[Loop]:
        """The loops around a line, innermost first."""


@dataclass(slots=True, eq=False)
class Site:
    """One loop over one loader."""

    loader: int
    code: CodeKey
    line: int | None  # of the `for`, or of the call of next()
    first_ns: int
    state: LoaderState | None
    confirmed: bool = False  # the line was seen while it read
    explicit: bool = False  # read by next(), not by a `for`
    role: LoopRole | None = None
    assumed: bool = False  # the role was not seen but supposed
    number: int | None = None
    last_ns: int = 0
    looks: int = 0
    waits: int = 0
    trained: int = 0
    computed: int = 0
    no_gradients: bool = False
    switches: int = 0
    anchors: tuple[tuple[int, CodeKey], ...] = ()
    counter: BatchCounter = field(default_factory=BatchCounter)

    @property
    def signature(self) -> tuple[object, ...]:
        """What stays the same when a loader is built anew with the same settings."""
        state = self.state
        if state is None:
            return ()
        return state.type_name, state.dataset, state.batch_size, state.num_workers, state.batches_per_epoch

    @property
    def told_role(self) -> Role:
        """The role as samples name it."""
        return self.role if self.role in ("train", "eval") else "unknown"


class Loops:
    """All loops of one process that were seen."""

    def __init__(self, classifier: Classifier, text: LoopText) -> None:
        self._classifier = classifier
        self._text = text
        self._sites: list[Site] = []
        self._last: Site | None = None
        self._last_number = 0

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    def named(self) -> list[Site]:
        """The loops whose role is decided, in the order of their numbers."""
        return sorted((site for site in self._sites if site.number is not None), key=lambda site: site.number or 0)

    def see(self, stack: Stack, state: LoaderState | None, reading: Reading, now_ns: int) -> Site | None:
        """The innermost loop a stack stands in, after taking note of what this look says of it."""
        site = self._find(stack, state, reading, now_ns)
        if site is None:
            if reading.trains:
                self._credit_by_anchor(stack.frames)
            return None
        self._note(site, state, reading, now_ns)
        return site

    def decide(self, site: Site) -> bool:
        """Settles a role that the looks so far prove; whether it is settled."""
        if site.role is not None and not site.assumed:
            return True
        role = self._proven(site)
        if role is not None:
            self._settle(site, role, assumed=False)
        return site.role is not None

    def suppose(self, site: Site) -> None:
        """Settles a role that could not be proven in time by what is likeliest; later looks may change it."""
        if site.role is None:
            self._settle(site, self._likeliest(site), assumed=True)

    def at(self, frame: Frame) -> Iterable[Site]:
        """The loops written in this frame's code."""
        code = code_key(frame)
        return (site for site in self._sites if site.code == code)

    def _find(self, stack: Stack, state: LoaderState | None, reading: Reading, now_ns: int) -> Site | None:
        frames = stack.frames
        if state is not None:
            index = state.frame
        elif reading.waits and reading.next_frame is not None:
            index = reading.next_frame
        else:
            return self._still_in_explicit(frames)
        while index < len(frames) - 1 and self._classifier.hands_on(frames[index]):
            index += 1
        loader = state.loader if state is not None else 0
        site = self._site(loader, frames[index], state, reading.waits, now_ns)
        site.anchors = tuple((frame.address, code_key(frame)) for frame in frames[index : index + _ANCHORS])
        if not site.no_gradients:
            outer = [self._classifier.mark(frame) for frame in frames[index:]]
            site.no_gradients = Mark.NO_GRAD in outer or Mark.EVALUATION in outer
        return site

    def _site(self, loader: int, frame: Frame, state: LoaderState | None, waits: bool, now_ns: int) -> Site:
        code = code_key(frame)
        fresh = Site(loader, code, None, now_ns, state)
        group = [s for s in self._sites if s.loader == loader and s.code == code and s.signature == fresh.signature]
        around = self._text.loops(code[0], frame.line)
        if waits:
            header = next(
                (lp for lp in around if lp.iterates and lp.first <= (frame.line or 0) <= lp.header_last), None
            )
            line = header.first if header is not None else frame.line
            found = next((site for site in group if site.confirmed and site.line == line), None)
            found = found or next((site for site in group if not site.confirmed), None) or fresh
            found.line, found.confirmed = line, True
            found.explicit = header is None and bool(self._text.loops(code[0], line) or around)
        else:
            found = _around_body(group, frame.line, around) or fresh
            if found is fresh:
                found.line = _guess(around)
        if found is fresh:
            self._sites.append(found)
            self._forget_old()
        return found

    def _note(self, site: Site, state: LoaderState | None, reading: Reading, now_ns: int) -> None:
        last = self._last
        if last is not None and last is not site and last.code == site.code and site.state is not None:
            # Two loaders read in one loop take turns, each with the iterator it had before; two passes of one
            # function over different loaders do not.
            beside = (site.line == last.line or site.explicit) and not site.state.persistent_workers
            same = beside and state is not None and site.state.iterator == state.iterator
            grown = same and state is not None and state.batches_yielded > site.state.batches_yielded > 0
            site.switches += 1 if grown else 0
        self._last = site
        site.last_ns = now_ns
        site.looks += 1
        site.waits += reading.waits
        site.computed += reading.computes
        site.trained += reading.trains
        if state is not None:
            site.state = state
            site.counter.see(state, now_ns)
        else:
            site.counter.see_wait(reading.waits)

    def _still_in_explicit(self, frames: Sequence[Frame]) -> Site | None:
        """The loop that called next() itself, while its thread is elsewhere in the same loop's body."""
        site = self._last
        if site is None or not site.explicit or not site.anchors:
            return None
        address, code = site.anchors[0]
        for frame in frames:
            if frame.address == address and code_key(frame) == code:
                around = self._text.loops(code[0], site.line)
                line = frame.line or 0
                return site if any(loop.first <= line <= loop.last for loop in around) else None
        return None

    def _credit_by_anchor(self, frames: Sequence[Frame]) -> None:
        """Training without a loop in sight: the loader was read a call or two away, in the same outer frames."""
        standing = {(frame.address, code_key(frame)) for frame in frames}
        site = self._last
        if site is not None and not site.no_gradients and standing.intersection(site.anchors):
            site.trained += 1
            self.decide(site)

    def _trains_elsewhere(self, site: Site) -> bool:
        return any(other is not site and other.role == "train" and other.trained for other in self._sites)

    def _proven(self, site: Site) -> LoopRole | None:
        if site.trained:
            return "train"
        if site.no_gradients:
            return "eval"
        if not self._trains_elsewhere(site):
            return None
        if site.switches >= _SWITCHES:
            return "train"
        kin = [s for s in self._sites if s.role is None and s.code == site.code and s.signature == site.signature]
        group = kin if site in kin else [site]
        looks, working = sum(s.looks for s in group), sum(s.looks - s.waits for s in group)
        return "eval" if looks >= EVAL_LOOKS and working >= _WORKING_LOOKS else None

    def _likeliest(self, site: Site) -> LoopRole:
        kin = {s.role for s in self._sites if s is not site and s.code == site.code and s.signature == site.signature}
        kin.discard(None)
        if len(kin) == 1 and (role := kin.pop()) is not None:
            return role
        loops = self._text.loops(site.code[0], site.line)
        hint = hint_of(next((loop.node for loop in loops if loop.first == site.line), None), site.code[1])
        if hint is Hint.TRAINS:
            return "train"
        if hint is Hint.EVALUATES or self._trains_elsewhere(site):
            return "eval"
        return "neither" if hint is Hint.LOOKS_ONLY and not site.computed else "train"

    def _settle(self, site: Site, role: LoopRole, assumed: bool) -> None:
        site.role, site.assumed = role, assumed
        if site.number is not None:
            return
        for other in self._sites:
            # A loader that is built anew for each epoch goes on as the same one.
            again = other is not site and other.number is not None and other.role == role and other.code == site.code
            if again and other.signature == site.signature and other.last_ns < site.first_ns:
                site.number = other.number
                length = site.state.batches_per_epoch if site.state is not None else None
                site.counter.go_on_from(other.counter, length)
                self._sites.remove(other)
                return
        self._last_number += 1
        site.number = self._last_number

    def _forget_old(self) -> None:
        if len(self._sites) > _SITES_KEPT:
            self._sites.remove(min(self._sites[:-1], key=lambda site: site.last_ns))


def code_key(frame: Frame) -> CodeKey:
    """What names a piece of code in a process for good; addresses are reused."""
    return frame.code.file, frame.code.name, frame.code.first_line


def _around_body(group: Sequence[Site], line: int | None, around: Sequence[Loop]) -> Site | None:
    """The known loop of this loader that a line outside of next() belongs to."""
    firsts = [loop.first for loop in around]
    confirmed = [site for site in group if site.confirmed]
    for site in confirmed:
        if site.line in firsts:
            return site
    explicit = next((site for site in confirmed if site.explicit), None)
    if explicit is not None:
        return explicit
    if not around:
        above = [site for site in confirmed if (site.line or 0) <= (line or 0)]
        return max(above, key=lambda site: site.line or 0, default=None) or next(iter(group), None)
    return next((site for site in group if not site.confirmed), None)


def _guess(around: Sequence[Loop]) -> int | None:
    """The innermost `for` that may run over a loader: not over a range or a literal."""
    usual = [loop for loop in around if loop.iterates and re.search("load|batch|data|dl", loop.target_text, re.I)]
    others = [loop for loop in around if loop.iterates and "range(" not in loop.target_text]
    chosen = next(iter(usual or others or list(around)), None)
    return chosen.first if chosen is not None else None
