"""Each loader and each of its iterators: what was waited for them, and which of those read in a step feed the training.

Grad mode at `next()` is no sign: the Hugging Face Trainer evaluates with grad mode on. What shows it is how the
reads lie between the backwards: training reads come back in step after step, an evaluation begins and ends
between two of them. So an iterator is judged by its whole life, and by what its loader was for before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, Literal

from gpuwatch.samples import Role

BATCH: Final = 0
STOP: Final = 1
START: Final = 2  # iter(loader): the workers start in it

Entry = tuple[int, int, int | None, int]
"""start_ns, end_ns, position in the epoch, one of BATCH, STOP and START."""

_MAX_LOADERS = 256
_MAX_ITERATORS = 256
_MAX_ENTRIES = 2048
_MAX_READ_AHEAD = 8
_QUEUE = 4096
_ASLEEP_STEPS = 8


class LoaderState:
    """One loader over the whole run: what its iterators turned out to be for."""

    __slots__ = (
        "_ahead",
        "_began",
        "_fresh",
        "background",
        "eval_runs",
        "last_train_step",
        "loader",
        "longest_run",
        "queue",
        "spacing",
        "train_steps",
        "wait_ns",
    )

    def __init__(self, loader: int) -> None:
        self.loader = loader
        self.train_steps = 0
        self.eval_runs = 0
        self.last_train_step = -1
        self.spacing = 1  # steps between its last two steps
        self.longest_run = 1  # batches in a row without a backward, seen in training
        self.wait_ns = 0
        self.queue: deque[tuple[int, int | None]] = deque(maxlen=_QUEUE)  # samples, position: not yet trained on
        self._ahead = 0  # how many batches this loop reads ahead
        self._fresh = 0  # batches read in this step
        self._began = False  # an epoch began in this step
        self.background = False  # read on a thread that does not train

    @property
    def role(self) -> Role:
        """The role it had more often; a tie is training, which reads an evaluated loader as well."""
        if self.train_steps and self.train_steps >= self.eval_runs:
            return "train"
        return "eval" if self.eval_runs else "unknown"

    def fed_lately(self, step: int) -> bool:
        """Whether training still read it a few steps ago, so that a new iterator is its next epoch."""
        return self.last_train_step >= 0 and step - self.last_train_step <= max(2, 2 * self.spacing)

    def fed(self, step: int) -> None:
        """Notes that training took batches from it in this step."""
        if self.last_train_step >= 0:
            self.spacing = step - self.last_train_step
        self.last_train_step = step
        self.train_steps += 1

    def fill(self, iterator: IteratorState) -> None:
        """Takes over what one of its iterators has read for the training in this step."""
        self._fresh += len(iterator.queue)
        self._began |= iterator.began
        self.queue.extend(iterator.queue)
        iterator.queue.clear()

    def consume(self, backwards: int) -> tuple[int, int | None, int | None]:
        """Takes the batches that one step trained on: their number, samples, and first position.

        accelerate reads one batch ahead, so the batches read in a step are not those trained on: the number of
        backwards says how many are, and what is read ahead at an epoch's start stays ahead. No backward at all
        means that they are not seen: then every batch counts.
        """
        queue = self.queue
        if self._began and backwards and self._fresh - backwards <= _MAX_READ_AHEAD:
            self._ahead = max(self._ahead, self._fresh - backwards)
        self._began = False
        self._fresh = 0
        waiting = len(queue)
        if waiting == 1:
            samples, position = queue.popleft()
            return 1, samples if samples >= 0 else None, position
        if not waiting:
            return 0, None, None
        take = max(min(waiting, backwards or waiting), waiting - self._ahead)
        taken = [queue.popleft() for _ in range(take)]
        known = all(samples >= 0 for samples, _ in taken)
        return take, sum(samples for samples, _ in taken) if known else None, taken[0][1]


class IteratorState:
    """One iterator: what is known of it, and what the training thread did with it in the current step."""

    __slots__ = (
        "batches",
        "began",
        "entries",
        "finished",
        "first_progress",
        "first_start",
        "grad",
        "last_end",
        "last_start",
        "loader",
        "longest_run",
        "next_start",
        "position",
        "previous_step",
        "queue",
        "run",
        "run_progress",
        "span",
        "step",
        "thread",
        "trains",
        "wait_ns",
    )

    def __init__(self, loader: LoaderState, thread: int, position: int | None) -> None:
        self.loader = loader
        self.thread = thread
        self.position = position  # of its next batch; None: the start of its epoch was not seen
        self.trains = False
        self.grad = True  # grad mode was on at every pull
        self.previous_step = -1  # the last step it was read in, before this one
        self.step = -1
        self.queue: deque[tuple[int, int | None]] = deque(maxlen=_QUEUE)  # samples, position: read in this step
        self.run = 0
        self.run_progress = -1
        self.next_step(-1)

    def next_step(self, step: int) -> None:
        """Begins the step with this number, in which it is read for the first time."""
        self.previous_step, self.step = self.step, step
        self.entries: list[Entry] = []
        self.batches = 0
        self.wait_ns = 0
        self.longest_run = 0
        self.first_start = self.last_start = self.last_end = 0
        self.first_progress = -1
        self.next_start = 0  # when the training thread went on to another iterator
        self.began = False  # its `iter()` is in this step
        self.finished = False  # StopIteration
        self.span: Literal["no", "open", "done"] = "no"  # its evaluation span was emitted

    def restart(self) -> None:
        """Begins a new run of reads within the same step."""
        previous = self.previous_step
        self.next_step(self.step)
        self.previous_step = previous

    def add(self, start: int, end: int, kind: int, progress: int) -> None:
        """Notes one `next()` or `iter()`."""
        entries = self.entries
        if not self.first_start:
            self.first_start = start
            self.first_progress = progress
            self.began = kind == START
        position = self.position
        if kind == BATCH:
            if position is not None:
                self.position = position + 1
            self.batches += 1
            if self.run_progress == progress:
                self.run += 1
            else:
                self.run, self.run_progress = 1, progress
            if self.run > self.longest_run:
                self.longest_run = self.run
        elif kind == STOP:
            self.finished = True
        self.wait_ns += end - start
        self.last_start, self.last_end = start, end
        self.next_start = 0
        if len(entries) >= _MAX_ENTRIES:
            del entries[: _MAX_ENTRIES // 2]
        entries.append((start, end, position, kind))

    def drop_since(self, start: int) -> None:
        """Forgets what lies inside a later, outer span: nested loaders each report the same wait."""
        entries = self.entries
        while entries and entries[-1][0] > start:
            begun, ended, _, kind = entries.pop()
            self.wait_ns -= ended - begun
            if kind == BATCH:
                self.batches -= 1
                if self.queue:
                    self.queue.pop()


class Loaders:
    """All loaders and iterators of one trainer, the oldest forgotten first."""

    def __init__(self) -> None:
        self.loaders: OrderedDict[int, LoaderState] = OrderedDict()
        self._iterators: OrderedDict[tuple[int, int], IteratorState] = OrderedDict()

    def loader(self, loader: int) -> LoaderState:
        """The loader's state, made on first sight."""
        state = self.loaders.get(loader)
        if state is None:
            state = self.loaders[loader] = LoaderState(loader)
            if len(self.loaders) > _MAX_LOADERS:
                older = list(self.loaders)[:-1]
                del self.loaders[next((key for key in older if not self.loaders[key].train_steps), older[0])]
        return state

    def iterator(self, loader: int, number: int, thread: int) -> IteratorState:
        """The iterator's state; one whose `iter()` was not seen does not know its position."""
        return self._iterators.get((loader, number)) or self._add(loader, number, thread, None)

    def begin(self, loader: int, number: int, thread: int) -> IteratorState:
        """A fresh state: persistent workers keep their iterator, but `iter()` begins a new epoch."""
        return self._add(loader, number, thread, 0)

    def forget_positions(self) -> None:
        """After a loss it is unknown how far an epoch has come."""
        for iterator in self._iterators.values():
            iterator.position = None
            iterator.queue.clear()
            iterator.loader.queue.clear()

    def _add(self, loader: int, number: int, thread: int, position: int | None) -> IteratorState:
        state = IteratorState(self.loader(loader), thread, position)
        self._iterators[loader, number] = state
        self._iterators.move_to_end((loader, number))
        if len(self._iterators) > _MAX_ITERATORS:
            self._evict()
        return state

    def _evict(self) -> None:
        # An epoch may outlive hundreds of evaluations, so what trains goes last.
        older = list(self._iterators)[:-1]
        del self._iterators[next((key for key in older if not self._iterators[key].trains), older[0])]


