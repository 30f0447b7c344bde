"""The shared-memory mount that workers hand batches through, and what their queues need of it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import RankWindow

USUAL_PREFETCH = 2


@dataclass(frozen=True, slots=True)
class ShmMount:
    """Its size and what is used of it, by whomever."""

    total_bytes: int
    used_bytes: int

    @property
    def used_share(self) -> float:
        """0..1."""
        return self.used_bytes / self.total_bytes


def shm_mount(case: RunCase) -> ShmMount | None:
    """The run's own mount, which a container has; else the machine's. None where its use is not known."""
    process = case.run.critical.process
    for source in (process.latest if process else None, case.host.latest if case.host else None):
        if source is not None and source.shm_total_bytes and source.shm_used_bytes is not None:
            return ShmMount(source.shm_total_bytes, source.shm_used_bytes)
    return None


def local_ranks(rank: RankWindow) -> int:
    """The ranks on this machine, which share its cores, its memory and the mount."""
    return max(1, rank.facts.local_world_size or 1)


def queued_bytes(rank: RankWindow) -> int:
    """What full queues of all its loaders with workers hold; 0 where no batch's size is known."""
    loaders = (*((rank.train_loader,) if rank.train_loader else ()), *rank.eval_loaders)
    queued: int = sum(
        loader.num_workers * (loader.prefetch_factor or USUAL_PREFETCH) * loader.batch_bytes
        for loader in loaders
        if loader.num_workers and loader.batch_bytes
    )
    return local_ranks(rank) * queued
