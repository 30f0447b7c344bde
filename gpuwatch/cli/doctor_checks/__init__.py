"""What the doctor checks: the GPUs, the runs, and the machine that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class State(str, Enum):
    """How a part of the machine stands. A word, not only a colour, says it on every output."""

    OK = "ok"
    WARNING = "warning"
    """Works, and less is measured than could be, or the training is held back."""
    PROBLEM = "problem"
    """A part of gpuwatch, or the training itself, cannot work."""
    UNKNOWN = "unknown"
    """Could not be looked at."""


Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: a sentence on how it stands, and what to do where it falls short."""

    name: str
    state: State
    sentence: str
    cure: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    rows: tuple[tuple[str, ...], ...] = ()  # a small table below the sentence, its head first
