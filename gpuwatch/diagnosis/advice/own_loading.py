"""Loops that make their batches themselves, without any DataLoader: how much of the GPU's idle time that can explain.

While the training thread prepares a batch it launches nothing, so the GPU idles once its queue is empty. The smaller
of the two shares is the most that this can cost, as with a loader's wait. Where training computes on the CPU, doing
both at the same time takes idle cores: it wins no more of the time than their share.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE
from gpuwatch.diagnosis.advice.lines import HotLine, hottest, loading_line
from gpuwatch.diagnosis.advice.resources import allowed_cores, free_cores, used_cores
from gpuwatch.diagnosis.advice.sampled import enough, phase_samples, share_of, train_samples, trains_on
from gpuwatch.diagnosis.advice.starvation import Starvation, train_busy_percent
from gpuwatch.diagnosis.advice.workers import MARGIN
from gpuwatch.diagnosis.finding import Fix
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.numbers import percent
from gpuwatch.timeline.stacks import is_fed, making_threads
from gpuwatch.timeline.windows import LineShare, Share, StackWindow

PHASES = ("other", "copy")
MAKES_BATCHES = re.compile(
    r"(get|next|load|make|fetch|read|build|prepare|create|sample|draw)_?\w*(batch|data|example|chunk)|collate|"
    r"(batch|data)_?(gen|iter|load|feed)",
    re.IGNORECASE,
)
"""Names of functions that make batches: `get_batch`, `load_data`, `batch_iterator`; not `train_batch`."""

_Function = tuple[str, str]
"""Its file and its name."""


@dataclass(frozen=True, slots=True)
class OwnLoading:
    """The function that makes the batches: its share of the training time, its top line, and the idle time.

    `busy_percent` is the GPU's utilization, None where the CPU computes; `idle_share` that of the GPU's time, or of the
    cores that the run uses or could use.
    """

    function: str
    made: Share
    line: HotLine
    busy_percent: float | None
    idle_share: float

    @property
    def share(self) -> float:
        """The most that it can cost."""
        return min(self.made.value, self.idle_share)


def own_loading(case: RunCase) -> OwnLoading | None:
    """The figure, where the run has no loader and the idle time of its GPU or its cores is known."""
    rank, device = case.run.critical, trains_on(case)
    stacks = enough(rank)
    if stacks is None or rank.train_loader is not None or phase_samples(stacks, "wait"):
        return None
    busy = train_busy_percent(case) if device == "cuda" else None
    idle = 1.0 - busy / 100.0 if busy is not None else _idle_cores_share(case) if device == "cpu" else None
    if idle is None:
        return None
    found = [_samples_in(stacks, function) for function in _functions(stacks)]
    if not found:
        return None
    count, function, line = max(found, key=lambda each: each[0])
    if line is None:
        return None
    return OwnLoading(function, share_of(count, train_samples(stacks)), line, busy, idle)


def _idle_cores_share(case: RunCase) -> float | None:
    """Of the cores that the run uses or could use; where its own use is not known, of all that are used."""
    free, used, machine = free_cores(case), used_cores(case), case.machine
    if free is None or machine is None:
        return None
    reach = free + (used if used is not None else machine.cpu_count - free)
    return free / reach if reach > 0.0 else None


def thread_fix(case: RunCase, starvation: Starvation) -> Fix | None:
    """What to do where a thread of the training process makes the batches, and no DataLoader's settings change that.

    This many workers make a batch in the time that the training computes on one.
    """
    rank = case.run.critical
    stacks, loader, line = rank.stacks, rank.train_loader, loading_line(rank)
    if stacks is None or not is_fed(stacks) or line is None or (loader is not None and loader.num_workers is not None):
        return None
    busy = making_threads(stacks)
    needed = math.ceil(MARGIN * busy / (1.0 - min(starvation.share, HIGHEST_SHARE)))
    count = max(1, min(needed, math.floor(allowed_cores(case))))
    pinned = ", pin_memory=True" if starvation.on_gpu else ""
    return Fix(
        text=(
            f"Let {count} worker process{'es' if count > 1 else ''} make them: move the thread's work into a "
            "Dataset that a DataLoader with workers reads. The thread is busy "
            f"{percent(min(busy, 1.0))} of the time, and it shares the interpreter with the training: while one of "
            "them runs Python, the other waits"
        ),
        code=f"DataLoader(dataset, batch_size=None, num_workers={count}{pinned})",
        file=line.file,
        line=line.line,
        value=count,
    )


def _functions(stacks: StackWindow) -> set[_Function]:
    """Those that make batches, as their names say."""
    own = {(line.file, line.function) for line in stacks.lines if line.phase in PHASES}
    called = {callee for callee, _ in _calls(stacks)}
    return {each for each in own | called if MAKES_BATCHES.search(each[1].rpartition(".")[2])}


def _calls(stacks: StackWindow) -> list[tuple[_Function, LineShare]]:
    """What the loop's own Python calls, with the calls."""
    return [
        ((call.callee_file, call.callee), call)
        for call in stacks.calls
        if call.phase in PHASES and call.callee_file is not None and call.callee is not None
    ]


def _samples_in(stacks: StackWindow, function: _Function) -> tuple[int, str, HotLine | None]:
    """How many samples are in a function or what it calls, with its name and the line that stands out."""
    calls, inside, before = _calls(stacks), {function}, 0
    while len(inside) > before:
        before = len(inside)
        inside |= {callee for callee, call in calls if (call.file, call.function) in inside}
    lines = [line for line in stacks.lines if line.phase in PHASES and (line.file, line.function) in inside]
    entered = sum(call.samples for callee, call in calls if callee == function)
    count = max(entered, sum(line.samples for line in lines if (line.file, line.function) == function))
    within = [call for _, call in calls if (call.file, call.function) in inside]
    return count, function[1], hottest(lines, count, *PHASES, calls=within)
