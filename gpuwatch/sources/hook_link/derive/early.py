"""The records before the first optimizer step, kept in case there never is one.

A loop that updates its parameters by hand looks like gradient accumulation until it has gone on for too long. It is
then derived again from its beginning, with the backward as the end of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from gpuwatch.samples import BatchWait, GpuGap, PhaseSpan, Sample, StepEnd
from gpuwatch.sources.hook_link.wire import RawRecord

_KEPT: Final = 4096
_BACKWARDS: Final = 16
_BACKWARDS_DESPITE_OPTIMIZER: Final = 64
_WITHOUT_READS: Final = 4


class EarlyRecords:
    """What came before it was known what ends a step."""

    def __init__(self) -> None:
        self.records: deque[RawRecord] = deque(maxlen=_KEPT)

    def show_no_optimizer(self, backwards: int, *, optimizer_known: bool, reads: bool) -> bool:
        """Whether so many backwards went by that no optimizer will come.

        An optimizer that the script has built is waited for longer, and a loop that reads no loader longer still:
        nothing tells its backwards of one batch from those of several.
        """
        limit = _BACKWARDS_DESPITE_OPTIMIZER if optimizer_known else _BACKWARDS
        return backwards >= (limit if reads else _WITHOUT_READS * limit)


def only_new(samples: Iterable[Sample]) -> list[Sample]:
    """Of samples derived a second time, those that the first time could not give."""
    return [
        sample
        for sample in samples
        if isinstance(sample, (StepEnd, GpuGap))
        or (isinstance(sample, BatchWait) and sample.loader is not None)
        or (isinstance(sample, PhaseSpan) and sample.kind == "eval")
    ]
