"""The shared-memory mount is nearly full; workers may crash or deadlock.

Means:
    Workers hand batches over through /dev/shm. Once it is full they end with a bus error, or training waits forever.
Evidence:
    What is used of /dev/shm as the training process sees it (a container has its own), and what full queues need:
    workers x prefetch_factor x bytes of a batch, of all loaders and ranks on this machine.
Fires:
    80% used, or needed by full queues; critical from 95% used.
Clears:
    Below 60%.
Not when:
    The run has no workers. Batches go through files in /tmp (file_system sharing): then nothing of them is seen in
    /dev/shm, and only its use by others counts.
Causes:
    Docker's default of 64 MB; queues too deep for the mount; files that other programs left there.
Fix:
    A mount twice as large as needed: docker run --shm-size or --ipc=host, in Kubernetes an emptyDir of medium Memory;
    until then fewer workers or a smaller prefetch_factor.
Gain:
    No speed: it keeps the run from dying.
Verify:
    At least 40% of /dev/shm free.
Source:
    pytorch#5040 and #1355 (too small a mount deadlocks); Docker's default is 64 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.resources import ShmMount, queued_bytes, shm_mount
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes
from gpuwatch.timeline.windows import RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.80, "of /dev/shm is used or will be: reported from here on")
    clear_share: float = threshold(0.60, "until less is used", bounded_by="fire_share")
    critical_share: float = threshold(0.95, "critical from here on", bounded_by="fire_share")


@rule("shm-pressure", family="data", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def shm_pressure(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, mount = case.run.critical, shm_mount(case)
    if mount is None or not _has_workers(rank):
        return None
    needed = _needed(rank, mount)
    share = max(mount.used_share, needed / mount.total_bytes)
    if share < limits.clear_share:
        return None
    free = gibibytes(mount.total_bytes - mount.used_bytes)
    is_used = mount.used_share >= limits.fire_share or mount.used_share * mount.total_bytes >= needed
    return Draft(
        summary=(
            f"/dev/shm has {free} of {gibibytes(mount.total_bytes)} left: workers that find it full crash or hang"
            if is_used
            else f"Full queues of this run's loaders need {gibibytes(needed)} of the {gibibytes(mount.total_bytes)} "
            "of /dev/shm: workers that find it full crash or hang"
        ),
        severity=Severity.CRITICAL if mount.used_share >= limits.critical_share else Severity.WARNING,
        level=Level.E1,
        evidence=(
            share_measure("shm_used_share", mount.used_share, "used of /dev/shm"),
            Measure("shm_total_bytes", mount.total_bytes, f"/dev/shm holds {gibibytes(mount.total_bytes)}"),
            *((Measure("shm_needed_bytes", needed, f"full queues need {gibibytes(needed)}"),) if needed else ()),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(case, max(needed, mount.used_bytes)),
        hint="no speedup: it keeps the workers from crashing or hanging",
        ruled_out=rivals(case) if "data-starvation" in case.holding else (),
        verify="At least 40% of /dev/shm free",
    )


def _has_workers(rank: RankWindow) -> bool:
    loaders = (*((rank.train_loader,) if rank.train_loader else ()), *rank.eval_loaders)
    return any(loader.num_workers for loader in loaders) or (rank.workers is not None and rank.workers.count > 0)


def _needed(rank: RankWindow, mount: ShmMount) -> int:
    """Bytes of full queues; none where batches were made and not one of them is in the mount: they go elsewhere."""
    batch = rank.train_loader.batch_bytes if rank.train_loader else None
    if batch and rank.steps and mount.used_bytes < batch:
        return 0
    return queued_bytes(rank)


def _fix(case: RunCase, needed: int) -> Fix:
    size = max(1, math.ceil(2 * needed / 2**30))
    loader = case.run.critical.train_loader
    fewer = "until then fewer workers or prefetch_factor=1 need less"
    file, line = (loader.file, loader.line) if loader is not None else (None, None)
    if case.machine is not None and case.machine.container:
        text = f"Give the container {size} GiB (Kubernetes: an emptyDir of medium Memory; or --ipc=host); {fewer}"
        return Fix(text=text, code=f"docker run --shm-size={size}g", file=file, line=line, value=size)
    text = f"Make the mount {size} GiB large, in a container by docker run --shm-size={size}g or --ipc=host; {fewer}"
    return Fix(text=text, code=f"mount -o remount,size={size}G /dev/shm", file=file, line=line, value=size)
