"""There are fewer batches per epoch than workers can share, so that each epoch is one burst.

Means:
    Each worker makes one batch or none before the epoch is over; the queue never runs, and every epoch pays for all
    of them.
Evidence:
    Batches per epoch, by the loader's own length, and its number of workers.
Fires:
    Fewer than two batches per epoch and worker.
Clears:
    Two or more.
Not when:
    The run waits for data and its workers are busy at least 85% of the time: then all of them are needed. The number
    of batches is not known (datasets without a length).
Causes:
    A small dataset, a large batch, or a number of workers chosen for another dataset.
Fix:
    num_workers = a quarter of the batches per epoch; or several epochs in one, by a repeating sampler.
Gain:
    A hint: it depends on what starting and filling the workers costs.
Verify:
    Waits at the starts of epochs down, samples per second not lower.
Source:
    warpem/miss-alignment#14.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.advice.pauses import epoch_edges
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.finding import Draft, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import seconds
from gpuwatch.timeline.windows import RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    batches_per_worker: int = threshold(2, "in an epoch: reported below", most=1000)
    busy_share: float = threshold(0.85, "workers as busy as this are needed, however short the epoch")


@rule(
    "epoch-too-short",
    family="data",
    subject="run",
    level=Level.E1,
    behind=("epoch-start-stall",),
    thresholds=Thresholds,
)
def epoch_too_short(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader, busy = rank.train_loader, worker_busy(rank)
    if loader is None or not loader.num_workers or not loader.batches_per_epoch:
        return None
    batches, workers = loader.batches_per_epoch, loader.num_workers
    is_needed = "data-starvation" in case.holding and busy is not None and busy.value >= limits.busy_share
    count = max(1, batches // 4)
    if batches >= limits.batches_per_worker * workers or is_needed or count >= workers:
        return None
    plural = "batch" if batches == 1 else "batches"
    return Draft(
        summary=f"An epoch has {batches} {plural} for {workers} workers: each makes one or two, then all start over",
        severity=Severity.INFO,
        level=Level.E1,
        evidence=(
            Measure("batches_per_epoch", batches, f"{batches} {plural} per epoch"),
            Measure("num_workers", workers, f"num_workers={workers}"),
            *_edges(rank),
        ),
        fix=loader_fix(
            loader,
            {"num_workers": str(count)},
            f"Use {count} worker{'' if count == 1 else 's'}, or join several epochs into one with a repeating sampler",
            count,
        ),
        hint="no promise: it depends on what starting and filling the workers costs",
        ruled_out=rivals(case) if "data-starvation" in case.holding else (),
        verify="Less waiting at the starts of epochs, and samples per second not lower",
        chart=("run.wait_share", "run.step_seconds"),
    )


def _edges(rank: RankWindow) -> tuple[Measure, ...]:
    edges = epoch_edges(rank)
    if edges is None:
        return ()
    return (
        share_measure("epoch_start_share", edges.share, "pauses between epochs take"),
        Measure("first_wait_seconds", round(edges.pause_seconds, 4), f"each pause {seconds(edges.pause_seconds)}"),
    )
