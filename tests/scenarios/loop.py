"""The training thread and its GPU: launches run ahead of the kernels as far as the driver's queue lets them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from gpuwatch.sources.simulator.model import GpuModel, Work
from tests.scenarios.job import About, Job, Pause, Stretch, Totals
from tests.scenarios.loading import BatchQueue, Cores

PARTS = ("forward",) * 3 + ("backward",) * 4 + ("optimizer",)
"""A step in eight bursts of kernels."""
IN_STEP = ("log", "code")
"""Pauses that the hook does not see: they are part of the step."""
METRICS = About(132, "auc = roc_auc_score(labels, scores)")
LATENCY_SECONDS = 1e-5
PAGEABLE_BYTES_PER_SECOND = 5e9
PINNED_COPY_SECONDS = 3e-4
LINK_BYTES_PER_SECOND = 40e9
SPINNING = 0.25
"""Of the power limit: kernels of a collective that wait for another rank."""


class Rank:
    """One training process. Time is seconds since the stream's beginning.

    Args:
        job: the whole run.
        index: of this rank.
        cores: shared by all ranks.
        gpus: that its kernels run on, None where only the truth is wanted; all but the first are DataParallel's.
        noise: this rank's.
    """

    def __init__(self, job: Job, index: int, cores: Cores, gpus: list[GpuModel], noise: random.Random) -> None:
        self.job, self.index = job, index
        loading_times = computing_times = 1.0
        if job.slow_rank is not None and job.slow_rank[0] == index:
            _, loading_times, computing_times = job.slow_rank
        self.cores = cores
        self.gpus = gpus
        self.rng = noise
        self.queue = BatchQueue(job.loading, cores, noise, loading_times)
        self.computing_times = computing_times
        self.now = 0.3
        self.step_start = 0.3
        self.gpu_free = 0.0
        self.phase_seconds = 0.0
        self.totals = Totals()
        self.log: list[Stretch] = []
        self.received_bytes = 0.0
        self.gaps: deque[tuple[int, float, float]] = deque()
        """Of steps whose event pairs nobody has read yet: number, gap, when the GPU is through with them."""
        self._in_flight: deque[float] = deque()
        self._depth = max(2, round(job.computing.queue_steps * len(PARTS)))
        self._open: tuple[float, float, float] | None = None
        self._samples_seconds = 0.0

    def change(self, job: Job) -> None:
        """Goes on as this rank of another job."""
        self.job, self.computing_times = job, 1.0
        self.queue.change(job.loading)
        if self.queue.epochs:
            self.queue.refill(self.now)

    def run_for(self, until: float, phase: str, cores: float) -> None:
        """The thread does one thing until a moment."""
        if until > self.now:
            if self.gpus:
                self.log.append(Stretch(self.now, until, phase, cores))
            self.now = until

    def take(self) -> tuple[float, float, float]:
        """`next()`: when it was entered, when it returned, and for how long the GPU had nothing queued meanwhile."""
        entered, returned = self.now, self.queue.returned
        gap = max(returned, self.gpu_free) - max(entered, self.gpu_free)
        first_round = max(1, self.job.loading.workers)
        phase = "wait" if self.queue.position >= first_round else "first-wait"
        self.run_for(returned, phase, min(1.0, self.queue.cpu_seconds / max(returned - entered, 1e-9)))
        return entered, returned, gap

    def copy(self, share: float) -> float:
        """The batch to the GPU; from pageable memory it waits for everything queued. The seconds it held up."""
        start, loading = self.now, self.job.loading
        size = loading.batch_bytes * share
        self.received_bytes += size
        if loading.pinned or not loading.batch_bytes:
            self.run_for(start + PINNED_COPY_SECONDS, "copy", 1.0)
            self.compute_on_gpu(size / LINK_BYTES_PER_SECOND, 0.3)
        else:
            self.drain("copy")
            self.run_for(self.now + size / PAGEABLE_BYTES_PER_SECOND, "copy", 1.0)
        return self.now - start

    def drain(self, phase: str) -> None:
        """Waits, spinning, until the GPU is through with everything queued."""
        self.run_for(self.gpu_free, phase, 1.0)
        self._in_flight.clear()

    def launch(self, parts: slice, gpu_seconds: float, slower: Callable[[float], float]) -> dict[str, float]:
        """Bursts of kernels, each behind its launch. The thread's seconds by part."""
        took: dict[str, float] = {}
        launching = self.job.computing.launch_seconds / len(PARTS)
        stretch = self._in_line()
        for part in PARTS[parts]:
            start = self.now
            self.run_for(start + launching * stretch * self.rng.uniform(0.9, 1.1), part, 1.0 / stretch)
            if len(self._in_flight) >= self._depth:
                self.run_for(self._in_flight[len(self._in_flight) - self._depth], part, 1.0)
            while self._in_flight and self._in_flight[0] <= self.now:
                self._in_flight.popleft()
            self.compute_on_gpu(gpu_seconds / len(PARTS) * slower(self.now), self.job.computing.intensity)
            self._in_flight.append(self.gpu_free)
            took[part] = took.get(part, 0.0) + self.now - start
        return took

    def compute_on_gpu(self, seconds: float, intensity: float) -> None:
        """Kernels behind what is queued."""
        start = max(self.gpu_free, self.now + LATENCY_SECONDS)
        self.gpu_free = start + seconds
        self.totals.busy_seconds += seconds
        if not self.gpus:
            return
        if self._open is not None and start - self._open[1] < 2e-5 and intensity == self._open[2]:
            self._open = (self._open[0], self.gpu_free, intensity)
            return
        self.flush()
        self._open = (start, self.gpu_free, intensity)

    def flush(self) -> None:
        """Hands the kernels over to the sensors; a step of DataParallel keeps each GPU busy for its own part of it."""
        if self._open is None:
            return
        start, end, intensity = self._open
        self._open = None
        tensor = self.job.computing.tensor_percent if intensity > SPINNING else 0.0
        for place, gpu in enumerate(self.gpus):
            share = self.job.gpus_of_one_process[place] if self.job.gpus_of_one_process else 1.0
            gpu.queue(Work(start, start + (end - start) * share, 1.0, intensity, tensor))

    def meet(self, reduced: float) -> None:
        """The collective: kernels that spin until the last rank is there."""
        if reduced > self.gpu_free:
            self.compute_on_gpu(reduced - self.gpu_free, SPINNING)
            self._in_flight.append(self.gpu_free)

    def pause(self, pause: Pause, seconds: float) -> list[tuple[float, float]]:
        """What a pause does to thread and GPU; the waits of an evaluation."""
        waits: list[tuple[float, float]] = []
        if pause.kind in ("eval", "checkpoint"):
            self.drain("sync")
        start = self.now
        if pause.kind == "eval":
            each = seconds / pause.batches
            for _ in range(pause.batches):
                entered = self.now
                self.run_for(entered + each * (1.0 - pause.gpu_share), "eval-wait", 0.2)
                waits.append((entered, self.now))
                self.compute_on_gpu(each * pause.gpu_share, 0.55)
                self.drain("eval")
        else:
            phase = {"checkpoint": "save", "log": "log", "compile": "compile"}.get(pause.kind, "other")
            self.run_for(start + seconds, phase, 0.6 if pause.kind == "log" else 0.95)
            if pause.kind == "code" and self.log:
                self.log[-1] = replace(self.log[-1], about=METRICS)
        if pause.kind not in IN_STEP:
            self.phase_seconds += self.now - start
        return waits

    def end_step(self, waited: float, gap: float, samples: int) -> None:
        """Adds a step up for the truth."""
        totals = self.totals
        totals.steps += 1
        totals.samples += samples
        totals.train_seconds += self.now - self.step_start - self.phase_seconds
        totals.wait_seconds += waited
        totals.gap_seconds += gap

    def _in_line(self) -> float:
        """How much longer launching takes for want of a core: a thread that sleeps now and then is let in earlier."""
        if self.job.host.training_first:
            return 1.0
        return 1.0 + 0.6 * (self.cores.stretch(self.now) - 1.0)
