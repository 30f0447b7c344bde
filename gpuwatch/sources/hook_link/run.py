"""One trainer's raw records to samples: dispatch by kind, the training thread, checkpoints, and what ends a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from gpuwatch.hook import wire
from gpuwatch.samples import BatchWait, GpuGap, PhaseSpan, Role, RunMemory, Sample, StepEnd
from gpuwatch.sources.hook_link.facts import Place
from gpuwatch.sources.hook_link.iterators import BATCH, START, STOP
from gpuwatch.sources.hook_link.steps import SILENCE_NS, GapLedger, Mode, StepMachine

GC_SPAN_NS: Final = 1_000_000
"""Shorter collections are not given at all: the young generations take microseconds."""
GC_PHASE_NS: Final = 50_000_000
"""Shorter collections stay in the step's time: they are part of how this program runs, not a stop."""

_EARLY_KEPT: Final = 4096
_BACKWARDS: Final = 16
_BACKWARDS_DESPITE_OPTIMIZER: Final = 64
_WITHOUT_READS: Final = 4

_MAX_THREADS: Final = 64
_MOVED_AFTER: Final = 8
_OPTIMIZERS_WITHOUT_BACKWARD: Final = 3

_ADJACENT_NS: Final = 1_000_000_000
_MAX_SAVES: Final = 256


