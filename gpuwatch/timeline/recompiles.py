"""Compilations that come after a run's beginning, where every model is compiled once."""

from __future__ import annotations

from gpuwatch.samples import PhaseKind
from gpuwatch.timeline.phases import PhaseLog
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import Recompiles

COMPILE: frozenset[PhaseKind] = frozenset({"compile"})
EVALUATION: frozenset[PhaseKind] = frozenset({"eval"})
"""The first one compiles each graph for its own mode, whenever it comes."""
_OVER_NS = 600 * SECOND_NS


def recompiles(phases: PhaseLog, hundredth_ns: int | None, now_ns: int) -> Recompiles | None:
    """Those of the last 10 min; None before the run's 100th step, at `hundredth_ns`."""
    if hundredth_ns is None or now_ns <= hundredth_ns:
        return None
    since_ns = max(now_ns - _OVER_NS, hundredth_ns)
    evaluations = phases.stretches(EVALUATION, since_ns, now_ns)
    spans = [
        (start, end)
        for start, end in phases.stretches(COMPILE, since_ns, now_ns)
        if not any(first <= start < last for first, last in evaluations)
    ]
    seconds = sum(end - max(start, since_ns) for start, end in spans) / SECOND_NS
    over = (now_ns - since_ns) / SECOND_NS
    return Recompiles(len(spans), seconds, seconds / over, over)
