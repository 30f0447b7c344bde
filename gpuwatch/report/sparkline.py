"""A series as one line of blocks over a fixed range, so that a steady 94 % looks like a full bar."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], top: float, *, bottom: float = 0.0) -> str:
    """One character per value between `bottom` and `top`; a blank where nothing was measured."""
    span = top - bottom
    if span <= 0:
        return ""
    return "".join(" " if value is None else _block((value - bottom) / span) for value in values)


def _block(share: float) -> str:
    return _BLOCKS[max(0, min(len(_BLOCKS) - 1, int(share * len(_BLOCKS))))]
