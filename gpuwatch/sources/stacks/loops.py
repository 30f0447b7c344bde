"""Loops over loaders: what each is for (training, evaluation, or neither), and how often it went around.

A loop is known by the loader it reads and the place it is written at. That it trains shows in samples of backward or
optimizer while it is the innermost one; that it evaluates, in their absence. It is counted since it was first sampled,
by the counter of each iterator that it used.

A training loop that reads no loader is counted by the variable that it counts with. It is the innermost loop around the
optimizer's step, or around the backward where no optimizer of torch's steps; its code names the variable, the target's
memory holds its value.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Literal

from gpuwatch.reader.loaders import LoaderReader, LoaderState
from gpuwatch.reader.refusals import Cache
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import LoaderFacts, Role
from gpuwatch.sources.stacks.classify import Classifier, CodeKey, Mark, Owner, Places, Reading, code_key
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

_FRAMEWORKS: Final = {
    ("stable_baselines3/common/on_policy_algorithm.py", "learn"): ("self.num_timesteps",),
    ("stable_baselines3/common/off_policy_algorithm.py", "learn"): ("self.num_timesteps",),
}
"""By the function of a training loop of a framework: the variable that this counts its progress with.

Its loop around the optimizer's step goes over parts of a buffer and counts nothing. A timestep is one step of one
environment."""

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
        if self.read_ns is not None and now_ns - self.read_ns < _READ_NS:
            return
        for frame in frames:
            names = _FRAMEWORKS.get((self._classifier.places.of(frame.code.file).module, frame.code.name))
            if names is not None:
                self._read((code_key(frame), 0), frame, names, now_ns)
                return
        chosen = self._chosen()
        if chosen is None:
            return
        loop = self._loops[chosen]
        for frame in frames:
            if code_key(frame) == chosen[0] and loop.first <= (frame.line or 0) <= loop.last:
                self._read(chosen, frame, loop.counters, now_ns)
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

    def _read(self, key: _Key, frame: Frame, names: Sequence[str], now_ns: int) -> None:
        value = next((value for name in names if (value := self._integer(frame, name)) is not None), None)
        if value is None or abs(value) > _LARGEST:
            return
        if key != self._counted or value < self._last:
            self._counted = key
            self._rounds += 1
        self._last, self.read_ns = value, now_ns
        self.counter.see(LoaderState(self._rounds, _NO_LOADER, "", value, 0), now_ns)


LoopRole = Literal["train", "eval", "neither"]


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
    counted_ns: int = 0  # when the count of `state` was read
    samples: int = 0
    waits: int = 0
    trained: int = 0
    computed: int = 0
    no_gradients: bool = False
    switches: int = 0
    fed_ns: int = 0  # when a thread was last seen in it that makes batches for the training thread
    anchors: tuple[tuple[int, CodeKey], ...] = ()
    counter: BatchCounter = field(default_factory=BatchCounter)

    @property
    def signature(self) -> tuple[object, ...]:
        """What stays the same when a loader is rebuilt with the same settings."""
        state = self.state
        if state is None:
            return ()
        its = state.settings
        return state.type_name, its.dataset, its.batch_size, its.num_workers, its.batches_per_epoch

    @property
    def reported_role(self) -> Role:
        """The role as samples name it."""
        return self.role if self.role in ("train", "eval") else "unknown"


def read_elsewhere(group: Sequence[Site], outer: Sequence[Frame], waits: bool) -> Site | None:
    """The loop whose next() is called a function away from the loop itself (transformers' get_batch_samples)."""
    if waits:
        current_line = {(frame.address, code_key(frame)) for frame in outer[1:]}
        open_ones = (site for site in group if site.explicit or not site.confirmed)
        return next((site for site in open_ones if site.anchors[0] in current_line), None)
    here = outer[0].address, code_key(outer[0])
    return next((site for site in group if site.explicit and here in site.anchors[1:]), None)


def around_body(group: Sequence[Site], line: int | None, around: Sequence[Loop]) -> Site | None:
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


def guess_line(around: Sequence[Loop]) -> int | None:
    """The innermost `for` that may run over a loader: not over a range or a literal."""
    usual = [loop for loop in around if loop.iterates and re.search("load|batch|data|dl", loop.over, re.I)]
    others = [loop for loop in around if loop.iterates and "range(" not in loop.over]
    chosen = next(iter(usual or others or list(around)), None)
    return chosen.first if chosen is not None else None


_TRAINING_CALLS: Final = frozenset({"backward", "step", "training_step", "train_step", "train_batch", "fit_batch"})
_EVALUATING: Final = re.compile(r"(?:.*_)?(?:eval\w*|valid\w*|val|test\w*|infer\w*|predict\w*)", re.I)
_COMPUTING: Final = re.compile(r".*(?:model|net|train|step|forward|fit|loss|criterion|optim|learn|run|process).*", re.I)


class Hint(Enum):
    """What a loop seems to do."""

    TRAINS = auto()
    EVALUATES = auto()
    READS_ONLY = auto()  # its body calls nothing that could be a model


def hint_of(loop: Loop | None, function: str) -> Hint | None:
    """The purpose of a loop by its text and by the name of the function it stands in."""
    if loop is not None and loop.calls & _TRAINING_CALLS:
        return Hint.TRAINS
    over = loop.over_names if loop is not None else frozenset()
    if _EVALUATING.fullmatch(function) or any(_EVALUATING.match(name) for name in over):
        return Hint.EVALUATES
    if loop is not None and not any(_COMPUTING.fullmatch(name) for name in loop.calls):
        return Hint.READS_ONLY
    return None


EVAL_SAMPLES: Final = 20
"""Samples without backward or optimizer after which a loop next to a training one evaluates."""
_WORKING_SAMPLES: Final = 5
_SWITCHES: Final = 3
_SITES_KEPT: Final = 64
_ANCHORS: Final = 3
_ASKED_SAMPLES: Final = 4
_MEMO_KEPT: Final = 1024
_UNCOUNTED_SAMPLES: Final = 20
_INFERS_NS: Final = 10_000_000_000
"""As long as an evaluation before the training may last without being taken for inference."""
_FED_NS: Final = 60_000_000_000
"""A loop in another thread is seen while the training thread waits for it, which a loader that keeps up makes rare."""


class Loops:
    """All loops of one process that were seen."""

    def __init__(
        self, classifier: Classifier, text: SourceText, recheck: Callable[[LoaderState], int | None] = lambda _: None
    ) -> None:
        self._classifier = classifier
        self._text = text
        self._recheck = recheck
        self._memo: dict[tuple[object, ...], Site] = {}
        self._codes_kept: dict[int, Frame] = {}  # so that no other code object takes over an identity in the memo
        self._sites: list[Site] = []
        self._last: Site | None = None
        self._last_number = 0
        self._counted = False
        self._uncounted = 0
        self._first_ns: int | None = None
        self._has_trained = False
        self.infers = False
        """Whether loops over loaders are all that this process does: then they are what its steps are made of."""

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    def named(self) -> list[Site]:
        """The loops whose role is decided, in the order of their numbers."""
        return sorted((site for site in self._sites if site.number is not None), key=lambda site: site.number or 0)

    def see(
        self, stack: Stack, state: LoaderState | None, reading: Reading, now_ns: int, counted_ns: int | None = None
    ) -> Site | None:
        """The innermost loop a stack stands in, after taking note of this sample; `counted_ns` is its count's time."""
        frames = stack.frames
        self._has_trained |= reading.trains
        site = self._find(frames, state, reading, now_ns)
        if site is not None:
            if self._first_ns is None:
                self._first_ns = now_ns
            self.infers = not self._has_trained and now_ns - self._first_ns >= _INFERS_NS
            if self.infers and site.role == "eval":
                self._settle(site, "train", assumed=True)
            self._note(site, state, reading, now_ns, now_ns if counted_ns is None else counted_ns)
            return site
        site = self._still_in(frames)
        if site is not None:
            count = self._recheck(site.state) if site.state is not None else None
            known = replace(site.state, batches_yielded=count) if site.state is not None and count is not None else None
            self._note(site, known, reading, now_ns, now_ns)
        elif reading.trains:
            self.infers = False
            self._credit_by_anchor(frames)
        return site

    def feed(self, stack: Stack, state: LoaderState, reading: Reading, now_ns: int) -> None:
        """Takes note of a loop over a loader in a thread whose batches the training thread waits for: it trains."""
        site = self._find(stack.frames, state, reading, now_ns)
        if site is None:
            return
        site.last_ns = site.counted_ns = now_ns
        site.samples += 1
        site.trained += 1
        site.state = state
        site.fed_ns = now_ns
        site.counter.see(state, now_ns)
        self.decide(site)

    def recount(self, now_ns: int) -> None:
        """Reads the count of the loop that was seen last once more, and of those in other threads."""
        fed = [site for site in self._sites if site.fed_ns and now_ns - site.fed_ns < _FED_NS]
        for site in {id(site): site for site in (self._last, *fed) if site is not None}.values():
            count = self._recheck(site.state) if site.state is not None else None
            if site.state is not None and count is not None and count >= site.state.batches_yielded:
                site.state, site.counted_ns = replace(site.state, batches_yielded=count), now_ns
                site.counter.see(site.state, now_ns)

    def decide(self, site: Site) -> bool:
        """Settles a role that the samples so far prove; whether it is settled."""
        if site.role is not None and not site.assumed:
            return True
        role = self._proven(site)
        if role is not None:
            self._settle(site, role, assumed=False)
        return site.role is not None

    def suppose(self, site: Site) -> None:
        """Settles a role that could not be proven in time by what is likeliest; later samples may change it."""
        if site.role is None:
            self._settle(site, self._likeliest(site), assumed=True)

    def at(self, frame: Frame) -> Iterable[Site]:
        """The loops written in this frame's code."""
        code = code_key(frame)
        return (site for site in self._sites if site.code == code)

    def _find(self, frames: Sequence[Frame], state: LoaderState | None, reading: Reading, now_ns: int) -> Site | None:
        """The loop that the reader, or a next() on the stack, points at."""
        if state is not None:
            index = state.frame
        elif reading.waits and reading.next_frame is not None:
            index = reading.next_frame
        else:
            return None
        while index < len(frames) - 1 and self._classifier.hands_on(frames[index]):
            index += 1
        frame = frames[index]
        if state is None:
            return self._site_without_count(frames[index:], now_ns)
        self._counted = True
        key = state.loader, state.iterator
        memo = (*key, id(frame.code), frame.line, reading.waits)
        site = self._memo.get(memo)
        if site is None:
            site = self._site(frames[index:], state, reading.waits, now_ns)
            if site is None:
                return None
            if len(self._memo) >= _MEMO_KEPT:
                self._forget_memo()
            self._memo[memo] = site
            self._codes_kept[id(frame.code)] = frame
        if site.code[1] == frame.code.name and (reading.waits or not site.anchors):
            site.anchors = tuple((frame.address, code_key(frame)) for frame in frames[index : index + _ANCHORS])
        if site.samples < _ASKED_SAMPLES and not site.no_gradients:
            outer = [self._classifier.mark(frame) for frame in frames[index:]]
            site.no_gradients = Mark.NO_GRAD in outer or Mark.EVALUATION in outer
        return site

    def _site_without_count(self, outer: Sequence[Frame], now_ns: int) -> Site | None:
        """The loop that a next() is in whose iterator was not read: while it is made, or where none ever is."""
        code = code_key(outer[0])
        known = [site for site in self._sites if site.code == code and site.confirmed]
        around = self._text.loops(code[0], outer[0].line)
        here = [site for site in known if site.line == outer[0].line or any(loop.first == site.line for loop in around)]
        if here:
            return max(here, key=lambda site: site.last_ns)
        self._uncounted += 1
        if self._counted or self._uncounted < _UNCOUNTED_SAMPLES:
            return None
        site = self._site(outer, None, True, now_ns)
        if site is not None:
            site.anchors = tuple((frame.address, code_key(frame)) for frame in outer[:_ANCHORS])
        return site

    def _site(self, outer: Sequence[Frame], state: LoaderState | None, waits: bool, now_ns: int) -> Site | None:
        """The loop in the first of these frames; None where the source shows that there is none."""
        frame, loader = outer[0], state.loader if state is not None else 0
        code = code_key(frame)
        fresh = Site(loader, code, None, now_ns, state)
        group = [site for site in self._sites if site.loader == loader and site.signature == fresh.signature]
        around = self._text.loops(code[0], frame.line)
        parses = self._text.parses(code[0])
        found = read_elsewhere(group, outer, waits)
        if found is not None:
            found.explicit = found.confirmed = found.confirmed or waits
            return found
        group = [site for site in group if site.code == code]
        if waits:
            header = next(
                (lp for lp in around if lp.iterates and lp.first <= (frame.line or 0) <= lp.header_last), None
            )
            line = header.first if header is not None else frame.line
            found = next((site for site in group if site.confirmed and site.line == line), None)
            found = found or next((site for site in group if not site.confirmed), None) or fresh
            found.line, found.confirmed = line, True
            found.explicit = header is None and parses
        elif parses and not around:
            return None
        else:
            found = around_body(group, frame.line, around) or fresh
            if found is fresh:
                found.line = guess_line(around)
        if found is fresh:
            self._sites.append(found)
            self._forget_old()
        return found

    def _note(self, site: Site, state: LoaderState | None, reading: Reading, now_ns: int, counted_ns: int) -> None:
        last = self._last
        if last is not None and last is not site and last.code == site.code and site.state is not None:
            # Two loaders read in one loop take turns, each with the iterator it had before; two passes of one
            # function over different loaders do not.
            is_adjacent = (site.line == last.line or site.explicit) and not site.state.settings.persistent_workers
            same = is_adjacent and state is not None and site.state.iterator == state.iterator
            grown = same and state is not None and state.batches_yielded > site.state.batches_yielded > 0
            site.switches += 1 if grown else 0
        self._last = site
        site.last_ns = now_ns
        site.samples += 1
        site.waits += reading.waits
        site.computed += reading.computes
        site.trained += reading.trains
        if state is not None:
            if counted_ns > site.counted_ns or site.state is None or state.iterator != site.state.iterator:
                site.state, site.counted_ns = state, counted_ns
                site.counter.see(state, counted_ns)
        elif not self._counted:
            site.counter.see_wait(reading.waits)

    def _still_in(self, frames: Sequence[Frame]) -> Site | None:
        """The loop that the source puts the thread in, where its iterator is not in sight."""
        for frame in frames:
            code = None
            for site in self._sites:
                if site.anchors and site.anchors[0][0] == frame.address:
                    code = code or code_key(frame)
                    if site.anchors[0][1] == code and self._within(site, frame.line):
                        recent = [s for s in self._sites if s.anchors[:1] == site.anchors[:1] and s.line == site.line]
                        return max(recent, key=lambda site: site.last_ns)
        return None

    def _within(self, site: Site, line: int | None) -> bool:
        loops = self._text.loops(site.code[0], site.line)
        if not site.explicit:
            loops = [loop for loop in loops if loop.first == site.line]
        return any(loop.first <= (line or 0) <= loop.last for loop in loops)

    def _credit_by_anchor(self, frames: Sequence[Frame]) -> None:
        """Training without a loop in sight: the loader was read a call or two away, in the same outer frames."""
        current_line = {(frame.address, code_key(frame)) for frame in frames}
        site = self._last
        if site is not None and not site.no_gradients and current_line.intersection(site.anchors):
            site.trained += 1
            self.decide(site)

    def _trains_elsewhere(self, site: Site) -> bool:
        return any(other is not site and other.role == "train" and other.trained for other in self._sites)

    def _proven(self, site: Site) -> LoopRole | None:
        if site.trained:
            return "train"
        if site.no_gradients and not self.infers:
            return "eval"
        if not self._trains_elsewhere(site) or self._hint(site) is Hint.TRAINS:
            return None
        if site.switches >= _SWITCHES:
            return "train"
        kin = [s for s in self._sites if s.role is None and s.code == site.code and s.signature == site.signature]
        group = kin if site in kin else [site]
        samples, working = sum(s.samples for s in group), sum(s.samples - s.waits for s in group)
        return "eval" if samples >= EVAL_SAMPLES and working >= _WORKING_SAMPLES else None

    def _likeliest(self, site: Site) -> LoopRole:
        kin = {s.role for s in self._sites if s is not site and s.code == site.code and s.signature == site.signature}
        kin.discard(None)
        if len(kin) == 1 and (role := kin.pop()) is not None:
            return role
        hint = self._hint(site)
        if hint is Hint.TRAINS or (self.infers and hint is Hint.EVALUATES):
            return "train"
        if hint is Hint.EVALUATES or self._trains_elsewhere(site):
            return "eval"
        return "neither" if hint is Hint.READS_ONLY and not site.computed else "train"

    def _hint(self, site: Site) -> Hint | None:
        loops = self._text.loops(site.code[0], site.line)
        return hint_of(next((loop for loop in loops if loop.first == site.line), None), site.code[1])

    def _settle(self, site: Site, role: LoopRole, assumed: bool) -> None:
        site.role, site.assumed = role, assumed
        if site.number is not None:
            return
        for other in self._sites:
            # A loader that is rebuilt for each epoch goes on as the same one.
            again = other is not site and other.number is not None and other.role == role and other.code == site.code
            if again and other.signature == site.signature and other.last_ns < site.first_ns:
                site.number = other.number
                length = site.state.settings.batches_per_epoch if site.state is not None else None
                site.counter.go_on_from(other.counter, length)
                self._sites.remove(other)
                self._forget_memo()
                return
        self._last_number += 1
        site.number = self._last_number

    def _forget_old(self) -> None:
        if len(self._sites) > _SITES_KEPT:
            self._sites.remove(min(self._sites[:-1], key=lambda site: site.last_ns))
            self._forget_memo()

    def _forget_memo(self) -> None:
        self._memo.clear()
        self._codes_kept.clear()


_STACKS_NOTED: Final = 1024
_WHOLE: Final = (0, 1 << 31)


class TrainingLoops:
    """The loops around the backwards and optimizer steps that were sampled so far.

    Of the user's own functions the outermost loop around such a line counts, or all of the function where its source
    is not known. A library's function that the user's code calls counts as a whole: what called the user's code, such
    as a notebook's kernel, is there before and after the training as well.
    """

    def __init__(self, places: Places, text: SourceText) -> None:
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
        if where in self._noted or len(self._noted) >= _STACKS_NOTED:
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
