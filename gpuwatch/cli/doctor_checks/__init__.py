"""What the doctor checks: the GPUs, the runs, and the machine that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class State(str, Enum):
    """The state of a part of the machine. A word, not only a colour, says it on every output."""

    OK = "ok"
    WARNING = "warning"
    """Works, and less is measured than could be, or the training is held back."""
    PROBLEM = "problem"
    """A part of gpuwatch, or the training itself, cannot work."""
    UNKNOWN = "unknown"
    """Could not be checked."""


Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: a sentence on its state, and the cure where it falls short."""

    name: str
    state: State
    sentence: str
    cure: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    rows: tuple[tuple[str, ...], ...] = ()  # a small table below the sentence, its head first
