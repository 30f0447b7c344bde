"""Words about what stacks show: the line that costs most, where a run stands, how sure a share is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.wording import window_of
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.samples import Standing
from gpuwatch.timeline.hot_line import hot_line
from gpuwatch.timeline.windows import LineShare, RankWindow

AVOIDABLE = ("sync", "log", "copy")
"""What the training thread does besides waiting that a change of one line can take away."""


@dataclass(frozen=True, slots=True)
class CostlyLine:
    """A line, and what its share is of: the training thread's time, or the workers' busy time."""

    line: LineShare
    of: str


def costly_line(rank: RankWindow, notable: float) -> CostlyLine | None:
    """The line that makes the batches slow where waits cost; else one that asks, logs or copies as much."""
    stacks = rank.stacks
    if stacks is None:
        return None
    if rank.wait_share is not None and rank.wait_share >= notable:
        found = hot_line(rank)
        if found is None:
            return None
        return CostlyLine(found.line, "of the workers' time" if found.where == "workers" else "of the time")
    avoidable = (line for line in stacks.lines if line.phase in AVOIDABLE and line.share.value >= notable)
    top = max(avoidable, key=lambda line: line.samples, default=None)
    return CostlyLine(top, "of the time") if top is not None else None


def standing_of(run: RunNow, snapshot: Snapshot) -> Standing | None:
    """Where the run's training thread stands, as far as stacks are read."""
    if run.standing is not None:
        return run.standing
    window = window_of(run, snapshot)
    return window.critical.stacks.standing if window is not None and window.critical.stacks is not None else None


def standing_words(standing: Standing) -> str:
    """Where and for how long: "stands at train.py:140 for 3 min", in which no look saw it elsewhere."""
    return f"stands at {place(standing.file, standing.line)} for {say.age(standing.time_ns - standing.since_ns)}"


def line_place(line: LineShare) -> str:
    """Its file's name and number."""
    return place(line.file, line.line)


def place(file: str, line: int) -> str:
    """A file's name and a line: "train.py:88"."""
    return f"{say.escape(PurePath(file).name)}:{line}"
