"""What each sample changes: the histories of GPUs, trainers, processes and the host, filled but not yet read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    Candidate,
    Candidates,
    GpuFacts,
    GpuGap,
    GpuHealth,
    GpuLost,
    GpuSample,
    GpuStatus,
    HostSample,
    LinkLoss,
    MachineFacts,
    NvmlState,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    RunMemory,
    Sample,
    StackTally,
    Standing,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
    XidEvent,
)
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.host_history import HostHistory
from gpuwatch.timeline.process_history import ProcessHistory
from gpuwatch.timeline.quality import QualityLog
from gpuwatch.timeline.run_history import TrainerHistory

_XIDS_KEPT = 256
_MOST_TRAINERS = 512
"""Between two prunes. Processes that come, speak and go may be thousands a minute."""


class Intake:
    """The histories, and the one place that assigns each kind of sample to one."""

    def __init__(self, started_ns: int | None, interval_seconds: float) -> None:
        self.lock = threading.RLock()
        self.interval_seconds = interval_seconds
        self.started_ns = started_ns
        self.gpus: dict[str, GpuHistory] = {}
        self.trainers: dict[str, TrainerHistory] = {}
        self.processes: dict[tuple[int, int], ProcessHistory] = {}
        self.host = HostHistory()
        self.machine: MachineFacts | None = None
        self.nvml: NvmlState | None = None
        self.candidates: tuple[Candidate, ...] = ()
        self.searched = False  # whether the candidates are known
        self._quality = QualityLog(interval_seconds)
        self._xids: deque[XidEvent] = deque(maxlen=_XIDS_KEPT)
        self._takers: dict[type, Callable[[Any], None]] = {
            GpuFacts: lambda sample: self._gpu(sample.uuid).add_facts(sample),
            GpuSample: self._add_poll,
            GpuStatus: self._add_gpu_status,
            GpuHealth: self._add_gpu_health,
            GpuLost: self._add_gpu_lost,
            XidEvent: self._add_xid,
            NvmlState: self._add_nvml,
            MachineFacts: self._add_machine,
            HostSample: self._add_host,
            ProcessSample: self._add_process,
            RunFacts: lambda sample: self._trainer(sample.trainer).add_facts(sample),
            StepEnd: self._add_step,
            BatchWait: self._add_wait,
            GpuGap: lambda sample: self._trainer(sample.trainer).add_gap(sample),
            PhaseSpan: lambda sample: self._trainer(sample.trainer).add_phase(sample),
            WorkerFetch: self._add_fetch,
            RunMemory: lambda sample: self._trainer(sample.trainer).add_memory(sample),
            TrainerEnded: self._add_end,
            LinkLoss: self._add_loss,
            StackTally: lambda sample: self._trainer(sample.trainer).add_tally(sample),
            Standing: lambda sample: self._trainer(sample.trainer).stacks.see(sample),
            BatchCount: lambda sample: self._trainer(sample.trainer).add_count(sample),
            Candidates: self._add_candidates,
        }

    def add(self, sample: Sample) -> None:
        """Takes up one sample, in any order of time within its own subject."""
        with self.lock:
            self._takers[type(sample)](sample)

    def extend(self, samples: Iterable[Sample]) -> None:
        """Takes up several at once, so that a reader sees all of them or none."""
        with self.lock:
            for sample in samples:
                self._takers[type(sample)](sample)

    def _gpu(self, uuid: str) -> GpuHistory:
        gpu = self.gpus.get(uuid)
        if gpu is None:
            gpu = self.gpus[uuid] = GpuHistory(uuid)
        return gpu

    def _trainer(self, name: str) -> TrainerHistory:
        trainer = self.trainers.get(name)
        if trainer is None:
            if len(self.trainers) >= _MOST_TRAINERS:
                del self.trainers[min(self.trainers.values(), key=_worth).trainer]
            trainer = self.trainers[name] = TrainerHistory(name)
        return trainer

    def _add_poll(self, sample: GpuSample) -> None:
        self._begin(sample.time_ns)
        self._gpu(sample.uuid).add_poll(sample)

    def _add_host(self, sample: HostSample) -> None:
        self._begin(sample.time_ns)
        self.host.add(sample)

    def _begin(self, time_ns: int) -> None:
        if self.started_ns is None or time_ns < self.started_ns:
            self.started_ns = time_ns

    def _add_gpu_status(self, sample: GpuStatus) -> None:
        self._gpu(sample.uuid).latest_status = sample

    def _add_gpu_health(self, sample: GpuHealth) -> None:
        self._gpu(sample.uuid).add_health(sample)

    def _add_gpu_lost(self, sample: GpuLost) -> None:
        gpu = self._gpu(sample.uuid)
        gpu.lost = gpu.lost or sample

    def _add_xid(self, event: XidEvent) -> None:
        (self._xids if event.uuid is None else self._gpu(event.uuid).xids).append(event)

    def _add_nvml(self, state: NvmlState) -> None:
        self.nvml = state
        self._quality.nvml(state)

    def _add_machine(self, facts: MachineFacts) -> None:
        if facts.cpu_count > 0:  # a damaged recording may say otherwise
            self.machine = facts

    def _add_candidates(self, found: Candidates) -> None:
        self.candidates = found.processes
        self.searched = True

    def _add_process(self, sample: ProcessSample) -> None:
        key = (sample.pid, sample.start_ticks)
        if key not in self.processes:
            self.processes[key] = ProcessHistory()
        others: set[int] = set()
        for each in self.trainers.values():
            if each.facts is not None and (each.facts.pid, each.facts.start_ticks) == key:
                each.see_process(sample)
                others |= each.other_workers()
        self.processes[key].add(sample, others)

    def _add_step(self, step: StepEnd) -> None:
        self._quality.received(step.end_ns)
        self._trainer(step.trainer).add_step(step)

    def _add_wait(self, wait: BatchWait) -> None:
        self._quality.received(wait.end_ns)
        self._trainer(wait.trainer).add_wait(wait)

    def _add_fetch(self, fetch: WorkerFetch) -> None:
        self._quality.received(fetch.end_ns)
        self._trainer(fetch.trainer).add_fetch(fetch)

    def _add_end(self, ended: TrainerEnded) -> None:
        if ended.trainer in self.trainers:
            self.trainers[ended.trainer].end(ended)

    def _add_loss(self, loss: LinkLoss) -> None:
        self._quality.lost(loss)
        if loss.trainer is not None:
            self._trainer(loss.trainer).add_loss(loss)


def _worth(trainer: TrainerHistory) -> tuple[bool, bool, int]:
    """What is forgotten first: those that never introduced themselves, then those that ended, the longest ago."""
    return (trainer.facts is not None, trainer.ended is None, trainer.seen_ns)
