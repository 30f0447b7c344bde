"""How busy each worker of the training loader is, and on which line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.lines import HotLine
from gpuwatch.timeline.windows import RankWindow, WorkerShare

LEAST_SAMPLES = 60
"""Of each worker's stack: a busy share of 73 % and of 97 % have intervals that do not meet."""
LEAST_BATCHES = 5


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker. `batch_seconds`, the median, is known by its own records only."""

    pid: int
    busy: float
    batch_seconds: float | None = None
    line: HotLine | None = None


def worker_loads(rank: RankWindow) -> list[WorkerLoad]:
    """The training loader's, by their own records or by their stacks; none where not just these were seen enough."""
    count = rank.train_loader.num_workers if rank.train_loader else None
    shown = {each.pid: each for each in rank.stacks.by_worker} if rank.stacks is not None else {}
    measured = [each for each in (rank.workers.by_worker if rank.workers else ()) if each.batches >= LEAST_BATCHES]
    if measured:
        found = [WorkerLoad(each.pid, each.busy_share, each.batch_seconds) for each in measured]
    else:
        seen = [each for each in shown.values() if each.samples >= LEAST_SAMPLES]
        found = [WorkerLoad(each.pid, each.busy.value) for each in seen]
    if len(found) < 2 or len(found) != count:
        return []
    return [_with_line(each, shown) for each in found]


def _with_line(worker: WorkerLoad, shown: Mapping[int, WorkerShare]) -> WorkerLoad:
    seen = shown.get(worker.pid)
    line = seen.line if seen is not None else None
    if seen is None or line is None:
        return worker
    of = round(seen.samples * seen.busy.value)
    hot = HotLine(line.phase, line.file, line.line, line.function, line.share, of, text=line.text, leaf=line.leaf)
    return replace(worker, line=hot)