class RunDerivation:
    """Turns the records of one trainer into samples; holds no clock, file or socket.

    Records come in the order of their ends. A record that no clock can have made (an end before its start, or
    a second after `now_ns`, which may be a little old, or a start before `born_ns`, when its process began) is counted
    in `malformed` and left out.
    """

    def __init__(self, trainer: str, born_ns: int = 0) -> None:
        self.trainer = trainer
        self._born_ns = born_ns
        self.malformed = 0
        self.received = 0
        self.phase_names: tuple[str, ...] = ()
        self.places: dict[int, Place] = {}
        self.last_end_ns = 0
        self._out: list[Sample] = []
        self._gaps: GapLedger | None = None
        self._optimizer_known = False
        self._machine = self._new_machine(Mode.OPTIMIZER)
        self._checkpoints = Checkpoints(trainer)
        self._allocator = Allocator(trainer)
        self._threads = TrainingThread()
        self._early: EarlyRecords | None = EarlyRecords()
        self._quiet_since_ns = 0
        self._handlers = {
            wire.NEXT: self._next,
            wire.ITER: self._iter,
            wire.BACKWARD: self._backward,
            wire.OPTIMIZER: self._optimizer,
            wire.SAVE: self._save,
            wire.GC: self._gc,
            wire.GAP: self._gap,
            wire.USER_STEP: self._user_step,
            wire.USER_PHASE: self._user_phase,
            wire.COPY: self._copy,
            wire.WAIT_CPU: self._wait_cpu,
            wire.MEMORY: self._memory_peaks,
            wire.RETRIES: self._memory_retries,
            wire.COMPILE: self._compile,
            wire.BEGUN: self._begun,
        }

    def learn(
        self,
        *,
        phase_names: tuple[str, ...],
        save_places: tuple[Place, ...] = (),
        optimizer: bool,
        gaps: bool,
        memory_total_bytes: int | None,
    ) -> None:
        """Takes what the trainer's facts say about its records."""
        self.phase_names = phase_names
        self._checkpoints.places = save_places
        self._allocator.total_bytes = memory_total_bytes
        self._optimizer_known = self._machine.optimizer_known = optimizer
        if gaps:
            self._measure_gaps()

    def feed(self, records: Iterable[wire.Record], now_ns: int) -> list[Sample]:
        """Takes one packet's records; the samples they complete."""
        handlers = self._handlers
        early = self._early
        last = 0
        count = 0
        born, latest = self._born_ns, now_ns + SILENCE_NS
        for record in records:
            kind, flags, ident, thread, start, end, a, b = record
            count += 1
            if end < start or end > latest or start < born:
                self.malformed += 1
                continue
            if end > last:
                last = end
            handler = handlers.get(kind)
            if handler is None:
                continue
            if early is not None:
                early.records.append(record)
                handler(flags, ident, thread, start, end, a, b)
                early = self._early
            else:
                handler(flags, ident, thread, start, end, a, b)
        self.received += count
        self.last_end_ns = max(self.last_end_ns, last)
        self._quiet_since_ns = now_ns
        # Packets that had to wait (this process was stopped) are judged by their own time, not by now.
        self._settle(last)
        return self._take()

    def check(self, now_ns: int) -> list[Sample]:
        """The samples that silence completes: no packet came for a second."""
        if now_ns - self._quiet_since_ns >= SILENCE_NS:
            self._quiet_since_ns = now_ns
            self._settle(now_ns)
        return self._take()

    def due_ns(self) -> int | None:
        """When `check` may find something although no record came."""
        if self._checkpoints.end or self._machine.unsettled():
            return self._quiet_since_ns + SILENCE_NS
        return None

    def lose(self) -> None:
        """Takes note of lost records: no step spans them."""
        self._machine.lose()
        self._checkpoints.lose()
        self._early = None if self._early is None else EarlyRecords()

    def finish(self, now_ns: int) -> list[Sample]:
        """The last samples of a trainer that ended."""
        self._machine.finish(now_ns)
        self._checkpoints.lose()
        self._flush_checkpoint()
        return self._take()

    def roles(self) -> dict[int, Role]:
        """The loaders that were iterated, and what for: one that a thread reads feeds a training that reads none."""
        machine = self._machine
        return {
            loader: "train" if state.background and state.role == "unknown" and machine.reads_no_loader else state.role
            for loader, state in machine.loaders.loaders.items()
        }

    def notes(self) -> tuple[str, ...]:
        """What the reader of this run must know about its figures."""
        if not self._machine.reads_no_loader:
            return ()
        if any(state.background for state in self._machine.loaders.loaders.values()):
            return (
                "the DataLoader is read by a background thread, so the training's wait for it is not seen; "
                "wrap what the loop iterates: for batch in gpuwatch.loader(iterator)",
            )
        return (
            "the training reads no DataLoader, so its wait for data is not seen; "
            "wrap what the loop iterates: for batch in gpuwatch.loader(iterator)",
        )

    def _next(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        machine = self._machine
        if thread != machine.thread and machine.thread is not None:
            machine.loaders.loader(ident).background = True
            return
        if self._checkpoints.end:
            self._flush_checkpoint(start)
        if self._early is not None and self._falls_back(reads=True):
            return
        iterator = machine.loaders.iterator(ident, a, thread)
        iterator.thread = thread
        kind = STOP if flags & (wire.STOPPED | wire.RAISED) else BATCH
        machine.read(kind, start, end, iterator, b, bool(flags & wire.GRAD))

    def _iter(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        machine = self._machine
        if thread != machine.thread and machine.thread is not None:
            return
        if self._checkpoints.end:
            self._flush_checkpoint(start)
        machine.read(START, start, end, machine.loaders.begin(ident, a, thread), b, True)

    def _backward(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        if flags & wire.RAISED or (thread != self._machine.thread and not self._follow(thread)):
            return
        self._threads.stays()
        if self._checkpoints.end:
            self._flush_checkpoint(start)
        if self._early is not None and self._falls_back(reads=False):
            return
        self._machine.backward(start, end)

    def _optimizer(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        if flags & wire.RAISED:
            return
        machine = self._machine
        belongs, settles = self._threads.optimizer(machine.thread, thread)
        if not belongs:
            return
        if settles:
            machine.train_on(thread)
        if self._checkpoints.end:
            self._flush_checkpoint(start)
        self._early = None
        machine.optimizer(start, end)

    def _user_step(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._early = None
        if self._machine.thread is None:
            self._machine.train_on(thread)
        self._machine.user_step(end, a)

    def _user_phase(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        name = self._phase_name(ident)
        if self._machine.thread not in (None, thread):
            return
        if name == "data":
            self._machine.user_wait(start, end)
        elif name == "eval":
            self._machine.user_evaluation(start, end)
        elif name == "checkpoint":
            self._save(flags, 0, thread, start, end, -1, 0)
        else:
            self._out.append(PhaseSpan(self.trainer, "user", start, end, detail=name))

    def _copy(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        if thread == self._machine.thread:
            self._machine.writer.copies_seen = True
            self._machine.compute.copy(start, end)

    def _save(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        if self._machine.thread not in (None, thread):
            return  # a checkpoint written in the background stops nothing
        self._machine.writer.phase(start, end)
        done = self._checkpoints.save(start, end, a, raised=bool(flags & wire.RAISED), place=ident)
        if done is not None:
            self._out.append(done)

    def _begun(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        """Opens the pause that a record of kind `a` will close."""
        if self._machine.thread not in (None, thread):
            return
        name = self._phase_name(ident) if a == wire.USER_PHASE else ""
        if a == wire.SAVE or name == "checkpoint":
            opened = self._checkpoints.begin(start, ident if a == wire.SAVE else 0)
            if opened is not None:
                self._out.append(opened)
        elif a == wire.COMPILE:
            self._out.append(PhaseSpan(self.trainer, "compile", start, None))
        elif name == "eval":
            self._out.append(PhaseSpan(self.trainer, "eval", start, None))

    def _gc(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        if end - start >= GC_SPAN_NS:
            self._out.append(PhaseSpan(self.trainer, "gc", start, end, detail=f"generation {a}"))
        if end - start >= GC_PHASE_NS:
            self._machine.writer.phase(start, end)

    def _compile(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._out.append(PhaseSpan(self.trainer, "compile", start, end))
        if self._machine.thread in (None, thread):
            self._machine.writer.phase(start, end)

    def _gap(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        gap = self._measure_gaps().gap(a, max(0, b))
        if gap is not None:
            self._out.append(gap)

    def _wait_cpu(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._machine.writer.sampled_wait_cpu(a, max(0, b))

    def _memory_peaks(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._out.append(self._allocator.update(end, allocated_peak_bytes=a, reserved_peak_bytes=b))

    def _memory_retries(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._out.append(self._allocator.update(end, alloc_retries=a, out_of_memory=b))

    def _settle(self, time_ns: int) -> None:
        self._machine.check(time_ns)
        if self._checkpoints.end and time_ns - self._checkpoints.end > SILENCE_NS:
            self._flush_checkpoint()

    def _take(self) -> list[Sample]:
        out = self._out[:]
        self._out.clear()
        return out

    def _flush_checkpoint(self, before: int | None = None) -> None:
        span = self._checkpoints.flush(before)
        if span is not None:
            self._out.append(span)

    def _phase_name(self, ident: int) -> str:
        return self.phase_names[ident] if ident < len(self.phase_names) else ""

    def _measure_gaps(self) -> GapLedger:
        if self._gaps is None:
            self._gaps = self._machine.writer.gaps = GapLedger(self.trainer)
        return self._gaps

    def _follow(self, thread: int) -> bool:
        """Whether the training is on this thread from now on."""
        machine = self._machine
        if not self._threads.moves(machine.thread, thread):
            return False
        if machine.thread is not None:
            machine.lose()
        machine.train_on(thread)
        return True

    def _falls_back(self, *, reads: bool) -> bool:
        """Turns to steps that end with the backward, if no optimizer will come; derives the records again."""
        early = self._early
        backwards = self._machine.compute.backwards
        if early is None or not early.show_no_optimizer(backwards, optimizer_known=self._optimizer_known, reads=reads):
            return False
        self._early = None
        self._machine.retract_open()
        checkpoints, self._checkpoints = self._checkpoints, Checkpoints(self.trainer)
        self._machine = self._new_machine(Mode.BACKWARD)
        given = len(self._out)
        for kind, flags, ident, thread, start, end, a, b in early.records:
            self._handlers[kind](flags, ident, thread, start, end, a, b)
        self._out[given:] = only_new(self._out[given:])
        self._checkpoints = checkpoints
        return True

    def _new_machine(self, mode: Mode) -> StepMachine:
        machine = StepMachine(self.trainer, self._out, self.places, mode)
        machine.optimizer_known = self._optimizer_known
        machine.writer.gaps = self._gaps
        return machine


class EarlyRecords:
    """What came before it was known what ends a step."""

    def __init__(self) -> None:
        self.records: deque[wire.Record] = deque(maxlen=_EARLY_KEPT)

    def show_no_optimizer(self, backwards: int, *, optimizer_known: bool, reads: bool) -> bool:
        """Whether enough backward passes went by to expect no optimizer.

        An optimizer that the script has built is waited for longer, and a loop that reads no loader longer still:
        nothing tells its backwards of one batch from those of several.
        """
        limit = _BACKWARDS_DESPITE_OPTIMIZER if optimizer_known else _BACKWARDS
        return backwards >= (limit if reads else _WITHOUT_READS * limit)


def only_new(samples: Iterable[Sample]) -> list[Sample]:
    """Of samples derived a second time, those that the first time could not give."""
    return [
        sample
        for sample in samples
        if isinstance(sample, (StepEnd, GpuGap))
        or (isinstance(sample, BatchWait) and sample.loader is not None)
        or (isinstance(sample, PhaseSpan) and sample.kind == "eval")
    ]


class TrainingThread:
    """Settles on a thread, and follows when the training moves.

    The optimizer alone settles nothing at first: where it runs inside the backward, it may run on a thread of the
    autograd engine.
    """

    def __init__(self) -> None:
        self.optimizers = 0
        self._run_backward: set[int] = set()
        self._elsewhere = 0

    def stays(self) -> None:
        """Notes a backward on the training thread."""
        self._elsewhere = 0

    def moves(self, current: int | None, thread: int) -> bool:
        """Whether a backward on another thread makes that one the training thread."""
        if len(self._run_backward) < _MAX_THREADS:
            self._run_backward.add(thread)
        if current is not None and current in self._run_backward:
            self._elsewhere += 1
            if self._elsewhere < _MOVED_AFTER:
                return False
        self._elsewhere = 0
        return True

    def optimizer(self, current: int | None, thread: int) -> tuple[bool, bool]:
        """Whether an optimizer step belongs to the training, and whether it settles the training thread."""
        if thread == current:
            self.optimizers += 1
            return True, False
        if thread in self._run_backward:
            return False, False
        self.optimizers += 1
        return True, current is None and self.optimizers > _OPTIMIZERS_WITHOUT_BACKWARD


class Checkpoints:
    """Merges saves that contain each other, or follow within a second with no training in between."""

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._start = 0
        self.end = 0  # of the one that waits for the next event to be complete, 0: none
        self._parts: list[tuple[int, int]] = []  # (start, bytes) of the saves merged so far
        self._raised = False
        self.places: tuple[Place, ...] = ()  # of the lines that save, as the facts number them from 1
        self._place = 0
        self._begun = 0  # of the outermost save that is not known to have ended, 0: none

    def begin(self, start: int, place: int = 0) -> PhaseSpan | None:
        """Takes the beginning of a save; the open span, unless a checkpoint is open that this one belongs to."""
        if self._begun or (self.end and start - self.end <= _ADJACENT_NS):
            self._begun = self._begun or start
            return None
        self._begun = start
        file, line = self._line(place)
        return PhaseSpan(self._trainer, "checkpoint", start, None, file=file, line=line)

    def save(self, start: int, end: int, size: int, *, raised: bool = False, place: int = 0) -> PhaseSpan | None:
        """Takes one save; an earlier checkpoint that this one does not belong to."""
        if start <= self._begun:
            self._begun = 0
        done = self.flush() if self.end and start - self.end > _ADJACENT_NS else None
        parts = self._parts
        if size >= 0:
            while parts and parts[-1][0] >= start:
                parts.pop()
            parts.append((start, size))
            if len(parts) > _MAX_SAVES:
                parts[:] = [(parts[0][0], sum(part for _, part in parts))]
        self._start = min(self._start, start) if self.end else start
        self.end = max(self.end, end)
        self._raised |= raised
        self._place = place or self._place
        return done

    def flush(self, before: int | None = None) -> PhaseSpan | None:
        """The checkpoint, if there is one and it ended before `before`."""
        if before is not None and before > self._begun:
            self._begun = 0  # the thread trains on: the record of that save's end was lost
        if not self.end or self._begun or (before is not None and before < self.end):
            return None
        file, line = self._line(self._place)
        span = PhaseSpan(
            self._trainer,
            "checkpoint",
            self._start,
            self.end,
            bytes=sum(size for _, size in self._parts) if self._parts else None,
            file=file,
            line=line,
            detail="raised" if self._raised else "",
        )
        self._start = self.end = 0
        self._parts = []
        self._raised = False
        self._place = 0
        return span

    def lose(self) -> None:
        """Forgets the save that has begun: the record of its end may be lost."""
        self._begun = 0

    def _line(self, place: int) -> Place:
        return self.places[place - 1] if 0 < place <= len(self.places) else (None, None)


class Allocator:
    """Keeps the newest of both; -1 is unknown."""

    def __init__(self, trainer: str) -> None:
        self.total_bytes: int | None = None
        self._newest = RunMemory(trainer, 0)

    def update(self, time_ns: int, **figures: int) -> RunMemory:
        """Takes peaks of allocated and reserved bytes, or counts of retried and failed allocations."""
        known: dict[str, Any] = {name: figure if figure >= 0 else None for name, figure in figures.items()}
        self._newest = replace(self._newest, time_ns=time_ns, total_bytes=self.total_bytes, **known)
        return self._newest
