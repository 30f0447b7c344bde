"""Where the time of a step goes, as one bar: waiting, copying, computing, optimizing, the rest."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.text import Line
from gpuwatch.dashboard.themes import Look
from gpuwatch.monitor.snapshot import RunNow

LEAST = 0.0005
"""A smaller share reads as 0.0 %."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the bar; `kind` names its colour."""

    kind: str
    label: str
    short: str
    share: float


def parts_of(run: RunNow) -> list[Part]:
    """The measured parts of training time, and what is left of it; empty where not even the wait is measured."""
    if run.wait_share is None:
        return []
    forward, backward = run.forward_share, run.backward_share
    parts = [Part("wait", "waits in next()", "wait", run.wait_share)]
    if run.start_share is not None:
        parts.append(Part("wait", "starts workers", "start", run.start_share))
    if run.copy_share is not None:
        parts.append(Part("copy", "copy", "copy", run.copy_share))
    if forward is not None or backward is not None:
        names = [name for name, known in (("forward", forward), ("backward", backward)) if known is not None]
        short = "fwd+bwd" if len(names) == 2 else names[0]
        parts.append(Part("compute", "+".join(names), short, (forward or 0.0) + (backward or 0.0)))
    if run.sync_share is not None:
        parts.append(Part("sync", "asks the device", "sync", run.sync_share))
    if run.optimizer_share is not None:
        parts.append(Part("optimizer", "optimizer", "opt", run.optimizer_share))
    rest = 1.0 - sum(part.share for part in parts)
    if rest > LEAST:
        split = any(part.kind == "compute" for part in parts)
        unsplit = Part("compute", "compute and other", "comp+other", rest)
        parts.append(Part("other", "other", "other", rest) if split else unsplit)
    return [part for part in parts if part.share >= LEAST]


def stacked_bar(parts: list[Part], width: int, look: Look) -> Line:
    """The bar, every part with the longest label that fits into it."""
    cells = _cells(parts, width)
    segments = []
    for index, (part, room) in enumerate(zip(parts, cells, strict=True)):
        if room:
            segments.append(Segment(_label(part, room, index > 0, look), look.fills[part.kind]))
    return tuple(segments)


def legend(parts: list[Part], width: int, look: Look) -> list[tuple[str, Style]]:
    """The parts in short words, each with its swatch, as many as fit."""
    out: list[tuple[str, Style]] = []
    used = 0
    for part in parts:
        text = f" {part.short} {say.share(part.share)}  "
        if used + 1 + len(text) > width:
            break
        out += [(look.glyphs.bar, getattr(look, part.kind)), (text, look.text)]
        used += 1 + len(text)
    return out


def _cells(parts: list[Part], width: int) -> list[int]:
    """Whole cells per part, together exactly `width`: the largest remainders get the cells that rounding left."""
    total = sum(part.share for part in parts) or 1.0
    exact = [part.share / total * width for part in parts]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: exact[index] - cells[index], reverse=True)
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells


def _label(part: Part, room: int, edged: bool, look: Look) -> str:
    edge = look.glyphs.edge if edged else ""
    inner = room - len(edge)
    amount = say.share(part.share)
    for text in (f" {part.label} {amount} ", f" {part.short} {amount} ", f"{amount}", ""):
        if len(text) <= inner:
            return (edge + text).ljust(room)
    return edge
