"""What of the samples is recorded: everything, or one process tree's part where the watch is narrowed to that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpuwatch.monitor.standing import standing_of
from gpuwatch.samples import Candidates, GpuSample, Sample, TrainerEnded
from gpuwatch.timeline.runs import gpus_of, holds
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.timeline import Timeline

_LOOK_NS = SECOND_NS
_RUNS_NS = 60 * SECOND_NS


class RecordedPart:
    """Leaves out other trainings, and the GPUs that the tree does not use once it is known which it does.

    What was left out and is wanted later (a rank that was in no tree yet, a watch that was widened) begins with all
    that is known of it, for facts are reported once.

    Args:
        timeline: has taken up the samples that are asked about.
        pids: of the tree; None: everything is recorded.
    """

    def __init__(self, timeline: Timeline, pids: Callable[[], frozenset[int] | None]) -> None:
        self._timeline = timeline
        self._pids = pids
        self._left_out: set[str] = set()
        self._gpus: frozenset[str] = frozenset()
        self._looked_ns: int | None = None

    def of(self, samples: Sequence[Sample], now_ns: int) -> Sequence[Sample]:
        """Those that are recorded."""
        pids = self._pids()
        if pids is None and not self._left_out:
            return samples
        if pids is not None and any(type(sample) is GpuSample for sample in samples):
            self._look_for_gpus(pids, now_ns)
        return list(self._chosen(samples, pids))

    def _chosen(self, samples: Iterable[Sample], pids: frozenset[int] | None) -> Iterator[Sample]:
        for sample in samples:
            trainer, gpu = getattr(sample, "trainer", None), getattr(sample, "uuid", None)
            subject = trainer or gpu
            if subject is None:
                yield sample if pids is None or type(sample) is not Candidates else _of_tree(sample, pids)
            elif pids is not None and not (self._has(trainer, pids) if trainer else self._uses(subject)):
                if isinstance(sample, TrainerEnded) and sample.how != "lost":
                    self._left_out.discard(subject)
                else:
                    self._left_out.add(subject)
            else:
                if subject in self._left_out:
                    self._left_out.remove(subject)
                    yield from standing_of(self._timeline, subject)
                yield sample

    def _has(self, trainer: str, pids: frozenset[int]) -> bool:
        history = self._timeline.trainers.get(trainer)
        if history is None or history.facts is None:
            return True
        return holds(pids, history.facts.pid, history.facts.start_ticks)

    def _uses(self, gpu: str) -> bool:
        return not self._gpus or gpu in self._gpus

    def _look_for_gpus(self, pids: frozenset[int], now_ns: int) -> None:
        """Adds those that it uses by now; one that it has let go of stays in the recording."""
        if self._looked_ns is not None and now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        timeline = self._timeline
        with timeline.lock:
            runs = timeline.runs(now_ns, _RUNS_NS, pids)
            self._gpus |= {uuid for run in runs for uuid in gpus_of(run, timeline.gpus, timeline.processes)}


def _of_tree(candidates: Candidates, pids: frozenset[int]) -> Candidates:
    return replace(
        candidates, processes=tuple(each for each in candidates.processes if holds(pids, each.pid, each.start_ticks))
    )
