"""Loops that make their batches themselves, without any DataLoader: how much of the GPU's idle time that can explain.

While the training thread prepares a batch it launches nothing, so the GPU idles once its queue is empty. The smaller
of the two shares is the most that this can cost, as with a loader's wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.lines import HotLine, hottest
from gpuwatch.diagnosis.advice.sampled import enough, phase_samples, share_of, train_samples, trains_on
from gpuwatch.diagnosis.advice.starvation import train_busy_percent
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import LineShare, Share

PHASES = ("other", "copy")
MAKES_BATCHES = re.compile(
    r"(get|next|load|make|fetch|read|build|prepare|create|sample|draw)_?\w*(batch|data|example|chunk)|collate|"
    r"(batch|data)_?(gen|iter|load|feed)",
    re.IGNORECASE,
)
"""Names of functions that make batches: `get_batch`, `load_data`, `batch_iterator`; not `train_batch`."""


@dataclass(frozen=True, slots=True)
class OwnLoading:
    """The function that makes the batches: its share of the training time, its top line, and the idle time."""

    function: str
    made: Share
    line: HotLine
    idle_share: float
    busy_percent: float

    @property
    def share(self) -> float:
        """The most that it can cost."""
        return min(self.made.value, self.idle_share)


def own_loading(case: RunCase) -> OwnLoading | None:
    """The figure, where the run has a GPU whose idle time is known, and no loader."""
    rank = case.run.critical
    stacks = enough(rank)
    if stacks is None or rank.train_loader is not None or trains_on(case) != "cuda" or phase_samples(stacks, "wait"):
        return None
    busy, found = train_busy_percent(case), _functions(stacks.lines)
    if busy is None or not found:
        return None
    lines = max(found, key=lambda group: sum(line.samples for line in group))
    count = sum(line.samples for line in lines)
    line = hottest(lines, count, *PHASES)
    if line is None:
        return None
    made = share_of(count, train_samples(stacks))
    return OwnLoading(lines[0].function, made, line, max(0.0, 1.0 - busy / 100.0), busy)


def _functions(lines: tuple[LineShare, ...]) -> list[list[LineShare]]:
    """The lines of each function that makes batches, as its name says."""
    found: dict[tuple[str, str], list[LineShare]] = {}
    for line in lines:
        if line.phase in PHASES and MAKES_BATCHES.search(line.function):
            found.setdefault((line.file, line.function), []).append(line)
    return list(found.values())
