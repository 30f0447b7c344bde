"""The line of the user's own code that makes the batches slow, as far as stacks say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuwatch.timeline.windows import LineShare, RankWindow

HotPlace = Literal["main thread while waiting", "workers"]


@dataclass(frozen=True, slots=True)
class HotLine:
    """The line and who runs it. Its share is of the training thread's time, or of the workers' busy time."""

    line: LineShare
    where: HotPlace


def hot_line(rank: RankWindow) -> HotLine | None:
    """The top line of loading; None where the threads that load were not read.

    With workers, the training thread's own top line while it waits is the `for` statement, which says nothing.
    """
    stacks = rank.stacks
    if stacks is None:
        return None
    in_workers = _top(stacks.worker_lines, "item")
    if in_workers is not None:
        return HotLine(in_workers, "workers")
    loader = rank.train_loader
    known = loader.num_workers if loader is not None and loader.num_workers is not None else stacks.workers
    while_waiting = _top(stacks.lines, "wait") if known == 0 else None
    return HotLine(while_waiting, "main thread while waiting") if while_waiting is not None else None


def _top(lines: Iterable[LineShare], phase: str) -> LineShare | None:
    return max((line for line in lines if line.phase == phase), key=lambda line: line.samples, default=None)
