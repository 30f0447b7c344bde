"""What a report is made of: everything that was seen, frozen at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwatch.edits.source import process_started
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.report.stretches import Stood, Stretch
from gpuwatch.samples import RunFacts
from gpuwatch.timeline.series import Chart
from gpuwatch.timeline.windows import Scene

Json = dict[str, Any]
"""A JSON object; gpuwatch/report/schema.json says what is in it."""


def started_here(facts: RunFacts) -> float | None:
    """When a process of this machine started."""
    return process_started(facts.start_ticks)


@dataclass(frozen=True, slots=True)
class Observation:
    """One session. `scene` covers all of it, `snapshot` holds the findings of its last evaluation.

    `charts` are the short ones of every report, `curves` those of a page with charts: up to 1 500 points each.
    """

    snapshot: Snapshot
    scene: Scene
    charts: tuple[Chart, ...] = ()
    curves: tuple[Chart, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    read_source: Callable[[Path, float | None, RunFacts | None], bytes] | None = None
    """Reads the user's file for a diff; None where files named by the samples are not this machine's."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By rule: why the user's settings leave it out."""
    process_started: Callable[[RunFacts], float | None] = started_here
    """When a process of the samples started, as wall time: a source file changed since is not what ran."""
    hostname: str = ""
    """Of a recording that does not hold the machine's facts."""
    problems: tuple[str, ...] = ()
    """What is missing of a recording, and how the rest was put together."""
    stood: Mapping[tuple[str, str | None, str | None], Stood] = field(default_factory=dict)
    """By rule, run and GPU: how long findings stood, where the report is of a long recording."""
    judged: frozenset[str] = frozenset()
    """Runs that were judged while they were recorded, of which `scene` holds figures and no steps."""
    zero: int | None = None
    """What curves count their seconds from, where that is not the beginning: that of a recording."""

    @property
    def clock_jump_seconds(self) -> float:
        """By how much the clock on the wall went ahead of the time that passed; about 0 where it was not set."""
        start_ns, end_ns = self.snapshot.started_ns, self.snapshot.time_ns
        return self.snapshot.wall_time_at(end_ns) - self.snapshot.wall_time_at(start_ns) - (end_ns - start_ns) / 1e9

    @property
    def zero_ns(self) -> int:
        """The moment 0 of all curves."""
        return self.snapshot.started_ns if self.zero is None else self.zero


def figure(value: float | None) -> float | int | None:
    """A number with six significant digits; None for NaN and infinity, which JSON does not know."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
