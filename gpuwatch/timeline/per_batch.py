"""What a batch costs, where a window knows steps: gradients may be accumulated over several batches of a step."""

from __future__ import annotations

from gpuwatch.timeline.windows import RankWindow


def batches_per_step(rank: RankWindow) -> int:
    """Batches behind one optimizer step, from the samples that were counted; 1 where they were not."""
    size = rank.train_loader.batch_size if rank.train_loader else None
    if rank.facts.rung != "exact" or not size or not rank.steps or rank.samples_per_second is None:
        return 1
    return max(1, round(rank.samples_per_second * rank.train_seconds / rank.steps / size))


def wait_seconds_per_batch(rank: RankWindow) -> float | None:
    """The training loop's mean wait for one batch."""
    if rank.wait_share is None or not rank.steps:
        return None
    return rank.wait_share * rank.train_seconds / (rank.steps * batches_per_step(rank))
