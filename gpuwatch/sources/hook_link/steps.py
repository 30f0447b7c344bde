"""Steps of the training thread, from what it did in time order, and what it computed in each.

A step is the work between the ends of two optimizer groups. The group is known to be over when the loop reads its
next batch; several groups on one batch (GAN) are one step. Loops without a visible optimizer end their steps with
the backward, loops without either (a whole step in one CUDA graph, inference) with the next batch, loops that call
`gpuwatch.step()` there and nowhere else.

Spans arrive in the order of their ends, so an inner one comes before the outer one that contains it: a backward
inside an optimizer step (closures of LBFGS and Lightning), an optimizer step inside a backward (optimizer in
backward), `super().step()`, reentrant checkpointing. Each outer span takes back what its inner ones counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from gpuwatch.samples import BatchWait, GpuGap, PhaseSpan, Role, Sample, StepEnd
from gpuwatch.sources.hook_link.facts import Place
from gpuwatch.sources.hook_link.iterators import BATCH, START, STOP, IteratorState, Loaders, judge
from gpuwatch.timeline.times import Span, clipped, total_ns, united, without

_MAX_SPANS: Final = 4096


class _Backward(NamedTuple):
    start: int
    end: int
    own_ns: int
    forward_ns: int
    mark: int  # where its forward began


class _Optimizer(NamedTuple):
    start: int
    end: int
    own_ns: int
    inner_ns: int
    group_end: int  # of the group before it


class _Totals(NamedTuple):
    forward_ns: int
    backward_ns: int
    backwards: int
    copy_ns: int


class Compute:
    """The computation since the last step's end.

    `group_end` is the end of the last optimizer group, 0 while there was none: optimizers with no backward in
    between are one group. `mark` is the end of the last thing the training thread did: a forward begins there.
    """

    __slots__ = (
        "_backs",
        "_copied_since_mark",
        "_in_groups",
        "backward_ns",
        "backwards",
        "copy_ns",
        "first_backward",
        "forward_ns",
        "forwards",
        "group_end",
        "mark",
        "optimizer_ns",
        "optimizers",
        "sealed",
    )

    def __init__(self) -> None:
        self.mark = 0
        self._backs: list[_Backward] = []
        self.optimizers: list[_Optimizer] = []
        self.forwards: list[Span] = []
        self.reset()

    def reset(self) -> None:
        """Begins a new step; `mark` stays."""
        self._backs.clear()
        self.optimizers.clear()
        self.forwards.clear()
        self.backwards = 0
        self.first_backward = 0
        self.sealed = 0  # groups that ended with a backward around them
        self.group_end = 0
        self.forward_ns = self.backward_ns = self.optimizer_ns = self.copy_ns = 0
        self._copied_since_mark = 0
        self._in_groups = _Totals(0, 0, 0, 0)

    @property
    def groups(self) -> int:
        """How many optimizer steps, or backwards with optimizers in them, this step has seen."""
        return len(self.optimizers) + self.sealed

    def end_group(self, end: int) -> None:
        """Notes that an optimizer group ended: what was computed so far belongs to this step."""
        self.group_end = end
        self._in_groups = _Totals(self.forward_ns, self.backward_ns, self.backwards, self.copy_ns)

    def close(self) -> _Totals | None:
        """Takes out what was computed after the last group, which another step will end; for `reopen`."""
        groups = self._in_groups
        if self.backwards == groups.backwards and self.copy_ns == groups.copy_ns:
            return None
        late = _Totals(
            max(0, self.forward_ns - groups.forward_ns),
            max(0, self.backward_ns - groups.backward_ns),
            max(0, self.backwards - groups.backwards),
            max(0, self.copy_ns - groups.copy_ns),
        )
        self.forward_ns, self.backward_ns, self.backwards, self.copy_ns = groups
        return late

    def reopen(self, late: _Totals) -> None:
        """Begins a step with what was computed after the last one's end."""
        self.forward_ns, self.backward_ns, self.backwards, self.copy_ns = late

    def move(self, end: int) -> None:
        """Notes the end of a wait."""
        self.mark = end
        self._copied_since_mark = 0

    def copy(self, start: int, end: int) -> None:
        """Notes a host-to-device copy, which is no part of the forward around it."""
        self.copy_ns += end - start
        self._copied_since_mark += end - start

    def take_optimizers_since(self, start: int) -> int:
        """Takes out the optimizer steps inside a backward that began at `start`; their nanoseconds."""
        inside = 0
        while self.optimizers and self.optimizers[-1].start >= start:
            step = self.optimizers.pop()
            inside += step.end - step.start
            self.optimizer_ns -= step.own_ns
            self.group_end = step.group_end
        return inside

    def backward(self, start: int, end: int, optimizer_ns: int) -> None:
        """Notes a backward, `optimizer_ns` of which were optimizer steps inside it."""
        backs = self._backs
        while backs and backs[-1].start >= start:
            inner = backs.pop()
            self.backward_ns -= inner.own_ns
            self.forward_ns -= inner.forward_ns
            self.mark = inner.mark
            self.backwards -= 1
            if self.forwards:
                self.forwards.pop()
        mark = self.mark
        forward = max(0, start - mark - self._copied_since_mark) if mark else 0
        own = end - start - optimizer_ns
        if len(backs) < _MAX_SPANS:
            backs.append(_Backward(start, end, own, forward, mark))
            self.forwards.append((mark or start, start))
        if not self.backwards:
            self.first_backward = start
        self.backwards += 1
        self.forward_ns += forward
        self.backward_ns += own
        if optimizer_ns:
            self.optimizer_ns += optimizer_ns
            self.sealed += 1
            self.end_group(end)
        self.mark = end
        self._copied_since_mark = 0

    def optimizer(self, start: int, end: int) -> None:
        """Notes an optimizer step."""
        inner = 0
        group_end = self.group_end
        while self.optimizers and self.optimizers[-1].start >= start:
            step = self.optimizers.pop()
            self.optimizer_ns -= step.own_ns
            inner += step.inner_ns
            group_end = step.group_end
        backs = self._backs
        while backs and backs[-1].start >= start:
            closure = backs.pop()
            inner += closure.end - max(start, min(closure.mark, closure.start))
        backs.clear()
        own = max(0, end - start - inner)
        if len(self.optimizers) >= _MAX_SPANS:
            del self.optimizers[: _MAX_SPANS // 2]
        self.optimizers.append(_Optimizer(start, end, own, inner, group_end))
        self.optimizer_ns += own
        self.end_group(end)
        self.mark = end
        self._copied_since_mark = 0


SILENCE_NS: Final = 1_000_000_000
_UNTRAINED_NS: Final = 10_000_000_000
_FOLD_LIMIT: Final = 64
_NEXT_MODE_RUN: Final = 20
_INFERENCE_RUN: Final = 5
_STEPS_UNTIL_BELIEVED: Final = 8

_MAX_PHASES: Final = 1024
_MAX_WAIT_CPU: Final = 256
_MOST_SAMPLES: Final = 1 << 40  # of a step; a number beyond 64 bits would cost others their part of a recording
_CONTIGUOUS_NS: Final = 5_000_000

_MAX_STEPS = 1024
_MAX_WAITS = 16_384
_MAX_EARLY = 256


class Mode(Enum):
    """What ends a step."""

    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    NEXT = "next"
    USER = "user"


class StepMachine:
    """Derives steps, waits and evaluations of one training thread. Samples go to `out`."""

    def __init__(self, trainer: str, out: list[Sample], places: Mapping[int, Place], mode: Mode) -> None:
        self.mode = mode
        self.thread: int | None = None  # the one that runs backward
        self.loaders = Loaders()
        self.compute = Compute()
        self.optimizer_known = False  # the facts name an optimizer
        self._trainer = trainer
        self._out = out
        self._evaluations = Evaluations(trainer, out, places)
        self.writer = StepWriter(trainer, out, self._evaluations)
        self._progress = 0  # backwards, optimizer steps and user steps so far
        self._last_read: IteratorState | None = None
        self._last_start = 0
        self._optimizer_in_backward = False
        self._usual_groups = 1
        self._trained = False  # a step has ended
        self._next_loader: int | None = None
        self._is_inference = False  # nothing has trained so far
        self._over_ns = 0  # when a pass over a loader ended that nothing has followed yet, 0: none
        self._is_outside = False  # and that this was emitted
        self._is_pass_over = False  # the training's own: behind an evaluation in its midst the loop goes on

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
        if iterator.trains or iterator.loader.role == "train":
            self._is_pass_over = kind == STOP
        if kind == STOP and self._trained and self._is_pass_over:
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
        if kind == BATCH and self._infers(iterator, end):
            self._is_inference = True
            self._adopt_next_mode(iterator)
        elif iterator.span == "open":
            emit_waits(self._out, self._trainer, iterator, "eval")
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
        self._evaluations.emit(start, end, inside)
        self.writer.phase(start, end)

    def _end_outside(self, start: int) -> None:
        """Something of the loop follows the end of a pass: what was called outside ended there."""
        if self._is_outside:
            self._out.append(PhaseSpan(self._trainer, "outside", self._over_ns, start))
            self.writer.phase(self._over_ns, start)
        self._over_ns, self._is_outside = 0, False

    # ---- boundaries

    def _close(self, end: int, samples: int | None = None) -> None:
        compute = self.compute
        self._usual_groups = max(1, compute.groups)
        self._trained = True
        late = compute.close() if compute.group_end and self.mode is not Mode.USER else None
        self.writer.write(end, compute, samples)
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

    def _infers(self, iterator: IteratorState, now_ns: int) -> bool:
        """Whether a loop over a loader is all that this process does: inference, whose steps are its batches."""
        if iterator.loader.loader == self._next_loader or iterator.run < _INFERENCE_RUN:
            return False
        if self._is_inference:
            return self.mode is Mode.NEXT  # over its next loader
        is_untrained = not (self._trained or self._progress or self.optimizer_known)
        return is_untrained and self.mode is not Mode.USER and now_ns - iterator.first_start > _UNTRAINED_NS

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
        self.mode, self._is_inference = Mode.OPTIMIZER, False
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


class StepWriter:
    """Collects what belongs to the step that is going on, and writes it to `out` when it ends."""

    def __init__(self, trainer: str, out: list[Sample], evaluations: Evaluations) -> None:
        self.number = 1  # of the step that is going on
        self.index = 0  # as `number`, but steps that are not given count as well
        self.start = 0  # 0: the step's beginning was not seen
        self.sees_begin: bool | None = None  # the first record of all began an epoch, so the first step is whole
        self.read: list[IteratorState] = []
        self.steps_without_loader = 0
        self.copies_seen = False
        self.gaps: GapLedger | None = None
        self.wait_cpu: dict[int, int] = {}  # start of a wait -> sampled CPU nanoseconds
        self._trainer = trainer
        self._out = out
        self._evaluations = evaluations
        self._phases: list[Span] = []
        self._data_spans: list[Span] = []
        self._data_ns = 0
        self._wait_ns = 0
        self._primary: IteratorState | None = None

    @property
    def fed(self) -> bool:
        """Whether any loader ever fed the training."""
        return self._primary is not None

    def phase(self, start: int, end: int) -> None:
        """Takes time that is not training."""
        if len(self._phases) >= _MAX_PHASES:
            self._phases = united(self._phases)[-_MAX_PHASES // 2 :]
        self._phases.append((start, end))

    def user_wait(self, start: int, end: int) -> None:
        """Takes a wait that the script names itself; reads inside it are already counted."""
        inside = sum(e - s for i in self.read for s, e, _, _ in i.entries if s >= start)
        self._data_ns += max(0, end - start - inside)
        if len(self._data_spans) < _MAX_PHASES:
            self._data_spans.append((start, end))
        if not inside:
            self._out.append(BatchWait(self._trainer, None, "train", start, end))

    def sampled_wait_cpu(self, next_start: int, cpu_ns: int) -> None:
        """Takes the sampled CPU time of the wait that began at `next_start`."""
        if len(self.wait_cpu) >= _MAX_WAIT_CPU:
            self.wait_cpu.clear()
        self.wait_cpu[next_start] = cpu_ns

    def forget(self) -> None:
        """Leaves the step that is going on ungiven: part of it was lost."""
        for iterator in self.read:
            if iterator.span == "open":
                self._evaluations.close(iterator, iterator.last_end)
        self._next_step()
        self._phases.clear()
        self.start = 0
        self.sees_begin = False

    def write(self, end: int, compute: Compute, samples: int | None = None) -> None:
        """Ends the step at `end`; `samples` is the count that the script itself gave."""
        read = self.read
        if read and not (len(read) == 1 and read[0].trains):
            judge(read, self.index, self.steps_without_loader)
        waits: list[Span] = []
        batch_starts: list[int] = []
        if read:
            waits, batch_starts = self._settle_reads(compute.first_backward or end)
        else:
            self.steps_without_loader += 1
        start = self.start
        if start and end > start:
            self._emit(start, end, waits, compute, samples)
            if self.gaps is not None:
                gap = self.gaps.step(self.number, batch_starts)
                if gap is not None:
                    self._out.append(gap)
            self.number += 1
        elif self._primary is not None:
            self._primary.loader.consume(compute.backwards)
        self.start = end
        if self._phases:
            self._phases = [span for span in self._phases if span[1] > end]
        self._next_step()

    def _next_step(self) -> None:
        self.read = []
        self.index += 1
        self._wait_ns = 0
        if self._data_spans:
            self._data_spans = []
            self._data_ns = 0

    def _settle_reads(self, evaluation_end: int) -> tuple[list[Span], list[int]]:
        """Gives the step's reads out as waits or evaluations; the training's waits, and where batches began."""
        waits: list[Span] = []
        batch_starts: list[int] = []
        best: IteratorState | None = None
        index = self.index
        for iterator in self.read:
            loader = iterator.loader
            if iterator.trains or (not iterator.batches and loader.fed_lately(index)):
                self._evaluations.retract(iterator)
                if not self.start and self.sees_begin and iterator.began:
                    self.start = iterator.first_start
                self._wait_ns += iterator.wait_ns
                for start, end, _, kind in iterator.entries:
                    waits.append((start, end))
                    if kind == BATCH:
                        batch_starts.append(start)
                emit_waits(self._out, self._trainer, iterator, "train")
                loader.wait_ns += iterator.wait_ns
                loader.fill(iterator)
                if iterator.batches:
                    loader.fed(index)
                    loader.longest_run = max(loader.longest_run, iterator.longest_run)
                    if best is None or loader.wait_ns > best.loader.wait_ns:
                        best = iterator
            elif iterator.batches:
                loader.eval_runs += 1
                iterator.queue.clear()
                self.phase(*self._evaluations.close(iterator, evaluation_end))
        if best is not None:
            self._primary = best
            self.steps_without_loader = -1
            for iterator in self.read:
                if iterator.loader is not best.loader:
                    iterator.loader.queue.clear()  # siblings: the samples of one loader are the step's
        self.steps_without_loader += 1
        return waits, batch_starts

    def _emit(self, start: int, end: int, waits: list[Span], compute: Compute, samples: int | None) -> None:
        primary = self._primary
        wait_ns: int | None = self._wait_ns + self._data_ns
        batches, position, loader = 1, None, None
        if primary is not None and (primary.loader.queue or primary.loader.fed_lately(self.index)):
            loader = primary.loader.loader
            batches, counted, position = primary.loader.consume(compute.backwards)
            samples = counted if samples is None else samples
        elif not self._wait_ns and not self._data_spans:
            wait_ns = None
        if samples is not None and samples > _MOST_SAMPLES:
            samples = None
        phase_ns, forward_phase_ns = self._phase_ns(start, end, waits, compute) if self._phases else (0, 0)
        has_backward = compute.backwards > 0
        has_forward = has_backward and wait_ns is not None
        cpu_ns = [self.wait_cpu.pop(s) for s, _ in waits if s in self.wait_cpu] if self.wait_cpu else []
        self._out.append(
            StepEnd(
                trainer=self._trainer,
                number=self.number,
                start_ns=start,
                end_ns=end,
                wait_seconds=None if wait_ns is None else wait_ns / 1e9,
                loader=loader,
                samples=samples,
                epoch_position=position,
                batches=batches,
                phase_seconds=phase_ns / 1e9,
                copy_seconds=compute.copy_ns / 1e9 if self.copies_seen else None,
                forward_seconds=max(0, compute.forward_ns - forward_phase_ns) / 1e9 if has_forward else None,
                backward_seconds=max(0, compute.backward_ns) / 1e9 if has_backward else None,
                optimizer_seconds=compute.optimizer_ns / 1e9 if compute.groups else None,
                wait_cpu_seconds=sum(cpu_ns) / 1e9 if cpu_ns and len(cpu_ns) == len(waits) else None,
            )
        )

    def _phase_ns(self, start: int, end: int, waits: list[Span], compute: Compute) -> tuple[int, int]:
        """Phase time of the step outside its waits, and the part of it inside forwards.

        A collection in the middle of `next()` stays part of the wait, so that waits and phases add up.
        """
        busy = united(clipped(self._phases, start, end))
        if not busy:
            return 0, 0
        busy = without(busy, united([*waits, *self._data_spans]))
        forwards = united(compute.forwards)
        return total_ns(busy), total_ns(busy) - total_ns(without(busy, forwards))


def emit_waits(out: list[Sample], trainer: str, iterator: IteratorState, role: Role) -> None:
    """Gives the iterator's waits of this step; the workers' start belongs to the first batch's wait."""
    loader = iterator.loader.loader
    begun: Span | None = None
    for start, end, position, kind in iterator.entries:
        if kind == START:
            begun = (start, end)
        elif kind == BATCH:
            if begun is not None:
                if start - begun[1] <= _CONTIGUOUS_NS:
                    start = begun[0]
                else:
                    out.append(BatchWait(trainer, loader, role, begun[0], begun[1], position, "start"))
                begun = None
            out.append(BatchWait(trainer, loader, role, start, end, position))
        else:
            out.append(BatchWait(trainer, loader, role, start, end, position, "end"))
    iterator.entries.clear()


class Evaluations:
    """Writes the evaluation spans of one trainer."""

    def __init__(self, trainer: str, out: list[Sample], places: Mapping[int, Place]) -> None:
        self._trainer = trainer
        self._out = out
        self._places = places

    def open(self, iterator: IteratorState) -> None:
        """Says that an evaluation is going on."""
        iterator.span = "open"
        self.emit(iterator.first_start, None, [iterator])
        emit_waits(self._out, self._trainer, iterator, "eval")

    def close(self, iterator: IteratorState, fallback_end: int) -> Span:
        """Says that an evaluation is over, and when it was.

        The end is StopIteration, or what the training thread read next; without either the last batch's
        computation is taken to last as long as those before it, at most until `fallback_end`.
        """
        start = iterator.first_start
        if iterator.finished:
            end = iterator.last_end
        elif iterator.next_start:
            end = iterator.next_start
        else:
            between = iterator.last_end - start - iterator.wait_ns
            mean = between // (iterator.batches - 1) if iterator.batches > 1 else 0
            end = min(iterator.last_end + max(0, mean), max(fallback_end, iterator.last_end))
        if iterator.span != "done":
            self.emit(iterator.first_start, end, [iterator])
            emit_waits(self._out, self._trainer, iterator, "eval")
            iterator.span = "done"
        return start, end

    def retract(self, iterator: IteratorState) -> None:
        """Takes an open evaluation back: what was read fed the training after all."""
        if iterator.span == "open":
            self.emit(iterator.first_start, iterator.first_start, [iterator])
            iterator.span = "no"

    def emit(self, start: int, end: int | None, inside: Sequence[IteratorState]) -> None:
        """Gives an evaluation with what was read in it: by one iterator, or within bounds that the script named."""
        file, line = self._places.get(inside[0].loader.loader, (None, None)) if inside else (None, None)
        self._out.append(
            PhaseSpan(
                self._trainer,
                "eval",
                start,
                end,
                loader=inside[0].loader.loader if inside else None,
                batches=sum(i.batches for i in inside) if inside else None,
                wait_seconds=sum(i.wait_ns for i in inside) / 1e9 if inside else None,
                file=file,
                line=line,
            )
        )


class GapLedger:
    """Adds up the idle time of a step's waits and gives it once all of them were measured.

    The sum of only some of a step's waits would understate the idle time, so it is never given.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._steps: OrderedDict[int, list[int]] = OrderedDict()  # number -> [waits to come, nanoseconds, *starts]
        self._step_of: dict[int, int] = {}  # start of a wait -> number
        self._early: OrderedDict[int, int] = OrderedDict()  # start of a wait -> nanoseconds

    def step(self, number: int, starts: Iterable[int]) -> GpuGap | None:
        """Registers a finished step by the starts of its waits."""
        waits = list(starts)
        idle = 0
        missing = []
        for start in waits:
            early = self._early.pop(start, None) if self._early else None
            if early is None:
                missing.append(start)
            else:
                idle += early
        if not missing:
            return GpuGap(self._trainer, number, idle / 1e9) if waits else None
        self._steps[number] = [len(missing), idle, *missing]
        for start in missing:
            self._step_of[start] = number
        while len(self._steps) > _MAX_STEPS or (len(self._steps) > 1 and len(self._step_of) > _MAX_WAITS):
            _, (_, _, *stale) = self._steps.popitem(last=False)
            for start in stale:
                self._step_of.pop(start, None)
        return None

    def gap(self, start: int, idle_ns: int) -> GpuGap | None:
        """Takes one measured idle time; the step's sum, if this was its last."""
        number = self._step_of.pop(start, None)
        if number is None:
            self._early[start] = idle_ns
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)
            return None
        entry = self._steps[number]
        entry[0] -= 1
        entry[1] += idle_ns
        if entry[0]:
            return None
        del self._steps[number]
        return GpuGap(self._trainer, number, entry[1] / 1e9)