def judge(read: Sequence[IteratorState], step: int, steps_without_loader: int) -> None:
    """Sets `trains` of the iterators read in `step`; those that it leaves False are evaluations.

    Args:
        read: the iterators in the order of their first read in the step.
        step: the number of the step, as in `IteratorState.step`.
        steps_without_loader: how many steps before this one took no batch from any loader.
    """
    for i in read:
        i.trains |= 0 < i.longest_run < i.batches  # a backward came between its reads
    known = [i for i in read if i.trains and i.batches]
    if len(known) > 1:
        known = _drop_sleepers(known, step)
    last = max(read, key=_last_start)
    if last.trains and last.loader.queue and last not in known:
        known.append(last)  # it is exhausted, but a batch read ahead is still to be trained on
    unknown = [i for i in read if not i.trains and i.batches]
    if not unknown:
        return
    alive = [i for i in unknown if not _came_and_went(i)]
    if known:
        _judge_beside(known, alive, step)
        return
    next_epochs = [i for i in alive if i.loader.fed_lately(step)]
    if next_epochs:
        for last in {i.loader.loader: i for i in sorted(next_epochs, key=_last_start)}.values():
            last.trains = True
    elif steps_without_loader >= 2:
        # The training reads its data elsewhere; only what comes back in step after step belongs to it.
        for i in alive:
            i.trains = 0 <= i.previous_step == step - 1
    elif alive:
        _judge_first(alive)
    else:
        # accelerate reads one batch ahead: an epoch of one batch has ended before it is trained on.
        single = [i for i in unknown if i.batches == 1]
        if single:
            single[-1].trains = True


