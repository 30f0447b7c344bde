"""Arithmetic on spans of time, as sorted lists of (start_ns, end_ns)."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, sorted; empty spans vanish."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """What of the spans lies in [start, end]."""
    return [(max(s, start), min(e, end)) for s, e in spans if s < end and e > start]


def subtract(spans: list[Span], holes: list[Span]) -> list[Span]:
    """What of `spans` lies outside `holes`; both as `union` returns them."""
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


def total(spans: Iterable[Span]) -> int:
    """The nanoseconds in spans that do not overlap."""
    return sum(end - start for start, end in spans)
