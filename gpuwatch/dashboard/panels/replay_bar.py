"""The line of a replay: state, position, and where in the recording findings stood."""

from __future__ import annotations

from rich.style import Style

from gpuwatch.dashboard.recording import day_and_time, length
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.snapshot import ReplayMark, ReplayNow, Snapshot

_SHOWN = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
"""Hints stand most of the time, and would cover the bar."""

_STATE_CELLS = 13


def replay_bar(snapshot: Snapshot, replay: ReplayNow, width: int, look: Look) -> Line:
    """State and speed, the position, the bar, the length, the recorded wall time."""
    now_ns = replay.end_ns if replay.state == "ended" else snapshot.time_ns
    writer = LineWriter(width, look)
    start, end = bar_cells(replay, width)
    word, style = _state(replay, look)
    writer.put(f" {word} ", style).to(_STATE_CELLS, look.bar)
    at = length((now_ns - replay.start_ns) / 1e9)
    writer.to(start - 1 - len(at), look.bar).put(f"{at} ", look.bar_strong)
    for text, cell_style in _cells(replay, now_ns, end - start, look):
        writer.chart(text, cell_style)
    tail = f" {length(_seconds(replay))}{'+' if replay.is_growing else ''}"
    writer.put(tail, look.bar_dim)
    return writer.at_right(f"{day_and_time(snapshot.wall_time)} ", look.bar_strong, filler=look.bar).line(look.bar)


def bar_cells(replay: ReplayNow, width: int) -> tuple[int, int]:
    """The first column of the bar, and the one behind its last."""
    digits = len(length(_seconds(replay)))
    start = _STATE_CELLS + digits + 2
    return start, max(start + 4, width - digits - len(day_and_time(0.0)) - 5)


def moment_at(replay: ReplayNow, column: int, width: int) -> int | None:
    """The recorded moment under a click; None beside the bar."""
    start, end = bar_cells(replay, width)
    if not start <= column < end:
        return None
    return replay.start_ns + round((column - start + 0.5) / (end - start) * (replay.end_ns - replay.start_ns))


def _seconds(replay: ReplayNow) -> float:
    return (replay.end_ns - replay.start_ns) / 1e9


def _state(replay: ReplayNow, look: Look) -> tuple[str, Style]:
    speed = f"{replay.speed:g}x"
    if replay.state == "ended":
        return "END", look.simulated
    if replay.state == "paused":
        return f"PAUSED {speed}", look.simulated
    return f"PLAY {speed}", look.bar_accent


def _cells(replay: ReplayNow, now_ns: int, count: int, look: Look) -> list[tuple[str, Style]]:
    """One sign per cell: the position, the worst finding that stood in it, or the line."""
    worst = _worst(replay.marks, replay, count)
    here = min(count - 1, max(0, (now_ns - replay.start_ns) * count // max(1, replay.end_ns - replay.start_ns)))
    cells: list[tuple[str, Style]] = []
    for cell in range(count):
        severity = worst[cell]
        if cell == here:
            cells.append((look.glyphs.bar, look.bar_accent))
        elif severity is not None:
            on_bar = Style(color=look.severity(severity).color, bgcolor=look.bar.bgcolor)
            goes_on = cell > 0 and worst[cell - 1] is severity
            cells.append((look.glyphs.span if goes_on else look.glyphs.severity(severity), on_bar))
        else:
            cells.append((look.glyphs.rule, look.bar_accent if cell < here else look.bar_dim))
    return cells


def _worst(marks: tuple[ReplayMark, ...], replay: ReplayNow, count: int) -> list[Severity | None]:
    worst: list[Severity | None] = [None] * count
    length_ns = max(1, replay.end_ns - replay.start_ns)
    for mark in marks:
        if mark.severity not in _SHOWN:
            continue
        first = max(0, (mark.start_ns - replay.start_ns) * count // length_ns)
        last = min(count - 1, (mark.end_ns - replay.start_ns) * count // length_ns)
        for cell in range(first, last + 1):
            known = worst[cell]
            if known is None or mark.severity.order < known.order:
                worst[cell] = mark.severity
    return worst