def _drop_sleepers(known: list[IteratorState], step: int) -> list[IteratorState]:
    """Takes back the role of one that slept while another one trained: a kept evaluation iterator."""
    if not any(i.previous_step == step - 1 for i in known):
        return known
    for i in known:
        i.trains = i.previous_step < 0 or step - i.previous_step <= _ASLEEP_STEPS
    return [i for i in known if i.trains]


def _came_and_went(iterator: IteratorState) -> bool:
    """Whether it began and was exhausted in this step without a backward in between."""
    return (
        iterator.previous_step < 0
        and iterator.finished
        and iterator.longest_run == iterator.batches
        and (iterator.run_progress == iterator.first_progress)
    )


def _judge_beside(known: list[IteratorState], alive: list[IteratorState], step: int) -> None:
    """Next epochs and siblings of iterators that are known to train.

    An accumulation may begin in one epoch and end in the next. A sibling is read in turn with a known one (zip),
    or belongs to a shorter loader that started over.
    """
    newest = {i.loader: i for i in sorted([*known, *alive], key=_last_start)}
    for i in alive:
        ended = any(k.finished and k.loader is i.loader and k.last_start < i.first_start for k in known)
        i.trains = ended and i is newest[i.loader]
    training = [*known, *(i for i in alive if i.trains)]
    most = max(i.batches for i in training)
    for i in alive:
        read_on = any(k.loader is i.loader and k.last_start > i.first_start for k in training)
        if i.trains or read_on or i.batches > most:
            continue
        in_turn = i.batches == 1 or any(i.last_start > k.first_start and k.last_start > i.first_start for k in training)
        fed = i.loader.fed_lately(step) or any(k.loader is i.loader for k in known)
        i.trains = in_turn and (fed or 0 <= i.previous_step == step - 1)


def _judge_first(alive: list[IteratorState]) -> None:
    """Nothing is known yet: the last one read before the backward trains, and what alternates with it."""
    anchor = max(alive, key=_last_start)
    for i in alive:
        alternates = i.batches == anchor.batches and i.last_start > anchor.first_start
        i.trains = i is anchor or alternates or i.batches == anchor.batches == 1


def _last_start(iterator: IteratorState) -> int:
    return iterator.last_start
