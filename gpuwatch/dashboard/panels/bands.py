"""The row under the charts that says when a run trained, evaluated, saved or did something else."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from gpuwatch.dashboard.history import Grid
from gpuwatch.dashboard.themes import Look
from gpuwatch.samples import PhaseSpan

_WORDS = {"checkpoint": "save", "warmup": "warm-up"}


def phase_runs(
    phases: Sequence[PhaseSpan],
    grid: Grid,
    cells: int,
    now_ns: int,
    look: Look,
    steps: Sequence[float | None],
) -> list[tuple[str, Style]]:
    """The band as stretches of text and style, `cells` wide in all; each stretch says its kind where it fits.

    Args:
        phases: What was not training.
        grid: The chart's time.
        cells: The chart's width.
        now_ns: Where a phase that lasts ends for now.
        look: How it is written.
        steps: A series of the run's steps on the grid: where it has no value, the run is not said to have trained.
    """
    per_cell = grid.count / max(1, cells)
    kinds = [
        "train" if any(value is not None for value in steps[int(cell * per_cell) : int((cell + 1) * per_cell)]) else ""
        for cell in range(cells)
    ]
    for phase in phases:
        first = int(grid.index_of(phase.start_ns) / per_cell)
        last = int(grid.index_of(phase.end_ns if phase.end_ns is not None else now_ns) / per_cell)
        for cell in range(max(0, first), min(cells - 1, last) + 1):
            kinds[cell] = phase.kind
    stretches: list[tuple[str, Style]] = []
    start = 0
    for cell in range(1, cells + 1):
        if cell == cells or kinds[cell] != kinds[start]:
            stretches.append(_stretch(kinds[start], cell - start, look))
            start = cell
    return stretches


def _stretch(kind: str, cells: int, look: Look) -> tuple[str, Style]:
    if kind in ("train", ""):
        return (look.glyphs.training if kind else " ") * cells, look.faint
    fill = band_fill(kind, look)
    word = _WORDS.get(kind, kind)
    text = word.center(cells, fill) if len(word) <= cells else fill * cells
    return text, look.phase


def band_fill(kind: str, look: Look) -> str:
    """The character that stands for a kind of phase."""
    glyphs = look.glyphs
    return {"eval": glyphs.evaluating, "checkpoint": glyphs.saving}.get(kind, glyphs.other_phase)
