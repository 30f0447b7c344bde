"""What one run did in a window: its ranks, its GPUs' usual power, and when it was not training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuwatch.timeline.gpu_history import RAW_NS as GPU_RAW_NS
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.phases import PAUSES
from gpuwatch.timeline.process_history import ProcessHistory
from gpuwatch.timeline.rank_window import began_ns, rank_window
from gpuwatch.timeline.runs import Run, gpus_of_trainer
from gpuwatch.timeline.spans import Span, united
from gpuwatch.timeline.stats import median
from gpuwatch.timeline.windows import RankWindow, RunWindow


def run_window(
    run: Run,
    gpus: Mapping[str, GpuHistory],
    gpu_uuids: tuple[str, ...],
    processes: Mapping[tuple[int, int], ProcessHistory],
    now_ns: int,
    window_ns: int,
) -> RunWindow:
    """One run over (now - window, now]."""
    ranks = []
    for trainer in run.trainers:
        assert trainer.facts is not None
        process = processes.get((trainer.facts.pid, trainer.facts.start_ticks))
        rank = rank_window(trainer, process, now_ns, window_ns)
        ranks.append(replace(rank, facts=replace(rank.facts, gpu_uuids=gpus_of_trainer(rank.facts, gpus))))
    rates = [rank.samples_per_second for rank in ranks if rank.ended is None or run.has_ended]
    return RunWindow(
        id=run.id,
        title=run.title,
        ranks=tuple(ranks),
        critical=critical_rank(ranks),
        gpu_uuids=gpu_uuids,
        samples_per_second=sum(known) if (known := [rate for rate in rates if rate is not None]) else None,
        usual_power_watts=_usual_power(run, gpus, gpu_uuids),
    )


def critical_rank(ranks: list[RankWindow]) -> RankWindow:
    """The rank with the largest wait: the others wait for it in the collective. A living one before one that ended."""

    def urgency(rank: RankWindow) -> tuple[bool, float]:
        waited = rank.wait_share if rank.settled_wait_share is None else rank.settled_wait_share
        return (rank.ended is None, waited or 0.0)

    return max(ranks, key=urgency)


def pauses_of(run: Run, start_ns: int, now_ns: int) -> list[Span]:
    """When a GPU of this run has no training to show: warm-up, phases on any rank, and after the end.

    A checkpoint of rank 0 holds up the others too. A run of which neither steps nor stacks are seen pauses never, as
    far as is known; one whose stacks are read may be in an evaluation before the first batch is counted.
    """
    spans: list[Span] = []
    for trainer in run.trainers:
        if not trainer.steps_total and trainer.stacks.end_ns is not None and not trainer.is_exact:
            spans += trainer.phases.stretches(PAUSES, start_ns, now_ns)
    stepping = [trainer for trainer in run.trainers if trainer.steps_total]
    for trainer in stepping:
        warm_ns = trainer.warm_up.over_ns
        spans.append((start_ns, now_ns if warm_ns is None else warm_ns))
        spans += trainer.phases.stretches(PAUSES, start_ns, now_ns)
    if stepping and run.has_ended:
        spans.append((max(trainer.seen_ns for trainer in run.trainers), now_ns))
    return united((start, end) for start, end in spans if end > start)


def _usual_power(run: Run, gpus: Mapping[str, GpuHistory], gpu_uuids: tuple[str, ...]) -> Mapping[str, float]:
    """Median power of each GPU over the 10 min up to the run's last step, from the tier that reaches so far back."""
    ends = [trainer.last_step_ns for trainer in run.trainers if trainer.last_step_ns is not None]
    if not ends:
        return {}
    last_ns = max(ends)
    first_ns = max(last_ns - GPU_RAW_NS, min(began_ns(trainer) for trainer in run.trainers))
    powers = {uuid: median(gpus[uuid].tiers["power_watts"].means(first_ns, last_ns)) for uuid in gpu_uuids}
    return {uuid: power for uuid, power in powers.items() if power is not None}
