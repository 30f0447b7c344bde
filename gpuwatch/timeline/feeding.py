"""Batches that a thread of the training process makes ahead: whether the training waits for that thread.

It makes one batch after the other, also while the training computes, and shares the interpreter with the training
thread: while one of them runs Python, the other stands still.
"""

from __future__ import annotations

from gpuwatch.timeline.windows import StackWindow

LEAST_LOOKS = 20
HANDED_SHARE = 0.5
"""Of the waits: where most are for another thread or process, that is what makes the batches."""
MAKING_THREADS = 0.5
"""At a time, in the mean: a thread that mostly waits for worker processes itself only passes their batches on."""


def is_handed_over(stacks: StackWindow) -> bool:
    """Whether what the training thread waits for is handed over by another thread or process, not by a loader."""
    waits = stacks.phases["wait"].value * stacks.samples if "wait" in stacks.phases else 0.0
    return stacks.handed_samples >= LEAST_LOOKS and stacks.handed_samples >= HANDED_SHARE * waits


def is_fed(stacks: StackWindow) -> bool:
    """Whether threads of the training process make the batches that it waits for."""
    enough = is_handed_over(stacks) and stacks.feeder_looks >= LEAST_LOOKS
    return enough and making_threads(stacks) >= MAKING_THREADS


def making_samples(stacks: StackWindow) -> int:
    """Samples of threads that feed the training thread in which they made batches."""
    return round(stacks.feeder_samples * stacks.feeder_phases["make"].value) if stacks.feeder_samples else 0


def making_threads(stacks: StackWindow) -> float:
    """How many of them make batches at a time, in the mean."""
    return making_samples(stacks) / stacks.feeder_looks if stacks.feeder_looks else 0.0
