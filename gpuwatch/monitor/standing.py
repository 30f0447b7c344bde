"""What a timeline knows of things that are reported once, as samples: what a recording begins with."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwatch.samples import Candidates, Sample
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.timeline import Timeline


def standing_samples(timeline: Timeline, now_ns: int) -> list[Sample]:
    """Facts, states and phases that last, as of now; no readings, for those come again within a poll."""
    with timeline.lock:
        found: list[Sample | None] = [timeline.machine, timeline.nvml]
        for gpu in timeline.gpus.values():
            found += _of_gpu(gpu)
        for trainer in timeline.trainers.values():
            found += _of_trainer(trainer)
        found += [process.latest for process in timeline.processes.values()]
        if timeline.candidates:
            found.append(Candidates(now_ns, timeline.candidates))
    return [sample for sample in found if sample is not None]


def standing_of(timeline: Timeline, subject: str) -> list[Sample]:
    """The same of one GPU, by its UUID, or of one trainer."""
    with timeline.lock:
        gpu, trainer = timeline.gpus.get(subject), timeline.trainers.get(subject)
        found = [*(_of_gpu(gpu) if gpu else ()), *(_of_trainer(trainer) if trainer else ())]
    return [sample for sample in found if sample is not None]


def _of_gpu(gpu: GpuHistory) -> Iterator[Sample | None]:
    yield gpu.facts
    yield gpu.latest_status
    yield gpu.latest_health
    yield gpu.lost
    yield from gpu.xids


def _of_trainer(trainer: TrainerHistory) -> Iterator[Sample | None]:
    yield trainer.facts
    yield trainer.stacks.standing
    yield from (span for span in trainer.phases.spans(trainer.seen_ns) if span.end_ns is None)
    yield trainer.ended
