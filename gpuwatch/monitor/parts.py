"""What a monitor is put together with, as far as there is a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.timeline.wall_times import Anchor
from gpuwatch.timeline.windows import Scene


@dataclass(frozen=True, slots=True)
class Lead:
    """What a monitor lives through before it is looked at: no snapshots until its end, no evaluation before its time.

    Attributes:
        until_ns: the moment of the first snapshot.
        evaluate_from_ns: of the first evaluation; those after it follow at the usual distance.
        wall_anchors: what the clock on the wall showed in all of the time that it knows of.
    """

    until_ns: int
    evaluate_from_ns: int
    wall_anchors: tuple[Anchor, ...] = ()


class Judge(Protocol):
    """What evaluates scenes: the diagnosis engine."""

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        """The findings as they stand after this scene."""


class Focus(Protocol):
    """What a monitor looks at, where that can be chosen."""

    @property
    def attached_pid(self) -> int | None:
        """The root of the process tree that is looked at; None where everything is."""

    def attach(self, pid: int | None) -> None:
        """Narrows it to one tree; None widens it again."""

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""
