"""A loop written down as the hook's raw records, in the order and with the nesting the hook gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuwatch.hook import wire
from gpuwatch.samples import PhaseSpan, Sample, StepEnd
from gpuwatch.sources.hook_link.run import RunDerivation

MS = 1_000_000
SECOND = 1_000_000_000
TRAINER = "100.2000"


class RecordStream:
    """Writes records while its clock goes on. Durations are milliseconds."""

    def __init__(self, now_ns: int = 1000 * SECOND, thread: int = 100) -> None:
        self.now_ns = now_ns
        self.thread = thread
        self.records: list[wire.Record] = []

    def work(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * MS)

    def add(self, kind: int, milliseconds: float = 0, *, a: int = 0, b: int = 0, ident: int = 0, flags: int = 0) -> int:
        """One record; its start."""
        start = self.now_ns
        self.work(milliseconds)
        self.records.append((kind, flags, ident, self.thread, start, self.now_ns, a, b))
        return start

    @contextmanager
    def around(self, kind: int, *, a: int = 0, b: int = 0, ident: int = 0, flags: int = 0) -> Iterator[None]:
        """A record that contains what is written inside it and, as in the hook, comes after it."""
        start = self.now_ns
        yield
        self.records.append((kind, flags, ident, self.thread, start, self.now_ns, a, b))

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        usual, self.thread = self.thread, thread
        yield
        self.thread = usual

    def iter(self, loader: int = 0, iterator: int = 0, milliseconds: float = 0, workers: int = 0) -> None:
        self.add(wire.ITER, milliseconds, a=iterator, b=workers, ident=loader)

    def next(
        self,
        loader: int = 0,
        iterator: int = 0,
        milliseconds: float = 4,
        samples: int = 8,
        grad: bool = True,
    ) -> int:
        flags = wire.GRAD if grad else 0
        return self.add(wire.NEXT, milliseconds, a=iterator, b=samples, ident=loader, flags=flags)

    def stop(self, loader: int = 0, iterator: int = 0, milliseconds: float = 0.1) -> None:
        self.add(wire.NEXT, milliseconds, a=iterator, b=-1, ident=loader, flags=wire.STOPPED)

    def backward(self, milliseconds: float = 3) -> None:
        self.add(wire.BACKWARD, milliseconds)

    def optimizer(self, milliseconds: float = 1, ident: int = 0) -> None:
        self.add(wire.OPTIMIZER, milliseconds, ident=ident)

    def step(self, loader: int = 0, iterator: int = 0, wait: float = 4) -> None:
        """A plain step: 4 ms wait, 2 ms forward, 3 ms backward, 1 ms optimizer."""
        self.next(loader, iterator, wait)
        self.work(2)
        self.backward()
        self.optimizer()

    def evaluate(
        self,
        loader: int = 1,
        iterator: int = 100,
        batches: int = 5,
        wait: float = 4,
        compute: float = 2,
        exhausted: bool = True,
        grad: bool = False,
    ) -> float:
        """An evaluation; its seconds."""
        begun = self.now_ns
        self.iter(loader, iterator)
        for _ in range(batches):
            self.next(loader, iterator, wait, grad=grad)
            self.work(compute)
        if exhausted:
            self.stop(loader, iterator)
        return (self.now_ns - begun) / SECOND

    def packets(self, size: int = 7) -> Iterator[list[wire.Record]]:
        """The records in packets, so that no test depends on where a packet ends."""
        for index in range(0, len(self.records), size):
            yield self.records[index : index + size]


def derive(stream: RecordStream, derivation: RunDerivation | None = None, packet: int = 7) -> list[Sample]:
    """All samples of a run that made these records and then ended."""
    derivation = derivation or RunDerivation(TRAINER)
    samples: list[Sample] = []
    for records in stream.packets(packet):
        samples += derivation.feed(records, stream.now_ns)
    return samples + derivation.finish(stream.now_ns)


def steps_of(samples: list[Sample]) -> list[StepEnd]:
    return [sample for sample in samples if isinstance(sample, StepEnd)]


def phases_of(samples: list[Sample], kind: str) -> list[PhaseSpan]:
    """The phases of one kind as they were in the end: open ones replaced by their closing twins."""
    last = {sample.start_ns: sample for sample in samples if isinstance(sample, PhaseSpan) and sample.kind == kind}
    return [span for span in last.values() if span.end_ns != span.start_ns]


def waits_ms(steps: list[StepEnd]) -> list[float]:
    assert all(step.wait_seconds is not None for step in steps)
    return [round((step.wait_seconds or 0) * 1e3, 3) for step in steps]


def periods_ms(steps: list[StepEnd]) -> list[float]:
    return [(step.end_ns - step.start_ns) / MS for step in steps]
