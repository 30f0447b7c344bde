"""Evaluations as phases: opened while they last, closed with their batches and their wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwatch.samples import BatchWait, PhaseSpan, Role, Sample
from gpuwatch.sources.hook_link.derive.iterators import BATCH, START, IteratorState
from gpuwatch.sources.hook_link.derive.spans import Span

Places = Mapping[int, tuple[str | None, int | None]]
"""Loader -> file and line that built it."""

_CONTIGUOUS_NS = 5_000_000


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

    def __init__(self, trainer: str, out: list[Sample], places: Places) -> None:
        self._trainer = trainer
        self._out = out
        self._places = places

    def open(self, iterator: IteratorState) -> None:
        """Says that an evaluation is going on."""
        iterator.span = "open"
        self._emit(iterator, None)
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
            self._emit(iterator, end)
            emit_waits(self._out, self._trainer, iterator, "eval")
            iterator.span = "done"
        return start, end

    def retract(self, iterator: IteratorState) -> None:
        """Takes an open evaluation back: what was read fed the training after all."""
        if iterator.span == "open":
            self._emit(iterator, iterator.first_start)
            iterator.span = "no"

    def during(self, iterator: IteratorState) -> None:
        """Notes another batch of an evaluation that is open or was closed."""
        emit_waits(self._out, self._trainer, iterator, "eval")

    def emit_named(self, start: int, end: int, inside: Sequence[IteratorState]) -> None:
        """Gives an evaluation whose bounds the script named, with what was read in it."""
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

    def _emit(self, iterator: IteratorState, end: int | None) -> None:
        loader = iterator.loader.loader
        file, line = self._places.get(loader, (None, None))
        self._out.append(
            PhaseSpan(
                self._trainer,
                "eval",
                iterator.first_start,
                end,
                loader=loader,
                batches=iterator.batches,
                wait_seconds=iterator.wait_ns / 1e9,
                file=file,
                line=line,
            )
        )
