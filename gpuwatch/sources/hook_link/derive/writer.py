"""Writing one finished step: whose waits were whose, what was a phase, how long each part took."""

from __future__ import annotations

from typing import Final

from gpuwatch.samples import BatchWait, Sample, StepEnd
from gpuwatch.sources.hook_link.derive import spans
from gpuwatch.sources.hook_link.derive.compute import Compute
from gpuwatch.sources.hook_link.derive.evaluations import Evaluations, emit_waits
from gpuwatch.sources.hook_link.derive.gaps import GapLedger
from gpuwatch.sources.hook_link.derive.iterators import BATCH, IteratorState
from gpuwatch.sources.hook_link.derive.roles import judge

_MAX_PHASES: Final = 1024
_MAX_WAIT_CPU: Final = 256
_MOST_SAMPLES: Final = 1 << 40  # of a step; a number beyond 64 bits would cost others their part of a recording


class StepWriter:
    """Collects what belongs to the step that is going on, and writes it to `out` when it ends."""

    def __init__(self, trainer: str, out: list[Sample], evaluations: Evaluations, number: int) -> None:
        self.number = number  # of the step that is going on
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
        self._phases: list[spans.Span] = []
        self._data_spans: list[spans.Span] = []
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
            self._phases = spans.union(self._phases)[-_MAX_PHASES // 2 :]
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

    def write(self, end: int, compute: Compute, progress: int, samples: int | None = None) -> None:
        """Ends the step at `end`; `samples` is the count that the script itself gave."""
        read = self.read
        if read and not (len(read) == 1 and read[0].trains):
            judge(read, self.index, self.steps_without_loader, progress)
        waits: list[spans.Span] = []
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

    def _settle_reads(self, evaluation_end: int) -> tuple[list[spans.Span], list[int]]:
        """Gives the step's reads out as waits or evaluations; the training's waits, and where batches began."""
        waits: list[spans.Span] = []
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

    def _emit(self, start: int, end: int, waits: list[spans.Span], compute: Compute, samples: int | None) -> None:
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

    def _phase_ns(self, start: int, end: int, waits: list[spans.Span], compute: Compute) -> tuple[int, int]:
        """Phase time of the step outside its waits, and the part of it inside forwards.

        A collection in the middle of `next()` stays part of the wait, so that waits and phases add up.
        """
        busy = spans.union(spans.clip(self._phases, start, end))
        if not busy:
            return 0, 0
        busy = spans.subtract(busy, spans.union([*waits, *self._data_spans]))
        forwards = spans.union(compute.forwards)
        return spans.total(busy), spans.total(busy) - spans.total(spans.subtract(busy, forwards))
