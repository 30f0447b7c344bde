"""What a batch costs, where a window knows steps: gradients may be accumulated over several batches of a step."""

from __future__ import annotations

from gpuwatch.timeline.windows import RankWindow


def wait_seconds_per_batch(rank: RankWindow) -> float | None:
    """The training loop's mean wait for one batch, of the steps whose wait is known.

    Without a hook a step is a batch.
    """
    if rank.wait_share is None or not rank.steps:
        return None
    seconds = rank.wait_share * rank.train_seconds / rank.steps if rank.wait_seconds is None else rank.wait_seconds
    return seconds / (rank.batches_per_step or 1.0)
