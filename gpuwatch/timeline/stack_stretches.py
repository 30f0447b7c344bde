"""What the looks of a window saw one after the other: a share of the whole does not show whether something is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """The seconds of training in one tally, those of them that waited for a batch, and whether a look saw logging."""

    training_seconds: float
    waited_seconds: float
    logs: bool


def waits_of(stretches: Iterable[Stretch]) -> tuple[tuple[float, float], ...]:
    """Training and waiting, stretch by stretch; those without training tell nothing."""
    return tuple((each.training_seconds, each.waited_seconds) for each in stretches if each.training_seconds > 0.0)


def pauses_of_logging(stretches: Iterable[Stretch]) -> tuple[float | None, float | None]:
    """Seconds of training since the last look at logging, and the most that passed from one to the next.

    What a tally saw lies anywhere in its second: the first figure is the least, the second the most it can be.
    """
    quiet: float | None = None
    longest: float | None = None
    before = 0.0
    for each in stretches:
        if not each.logs:
            quiet = quiet if quiet is None else quiet + each.training_seconds
            continue
        if quiet is not None:
            longest = max(longest or 0.0, before + quiet + each.training_seconds)
        quiet, before = 0.0, each.training_seconds
    return quiet, longest
