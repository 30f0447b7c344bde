"""Arithmetic on stretches of time, given as (start_ns, end_ns)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def united(spans: Iterable[Span]) -> list[Span]:
    """The same time as stretches in order that do not touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clipped(spans: Iterable[Span], start_ns: int, end_ns: int) -> list[Span]:
    """What of the stretches lies between two moments."""
    return [(max(start, start_ns), min(end, end_ns)) for start, end in spans if end > start_ns and start < end_ns]


def without(spans: Iterable[Span], holes: Sequence[Span]) -> list[Span]:
    """What of the stretches lies in none of the holes; both in order and united."""
    left: list[Span] = []
    for start, end in spans:
        for hole_start, hole_end in holes:
            if hole_end <= start or hole_start >= end:
                continue
            if hole_start > start:
                left.append((start, hole_start))
            start = hole_end
        if start < end:
            left.append((start, end))
    return left


def total_ns(spans: Iterable[Span]) -> int:
    """The length of stretches that do not overlap."""
    return sum(end - start for start, end in spans)


def covered_ns(spans: Iterable[Span], start_ns: int, end_ns: int) -> int:
    """How much of the time between two moments the stretches cover together."""
    return total_ns(united(clipped(spans, start_ns, end_ns)))


def outside(times: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """The places of the times, in order, that lie within none of the stretches, in order and united."""
    places = []
    span = 0
    for place, time_ns in enumerate(times):
        while span < len(spans) and spans[span][1] <= time_ns:
            span += 1
        if span == len(spans) or time_ns <= spans[span][0]:
            places.append(place)
    return places
