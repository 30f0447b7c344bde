"""Looks at the stacks of a run's training thread and of its workers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter

from gpuwatch.samples import LineCount, StackTally, WorkerCount
from tests.scenarios.job import Stretch
from tests.scenarios.loading import Fetch
from tests.scenarios.loop import Rank
from tests.scenarios.training import SCRIPT, worker_pid

LOOKS_HZ, WORKER_LOOKS_HZ = 25, 20
"""Of hooked runs: what the stack source does unless told otherwise."""
WAITS = {"first-wait": "wait", "eval-wait": "eval"}
"""Stretches that are counted apart, and the phase that they are part of."""
LINES = {
    "wait": (120, "for images, labels in loader:"),
    "copy": (122, "images = images.to(device)"),
    "forward": (124, "logits = model(images)"),
    "backward": (127, "loss.backward()"),
    "optimizer": (128, "optimizer.step()"),
    "sync": (130, "running += loss.item()"),
    "log": (140, "writer.add_histogram(name, values, step)"),
    "eval": (150, "for images, labels in eval_loader:"),
    "save": (160, "torch.save(state, path)"),
    "other": (131, "seen += labels.size(0)"),
}


class Looks:
    """Samples of the training thread's stack and of its workers'.

    Args:
        rng: when each look falls.
        rates: of looks per second at the training thread and at each worker: by default those of a hooked run.
        torn_share: of the looks at the training thread.
    """

    def __init__(
        self, rng: random.Random, rates: tuple[int, int] = (LOOKS_HZ, WORKER_LOOKS_HZ), torn_share: float = 0.0
    ) -> None:
        self._rng = rng
        self._rate, self._worker_rate = rates
        self._torn_share = torn_share

    def second(
        self, rank: Rank, trainer: str, fetches: list[Fetch], end: float, start_ns: int, end_ns: int
    ) -> StackTally | None:
        """The looks of the second up to `end`; None where the process was not there."""
        starts = [one.start for one in rank.log]
        phases: Counter[str] = Counter()
        apart: Counter[str] = Counter()
        on_lines: Counter[tuple[str, tuple[int, str]]] = Counter()
        torn = receiving = 0
        for moment in self._moments(end, self._rate):
            place = bisect_right(starts, moment) - 1
            if place < 0:
                continue
            if self._torn_share and self._rng.random() < self._torn_share:
                torn += 1
                continue
            inside: Stretch = rank.log[place]
            phase = inside.phase if moment < inside.end else "other"
            apart[phase] += 1
            phase = WAITS.get(phase, phase)
            phases[phase] += 1
            line = (inside.about.line, inside.about.text) if inside.about is not None else LINES.get(phase)
            if line is not None:
                on_lines[phase, line] += 1
            receiving += phase == "wait" and moment >= inside.end - rank.job.loading.handover_seconds
        if not phases:
            return None
        workers = rank.job.loading.workers
        at_work: Counter[str] = Counter()
        by_worker = []
        for worker in range(workers):
            mine = [fetch for fetch in fetches if fetch.worker == worker]
            moments = self._moments(end, self._worker_rate)
            busy = sum(any(fetch.start <= moment < fetch.end for fetch in mine) for moment in moments)
            at_work.update({"item": busy, "idle": len(moments) - busy})
            by_worker.append(WorkerCount(worker_pid(rank, worker), len(moments), len(moments) - busy))
        lines = tuple(
            LineCount(phase, SCRIPT, line, "main", count, text) for (phase, (line, text)), count in on_lines.items()
        )
        worker_lines = (
            (LineCount("item", "/simulated/data.py", 41, "__getitem__", at_work["item"], "image = augment(image)"),)
            if at_work["item"]
            else ()
        )
        return StackTally(
            trainer=trainer,
            start_ns=start_ns,
            end_ns=end_ns,
            samples=sum(phases.values()),
            phases=phases,
            lines=lines,
            rejected=torn,
            eval_waiting_samples=apart["eval-wait"],
            receiving_samples=receiving if workers else 0,
            first_wait_samples=apart["first-wait"] if workers else 0,
            workers=workers,
            worker_samples=sum(at_work.values()),
            worker_phases=at_work,
            worker_lines=worker_lines,
            by_worker=tuple(by_worker),
            cpu_seconds=0.01,
        )

    def _moments(self, end: float, rate: int) -> list[float]:
        return [end - 1.0 + (place + self._rng.random()) / rate for place in range(rate)]
