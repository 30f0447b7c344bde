"""One trainer's raw records to samples: dispatch by kind, and the choice of what ends a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuwatch.samples import PhaseSpan, Role, Sample
from gpuwatch.sources.hook_link import wire
from gpuwatch.sources.hook_link.derive.allocator import Allocator
from gpuwatch.sources.hook_link.derive.checkpoints import Checkpoints, Place
from gpuwatch.sources.hook_link.derive.early import EarlyRecords, only_new
from gpuwatch.sources.hook_link.derive.gaps import GapLedger
from gpuwatch.sources.hook_link.derive.iterators import BATCH, START, STOP
from gpuwatch.sources.hook_link.derive.notes import notes_of
from gpuwatch.sources.hook_link.derive.steps import SILENCE_NS, Mode, StepMachine
from gpuwatch.sources.hook_link.derive.threads import TrainingThread

GC_SPAN_NS: Final = 1_000_000
"""Shorter collections are not given at all: the young generations take microseconds."""
GC_PHASE_NS: Final = 50_000_000
"""Shorter collections stay in the step's time: they are part of how this program runs, not a stop."""


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

    def feed(self, records: Iterable[wire.RawRecord], now_ns: int) -> list[Sample]:
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
        return notes_of(self._machine)

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
        kind = STOP if flags & (wire.STOP | wire.RAISED) else BATCH
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
        self._out.append(self._allocator.peaks(end, a, b))

    def _memory_retries(self, flags: int, ident: int, thread: int, start: int, end: int, a: int, b: int) -> None:
        self._out.append(self._allocator.retries(end, a, b))

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
