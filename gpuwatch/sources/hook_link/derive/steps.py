"""Steps of the training thread, from what it did in time order.

A step is the work between the ends of two optimizer groups. The group is known to be over when the loop reads its
next batch; several groups on one batch (GAN) are one step. Loops without a visible optimizer end their steps with
the backward, loops without either (a whole step in one CUDA graph) with the next batch, loops that call
`gpuwatch.step()` there and nowhere else.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from gpuwatch.samples import PhaseSpan, Sample
from gpuwatch.sources.hook_link.derive.compute import Compute
from gpuwatch.sources.hook_link.derive.evaluations import Evaluations, Places, emit_waits
from gpuwatch.sources.hook_link.derive.iterators import BATCH, START, STOP, IteratorState, Loaders
from gpuwatch.sources.hook_link.derive.writer import StepWriter

SILENCE_NS: Final = 1_000_000_000
_UNTRAINED_NS: Final = 10_000_000_000
_FOLD_LIMIT: Final = 64
_NEXT_MODE_RUN: Final = 20
_STEPS_UNTIL_BELIEVED: Final = 8


class Mode(Enum):
    """What ends a step."""

    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    NEXT = "next"
    USER = "user"


class StepMachine:
    """Derives steps, waits and evaluations of one training thread. Samples go to `out`."""

    def __init__(
        self, trainer: str, out: list[Sample], places: Places, mode: Mode = Mode.OPTIMIZER, number: int = 1
    ) -> None:
        self.mode = mode
        self.thread: int | None = None  # the one that runs backward
        self.loaders = Loaders()
        self.compute = Compute()
        self.optimizer_known = False  # the facts name an optimizer
        self._trainer = trainer
        self._out = out
        self._evaluations = Evaluations(trainer, out, places)
        self.writer = StepWriter(trainer, out, self._evaluations, number)
        self._progress = 0  # backwards, optimizer steps and user steps so far
        self._last_read: IteratorState | None = None
        self._last_start = 0
        self._optimizer_in_backward = False
        self._usual_groups = 1
        self._trained = False  # a step has ended
        self._next_loader: int | None = None
        self._over_ns = 0  # when a pass over a loader ended that nothing has followed yet, 0: none
        self._is_outside = False  # and that this was emitted

    @property
    def reads_no_loader(self) -> bool:
        """Whether the training thread has taken no batch from a loader in enough steps to believe it."""
        return not self.writer.fed and self.writer.steps_without_loader >= _STEPS_UNTIL_BELIEVED

    def train_on(self, thread: int) -> None:
        """Settles the training thread; what others read from loaders no longer counts."""
        self.thread = thread
        for iterator in self.writer.read:
            iterator.loader.background |= iterator.thread != thread
        self.writer.read = [i for i in self.writer.read if i.thread == thread]

    def read(self, kind: int, start: int, end: int, iterator: IteratorState, samples: int, grad: bool) -> None:
        """Takes one `next()` or `iter()` of the training thread."""
        compute = self.compute
        writer = self.writer
        if writer.sees_begin is None:
            writer.sees_begin = kind == START
        if self.mode is Mode.NEXT:
            self._end_before(start, iterator)
        elif compute.group_end and self.mode is not Mode.USER:
            self._close(compute.group_end)
        if start < self._last_start:
            for inner in writer.read:
                if inner.thread == iterator.thread:
                    inner.drop_since(start)
        self._last_start = start
        if self._over_ns:
            self._end_outside(start)
        if kind == STOP and self._trained:
            self._over_ns = end
        if iterator.step != writer.index:
            iterator.next_step(writer.index)
            writer.read.append(iterator)
        elif iterator.span == "done":
            iterator.restart()
        last = self._last_read
        if last is not iterator:
            if last is not None and not last.next_start:
                last.next_start = start
            self._last_read = iterator
        if kind == BATCH:
            iterator.queue.append((samples, iterator.position))
            iterator.grad &= grad
        iterator.add(start, end, kind, self._progress)
        compute.move(end)
        if iterator.span == "open":
            self._evaluations.during(iterator)
            if kind == STOP:
                writer.phase(*self._evaluations.close(iterator, end))
        elif iterator.run >= _NEXT_MODE_RUN and kind == BATCH and self._is_next_only(iterator):
            self._adopt_next_mode(iterator)

    def backward(self, start: int, end: int) -> None:
        """Takes one backward of the training thread."""
        compute = self.compute
        if self._over_ns:
            self._end_outside(start)
        self.writer.sees_begin = bool(self.writer.sees_begin)
        optimizer_ns = compute.take_optimizers_since(start) if compute.optimizers else 0
        if compute.group_end and self.mode is not Mode.USER and self._next_step_began(start):
            self._close(compute.group_end)
        if self.mode is Mode.NEXT:
            self._leave_next_mode()
        if optimizer_ns:
            self._optimizer_in_backward = True
        compute.backward(start, end, optimizer_ns)
        if self.mode is Mode.BACKWARD:
            compute.end_group(end)
        self._progress += 1

    def optimizer(self, start: int, end: int) -> None:
        """Takes one optimizer step."""
        if self._over_ns:
            self._end_outside(start)
        self.writer.sees_begin = bool(self.writer.sees_begin)
        if self.mode is Mode.NEXT:
            self._leave_next_mode()
        elif self.mode is Mode.BACKWARD:
            self.mode = Mode.OPTIMIZER
        self.compute.optimizer(start, end)
        self._progress += 1

    def user_step(self, time_ns: int, samples: int) -> None:
        """Takes one `gpuwatch.step()`: from the first one on nothing else ends a step."""
        if self._over_ns:
            self._end_outside(time_ns)
        if self.mode is not Mode.USER:
            self.mode = Mode.USER
            self.writer.start = 0
        self._progress += 1
        self._close(time_ns, samples if samples >= 0 else None)
        self.compute.move(time_ns)

    def user_wait(self, start: int, end: int) -> None:
        """Takes one `gpuwatch.phase("data")`."""
        if self._over_ns:
            self._end_outside(start)
        if self.compute.group_end and self.mode is not Mode.USER:
            self._close(self.compute.group_end)
        self.writer.user_wait(start, end)
        self.compute.move(end)

    def user_evaluation(self, start: int, end: int) -> None:
        """Takes one `gpuwatch.phase("eval")`: what was read inside it did not feed the training."""
        inside = [i for i in self.writer.read if i.first_start >= start and i.batches]
        for iterator in inside:
            self._evaluations.retract(iterator)
            emit_waits(self._out, self._trainer, iterator, "eval")
            iterator.loader.eval_runs += 1
            iterator.queue.clear()
        self.writer.read = [i for i in self.writer.read if i not in inside]
        self._evaluations.emit_named(start, end, inside)
        self.writer.phase(start, end)

    def _end_outside(self, start: int) -> None:
        """Something of the loop follows the end of a pass: what was called outside ended there."""
        if self._is_outside:
            self._out.append(PhaseSpan(self._trainer, "outside", self._over_ns, start))
        self._over_ns, self._is_outside = 0, False

    # ---- boundaries

    def _close(self, end: int, samples: int | None = None) -> None:
        compute = self.compute
        self._usual_groups = max(1, compute.groups)
        self._trained = True
        late = compute.close() if compute.group_end and self.mode is not Mode.USER else None
        self.writer.write(end, compute, self._progress, samples)
        self._last_start = 0
        compute.reset()
        if late is not None:
            compute.reopen(late)

    def _next_step_began(self, start: int) -> bool:
        """Whether a backward after an optimizer group belongs to a new step rather than to the same batch."""
        if start < self.compute.group_end:
            return False
        if not self.writer.read or self._last_read is None:
            return True
        if self._last_read.batches > self.compute.backwards:
            return True  # batches were read ahead, each with its own step
        return self.compute.groups >= max(_FOLD_LIMIT, 4 * self._usual_groups)

    def _end_before(self, start: int, iterator: IteratorState) -> None:
        loader = iterator.loader.loader
        if loader == self._next_loader and any(i.batches for i in self.writer.read if i.loader.loader == loader):
            self._close(start)

    def _is_next_only(self, iterator: IteratorState) -> bool:
        """Whether a loader read many times without a backward feeds a training whose backward is not seen."""
        if self.mode not in (Mode.OPTIMIZER, Mode.BACKWARD) or not iterator.grad:
            return False
        if iterator.run < 4 * iterator.loader.longest_run:
            return False
        if iterator.trains:
            return True
        seen = self._progress > 0 or self.optimizer_known
        return seen and not self.writer.fed and not iterator.loader.eval_runs

    def _adopt_next_mode(self, iterator: IteratorState) -> None:
        """Turns to steps that end with the next batch, and gives those already read."""
        self._evaluations.retract(iterator)
        batches = [entry for entry in iterator.entries if entry[3] == BATCH][-iterator.run :]
        samples = [-1] * len(batches) + [s for s, _ in iterator.queue]
        samples = samples[len(samples) - len(batches) :]
        self.mode = Mode.NEXT
        self._next_loader = iterator.loader.loader
        self.writer.forget()
        self.compute.reset()
        self._last_start = 0
        iterator.trains = True
        iterator.queue.clear()
        iterator.position = batches[0][2]
        self.writer.start = batches[0][0]
        for (start, end, _, _), count in zip(batches, samples, strict=True):
            self.read(BATCH, start, end, iterator, count, True)

    def _leave_next_mode(self) -> None:
        self.mode = Mode.OPTIMIZER
        self.lose()

    # ---- time

    def check(self, now_ns: int) -> None:
        """Gives what silence decides: a step whose loop fell quiet, an evaluation that lasts."""
        compute = self.compute
        writer = self.writer
        if self._over_ns and not self._is_outside and now_ns - self._over_ns > SILENCE_NS:
            self._is_outside = True
            self._out.append(PhaseSpan(self._trainer, "outside", self._over_ns, None))
        if compute.group_end and now_ns - compute.mark > SILENCE_NS and self._shape_complete():
            self._close(compute.group_end)
        read = writer.read
        if not read or (len(read) == 1 and read[0].trains):
            return
        for iterator in read:
            if iterator.span == "no" and self._looks_like_evaluation(iterator, now_ns):
                self._evaluations.open(iterator)
            over = iterator.finished or (iterator.next_start and now_ns - iterator.last_end > SILENCE_NS)
            if iterator.span == "open" and over:
                writer.phase(*self._evaluations.close(iterator, now_ns))

    def _shape_complete(self) -> bool:
        """Whether the step has all the groups its predecessor had, so that silence may end it."""
        if not self._trained or self.mode is Mode.USER:
            return False
        if self._optimizer_in_backward and self.compute.optimizers:
            return False
        return self.compute.groups >= self._usual_groups

    def _looks_like_evaluation(self, iterator: IteratorState, now_ns: int) -> bool:
        if iterator.trains or iterator.first_progress != self._progress:
            return False
        age = now_ns - iterator.first_start
        if not self._trained:
            return iterator.batches >= 3 and age > _UNTRAINED_NS
        usual = iterator.loader.longest_run if iterator.loader.train_steps else 1
        return iterator.batches > usual and age > SILENCE_NS

    def unsettled(self) -> bool:
        """Whether silence may still decide something."""
        if self._over_ns and not self._is_outside:
            return True
        return bool(self.compute.group_end or any(not i.trains for i in self.writer.read))

    def lose(self) -> None:
        """Starts over after lost records: no step spans a loss."""
        self._end_outside(self._over_ns)
        self.writer.forget()
        self.loaders.forget_positions()
        self.compute.reset()
        self.compute.mark = 0
        self._last_start = 0

    def retract_open(self) -> None:
        """Takes back what is open, because another machine derives the same records again."""
        self._end_outside(self._over_ns)
        for iterator in self.writer.read:
            self._evaluations.retract(iterator)

    def finish(self, now_ns: int) -> None:
        """Gives what is complete when the trainer ends; a step without its optimizer is not."""
        if self.compute.group_end:
            self._close(self.compute.group_end)
        for iterator in self.writer.read:
            usual = iterator.loader.longest_run if iterator.loader.train_steps else 0
            whole = iterator.finished or iterator.batches > usual
            evaluates = iterator.span == "open" or (self._trained and whole)
            if not iterator.trains and iterator.batches and evaluates:
                self._evaluations.close(iterator, min(now_ns, iterator.last_end))
            else:
                emit_waits(self._out, self._trainer, iterator, "train" if iterator.trains else "unknown")
        self.writer.read = []
