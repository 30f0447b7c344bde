"""Stretches of evaluation and saving, from the looks that stood in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from gpuwatch.samples.run import PhaseSpan
from gpuwatch.sources.stacks.looks import Look

_KINDS: Final[dict[str, Literal["eval", "checkpoint"]]] = {"eval": "eval", "save": "checkpoint"}
_GAP_LOOKS: Final = 2


@dataclass(slots=True)
class _Open:
    span: PhaseSpan
    looks: int
    waits: int
    last_ns: int
    after_ns: int | None = None  # the first look outside of it since
    outside: int = 0
    batches: int = 0
    iterator: int | None = None
    yielded: int = 0

    def count(self, look: Look, from_its_start: bool = True) -> None:
        """Adds the batches since the last look that was counted."""
        if look.iterator is None:
            return
        if look.iterator == self.iterator and look.yielded >= self.yielded:
            self.batches += look.yielded - self.yielded
        elif from_its_start:
            self.batches += look.yielded
        self.iterator, self.yielded = look.iterator, look.yielded


class Spans:
    """Opens a span at the midpoint before the first look in it, closes it at the midpoint after the last.

    One look outside does not end it: a torn or odd stack would cut an evaluation in two.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._open: _Open | None = None
        self._previous_ns: int | None = None

    def see(self, look: Look) -> Iterator[PhaseSpan]:
        """Takes the next look; gives what opens or closes by it."""
        kind = _KINDS.get(look.phase)
        current = self._open
        if current is not None and kind == current.span.kind and _same_loader(current.span, look):
            self._extend(current, look)
        elif current is not None and kind is None and current.outside + 1 < _GAP_LOOKS:
            current.outside += 1
            current.after_ns = current.after_ns or look.time_ns
        else:
            if current is not None:
                yield self._close(current, current.after_ns or look.time_ns)
            if kind is not None:
                yield self._begin(kind, look)
        self._previous_ns = look.time_ns

    def end(self, now_ns: int) -> Iterator[PhaseSpan]:
        """Closes what is open, when nothing more will be seen."""
        if self._open is not None:
            yield self._close(self._open, max(now_ns, self._open.last_ns))

    def _begin(self, kind: Literal["eval", "checkpoint"], look: Look) -> PhaseSpan:
        before = self._previous_ns if self._previous_ns is not None else look.time_ns
        site, culprit = look.site, look.reading.culprit
        file, line = (culprit.file, culprit.line) if culprit is not None else (None, None)
        loader = None
        if kind == "eval" and site is not None and site.role == "eval":
            file, line, loader = site.code[0], site.line, site.number
        span = PhaseSpan(self._trainer, kind, (before + look.time_ns) // 2, None, loader=loader, file=file, line=line)
        self._open = _Open(span, 1, int(look.reading.waits), look.time_ns)
        if loader is not None:
            self._open.count(look, from_its_start=self._previous_ns is not None)
        return span

    def _extend(self, current: _Open, look: Look) -> None:
        current.looks += 1
        current.waits += look.reading.waits
        current.last_ns, current.after_ns, current.outside = look.time_ns, None, 0
        site = look.site
        if site is None or site.role != "eval":
            return
        if current.span.loader is None and current.span.kind == "eval":
            current.span = replace(current.span, loader=site.number, file=site.code[0], line=site.line)
        current.count(look)

    def _close(self, current: _Open, after_ns: int) -> PhaseSpan:
        self._open = None
        end_ns = max((current.last_ns + after_ns) // 2, current.span.start_ns + 1)
        if current.span.kind != "eval":
            return replace(current.span, end_ns=end_ns)
        seconds = (end_ns - current.span.start_ns) / 1e9
        counted = current.span.loader is not None
        return replace(
            current.span,
            end_ns=end_ns,
            batches=current.batches if counted else None,
            wait_seconds=seconds * current.waits / current.looks if counted else None,
        )


def _same_loader(span: PhaseSpan, look: Look) -> bool:
    number = look.site.number if look.site is not None and look.site.role == "eval" else None
    return None in (number, span.loader) or number == span.loader
