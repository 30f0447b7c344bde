"""A trainer's phases: what lasts now, what there was, what it adds up to; its stops and its recompilations."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, takewhile
from statistics import median

from gpuwatch.samples import PhaseKind, PhaseSpan
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.times import Span, covered_ns
from gpuwatch.timeline.windows import PhaseTotals, Recompiles

_KEPT_PER_KIND = 1_024
_MOST_OPEN = 256
_RHYTHM_OF = 32  # the newest spans tell how often they come

PAUSES: frozenset[PhaseKind] = frozenset({"warmup", "eval", "checkpoint", "compile", "stopped"})
"""Kinds during which a GPU sample does not speak of training.

Not "gc": pauses of milliseconds, many a second, would with a sensor window each leave no sample. Not "user": it may
well enclose the steps themselves.
"""

LOST_TIME: frozenset[PhaseKind] = PAUSES | {"gc"}
"""Kinds that are taken off the steps."""

OUTSIDE: frozenset[PhaseKind] = frozenset({"outside"})
"""No training loop runs; nothing of it is taken off steps, for there are none."""

STOPPED: frozenset[PhaseKind] = frozenset({"stopped"})
"""By a signal, as /proc shows it: a step that goes on does not show when that ended."""

STOPPED_STATES = frozenset({"T", "t"})
_STOPS_KEPT = 64
_CYCLES_OF, _CYCLES_FROM, _CYCLES_NS, _OVERDUE_TIMES = 8, 3, 900 * SECOND_NS, 1.5

_RECOMPILES_NS = 600 * SECOND_NS
COMPILE: frozenset[PhaseKind] = frozenset({"compile"})
EVALUATION: frozenset[PhaseKind] = frozenset({"eval"})
"""The first one compiles each graph for its own mode, whenever it comes."""


class PhaseLog:
    """The phases of one trainer, bounded per kind, so that collections cannot push out evaluations."""

    __slots__ = ("_closed", "_open", "_taken_back")

    def __init__(self) -> None:
        self._open: dict[tuple[PhaseKind, int], PhaseSpan] = {}
        self._closed: dict[PhaseKind, deque[tuple[PhaseSpan, int]]] = {}
        self._taken_back: set[tuple[PhaseKind, int]] = set()

    def add(self, span: PhaseSpan, steps_done: int) -> bool:
        """Opens or closes a phase. One that ends as it began is taken back: it was training after all.

        False where it is the end of one that the log has dropped.
        """
        key = (span.kind, span.start_ns)
        if span.end_ns is None:
            self._open[key] = span
            if len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]
            return True
        if key in self._taken_back:
            self._taken_back.discard(key)
            return False
        self._open.pop(key, None)
        closed = self._closed.setdefault(span.kind, deque(maxlen=_KEPT_PER_KIND))
        newer = takewhile(lambda known: known[0].start_ns >= span.start_ns, reversed(closed))
        is_known = any((known.start_ns, known.end_ns) == (span.start_ns, span.end_ns) for known, _ in newer)
        if span.end_ns > span.start_ns and not is_known:
            closed.append((span, steps_done))
        return True

    def step(self, start_ns: int) -> None:
        """A whole step that began later shows that the end of a phase was lost on the way."""
        for key in [key for key in self._open if key[0] in (LOST_TIME | OUTSIDE) - STOPPED and key[1] < start_ns]:
            del self._open[key]

    def close_all(self) -> None:
        """The trainer is gone."""
        self._open.clear()

    def take_back(self, since_ns: int) -> None:
        """Forgets all but stops that began since then, and the ends of what is open that may still come."""
        self._taken_back = {key for key in self._open if key[0] not in STOPPED and key[1] >= since_ns}
        self._open = {key: span for key, span in self._open.items() if key not in self._taken_back}
        for kind in self._closed.keys() - STOPPED:
            kept = [entry for entry in self._closed[kind] if entry[0].start_ns < since_ns]
            self._closed[kind] = deque(kept, maxlen=_KEPT_PER_KIND)

    def current(self) -> PhaseSpan | None:
        """The pause that lasts now: the one that began last."""
        pauses = [span for span in self._open.values() if span.kind in PAUSES]
        return max(pauses, key=lambda span: span.start_ns, default=None)

    def is_open(self, kinds: Collection[PhaseKind]) -> bool:
        """Whether one of these kinds lasts now."""
        return any(kind in kinds for kind, _ in self._open)

    def last(self, kinds: Collection[PhaseKind]) -> PhaseSpan | None:
        """The newest of these kinds, open or closed."""
        newest = [closed[-1][0] for kind, closed in self._closed.items() if kind in kinds and closed]
        newest += [span for span in self._open.values() if span.kind in kinds]
        return max(newest, key=lambda span: span.start_ns, default=None)

    def spans(self, start_ns: int) -> Iterator[PhaseSpan]:
        """All that end after `start_ns` or still last."""
        for closed in self._closed.values():
            for span, _ in reversed(closed):
                if span.end_ns is not None and span.end_ns <= start_ns:
                    break
                yield span
        yield from self._open.values()

    def stretches(self, kinds: Collection[PhaseKind], start_ns: int, now_ns: int) -> list[Span]:
        """The same of some kinds as (start, end); what still lasts ends now."""
        return [
            (span.start_ns, now_ns if span.end_ns is None else span.end_ns)
            for span in self.spans(start_ns)
            if span.kind in kinds
        ]

    def newest(self, start_ns: int, end_ns: int, most: int) -> tuple[tuple[str, int, int], ...]:
        """The newest ones of a stretch, in order, as (kind, start, end); what still lasts ends with the stretch."""
        found = [
            (span.kind, span.start_ns, min(end_ns, span.end_ns or end_ns))
            for span in self.spans(start_ns)
            if span.start_ns < end_ns
        ]
        return tuple(sorted(found, key=lambda one: one[1])[-most:])

    def totals(self, start_ns: int, end_ns: int) -> dict[str, PhaseTotals]:
        """What each kind of pause took of a stretch; a span that reaches over its edge counts by its part inside."""
        by_kind: dict[PhaseKind, list[PhaseSpan]] = {}
        for span in self.spans(start_ns):
            if span.start_ns < end_ns and span.kind not in OUTSIDE:
                by_kind.setdefault(span.kind, []).append(span)
        stops = self.stretches(STOPPED, start_ns, end_ns)
        return {
            kind: self._total(kind, found, start_ns, end_ns, () if kind in STOPPED else stops)
            for kind, found in sorted(by_kind.items())
        }

    def cycles(self, kind: PhaseKind, end_ns: int) -> PhaseTotals | None:
        """The newest ones of a kind, from the start of the first to that of the last: whole cycles only.

        A window of a minute holds all of an evaluation that comes every two minutes, or none. None before three of them
        within 15 min, and where one is long overdue.
        """
        spans = [span for span, _ in self._closed.get(kind, ())][-_CYCLES_OF:]
        known = [(span.start_ns, span.end_ns or 0) for span in spans if span.start_ns > end_ns - _CYCLES_NS]
        if len(known) < _CYCLES_FROM:
            return None
        longest_ns = max(after - end for (_, end), (after, _) in pairwise(known))
        if end_ns - known[-1][1] > _OVERDUE_TIMES * longest_ns and not self.is_open({kind}):
            return None
        start_ns, last_ns = known[0][0], known[-1][0]
        found = [span for span in spans if start_ns <= span.start_ns < last_ns]
        return self._total(kind, found, start_ns, last_ns, self.stretches(STOPPED, start_ns, last_ns))

    def _total(
        self, kind: PhaseKind, found: list[PhaseSpan], start_ns: int, end_ns: int, stops: Sequence[Span]
    ) -> PhaseTotals:
        def less_stops(first_ns: int, last_ns: int) -> float:
            return max(0, last_ns - first_ns - covered_ns(stops, first_ns, last_ns)) / SECOND_NS

        newest = max(found, key=lambda span: span.start_ns)
        lengths = [less_stops(span.start_ns, span.end_ns or end_ns) for span in found]
        inside = [less_stops(max(span.start_ns, start_ns), min(span.end_ns or end_ns, end_ns)) for span in found]
        shares = [part / length if length > 0 else 0.0 for part, length in zip(inside, lengths, strict=True)]
        batches = _weighted([span.batches for span in found], shares)
        size = _weighted([span.bytes for span in found], shares)
        recent = list(self._closed.get(kind, ()))[-_RHYTHM_OF:]
        return PhaseTotals(
            kind=kind,
            count=len(found),
            seconds=sum(inside),
            share=sum(inside) * SECOND_NS / (end_ns - start_ns),
            longest_seconds=max(lengths),
            wait_seconds=_weighted([span.wait_seconds for span in found], shares),
            batches=None if batches is None else round(batches),
            bytes=None if size is None else round(size),
            every_steps=_rhythm([steps for _, steps in recent]),
            every_seconds=_rhythm([span.start_ns / SECOND_NS for span, _ in recent]),
            loader=newest.loader,
            file=newest.file,
            line=newest.line,
        )


def _weighted(amounts: list[int | None] | list[float | None], shares: list[float]) -> float | None:
    known = [amount * share for amount, share in zip(amounts, shares, strict=True) if amount is not None]
    return sum(known) if known else None


def _rhythm(positions: list[int] | list[float]) -> float | None:
    return median(after - before for before, after in pairwise(positions)) if len(positions) > 1 else None


class StopLog:
    """The stops of one trainer. Their edges are known to a second; the step that holds one tells the rest."""

    __slots__ = ("_done", "_first_ns", "_last_ns", "_over_ns")

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last_ns = 0
        self._over_ns = 0
        self._done: deque[tuple[int, int]] = deque(maxlen=_STOPS_KEPT)

    @property
    def since_ns(self) -> int | None:
        """When the stop that lasts was seen first."""
        return self._first_ns

    def see(self, time_ns: int, state: str | None) -> tuple[int, int | None] | None:
        """Takes one look at the process; the start and the end (if it is over) of a stop that begins or ends here."""
        if state in STOPPED_STATES:
            if time_ns <= self._over_ns:
                return None
            self._last_ns = time_ns
            if self._first_ns is None:
                self._first_ns = time_ns
                return time_ns, None
            return None
        # It went on somewhere between two samples.
        return self.close((self._last_ns + time_ns) // 2)

    def close(self, end_ns: int) -> tuple[int, int | None] | None:
        """Ends the stop that lasts, if one does."""
        if self._first_ns is None:
            return None
        start_ns, self._first_ns = self._first_ns, None
        self._over_ns = max(end_ns, self._last_ns)
        self._done.append((start_ns, self._last_ns))
        return start_ns, max(end_ns, start_ns + 1)

    def within(self, start_ns: int, end_ns: int) -> bool:
        """Whether a stop was seen between two moments: a stopped process ends nothing, so it lies in there whole."""
        if self._first_ns is not None and start_ns <= self._first_ns < end_ns:
            return True
        return any(start_ns <= first and last <= end_ns for first, last in self._done)


def recompiles(phases: PhaseLog, hundredth_ns: int | None, now_ns: int) -> Recompiles | None:
    """Those of the last 10 min; None before the run's 100th step, at `hundredth_ns`."""
    if hundredth_ns is None or now_ns <= hundredth_ns:
        return None
    since_ns = max(now_ns - _RECOMPILES_NS, hundredth_ns)
    evaluations = phases.stretches(EVALUATION, since_ns, now_ns)
    spans = [
        (start, end)
        for start, end in phases.stretches(COMPILE, since_ns, now_ns)
        if not any(first <= start < last for first, last in evaluations)
    ]
    seconds = sum(end - max(start, since_ns) for start, end in spans) / SECOND_NS
    over = (now_ns - since_ns) / SECOND_NS
    return Recompiles(len(spans), seconds, seconds / over, over)
