"""The same run as it is seen without a hook: what looks at its stacks and its loaders' counters would bring.

Nothing that only a hook knows gets through. What the stack source reports is made with its own noise: this many looks a
second, a few of them torn, and the edges of a phase anywhere between two looks.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    GpuGap,
    LoaderFacts,
    ModelFacts,
    PhaseSpan,
    RunFacts,
    RunMemory,
    Sample,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
)
from tests.scenarios.looks import LINES
from tests.scenarios.training import EVAL_LOADER, SCRIPT, TRAIN_LOADER

LOOKS_HZ, WORKER_LOOKS_HZ = 100, 20
"""Of a run without a hook: what the stack source does unless told otherwise,"""
CROWD, CROWDED_LOOKS_HZ, CROWDED_WORKER_LOOKS_HZ = 8, 50, 10
"""and what its budget leaves of that beside more workers than eight, at most."""
TORN_SHARE = 0.01
SETTLED_SECONDS = 1.0
"""Until the loop over a loader is known as the one that trains."""
HOW_TO_SEE_MORE = "`gpuwatch run COMMAND` measures steps, waits and the GPU's idle time exactly"
_HOOK_ONLY = (StepEnd, GpuGap, WorkerFetch, RunMemory)

Timed = tuple[float, Sample]


def rates(workers: int) -> tuple[int, int]:
    """Looks per second at the training thread and at each worker."""
    return (LOOKS_HZ, WORKER_LOOKS_HZ) if workers <= CROWD else (CROWDED_LOOKS_HZ, CROWDED_WORKER_LOOKS_HZ)


@dataclass(slots=True)
class _Trainer:
    """What is known of one process so far."""

    facts: RunFacts
    loaders: dict[int, LoaderFacts]
    told: set[int] = field(default_factory=set)
    batches: dict[int, list[float]] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)


class Outside:
    """Hides what only a hook gives, and tells what can be seen instead.

    Args:
        rng: of the noise.
        to_ns: seconds of the stream to the clock's.
        workers: of the training loader.
    """

    def __init__(self, rng: random.Random, to_ns: Callable[[float], int], workers: int) -> None:
        self._rng = rng
        self._ns = to_ns
        self._between_looks = 1.0 / rates(workers)[0]
        self._trainers: dict[str, _Trainer] = {}

    def seen(self, time: float, sample: Sample) -> Iterator[Timed]:
        """A sample of the run as it is known without a hook."""
        if isinstance(sample, RunFacts):
            yield from self._hello(time, sample)
        elif isinstance(sample, BatchWait):
            self._count(time, sample)
        elif isinstance(sample, PhaseSpan):
            if sample.kind in ("eval", "checkpoint"):
                yield time, self._blurred(sample)
        elif not isinstance(sample, _HOOK_ONLY):
            if isinstance(sample, TrainerEnded):
                self._trainers.pop(sample.trainer, None)
            yield time, sample

    def second(self, end: float) -> Iterator[Timed]:
        """The counters of all loops at the end of a second, and loops that are new."""
        for name, trainer in self._trainers.items():
            for loader, ends in sorted(trainer.batches.items()):
                taken = bisect_right(ends, end)
                if not taken or end - ends[0] < SETTLED_SECONDS:
                    continue
                if loader not in trainer.told:
                    trainer.told.add(loader)
                    known = tuple(trainer.loaders[number] for number in sorted(trainer.told))
                    yield end, replace(trainer.facts, time_ns=self._ns(end), loaders=known)
                epochs = bisect_right(trainer.starts, end) if loader == TRAIN_LOADER else 0
                role = trainer.loaders[loader].role
                yield end, BatchCount(name, self._ns(end), loader, role, taken, epochs=epochs)

    def _hello(self, time: float, known: RunFacts) -> Iterator[Timed]:
        facts = replace(
            known,
            loaders=(),
            model=ModelFacts(),
            torch_threads=None,
            gpu_uuids=(),
            gpu_gap_measured=False,
            visibility="sampled",
            how_to_see_more=HOW_TO_SEE_MORE,
        )
        loops = {TRAIN_LOADER: LINES["wait"][0], EVAL_LOADER: LINES["eval"][0]}
        loaders = {
            loader.loader: replace(
                loader,
                batch_bytes=None,
                batch_shape=None,
                batches_inspected=None,
                batch_shapes=None,
                start_method=None,
                loop_file=SCRIPT,
                loop_line=loops.get(loader.loader, loops[TRAIN_LOADER]),
            )
            for loader in known.loaders
        }
        self._trainers[known.trainer] = _Trainer(facts, loaders)
        yield time, facts

    def _count(self, time: float, wait: BatchWait) -> None:
        trainer = self._trainers[wait.trainer]
        if wait.loader in trainer.loaders:
            trainer.batches.setdefault(wait.loader, []).append(time)
            if wait.loader == TRAIN_LOADER and wait.epoch_position == 0:
                trainer.starts.append(time)

    def _blurred(self, span: PhaseSpan) -> PhaseSpan:
        """Its edges lie in the middle between two looks; one number says where, for the twin that closes it too."""
        chance = random.Random(f"{self._between_looks} {span.start_ns}")
        start_ns = span.start_ns + self._off(chance)
        if span.end_ns is None:
            return replace(span, start_ns=start_ns)
        end_ns = max(start_ns + 1, span.end_ns + self._off(chance))
        waits = span.wait_seconds
        if waits is not None:
            looks = max(1, round((end_ns - start_ns) / 1e9 / self._between_looks))
            share = min(1.0, waits / max((span.end_ns - span.start_ns) / 1e9, 1e-9))
            hits = sum(self._rng.random() < share for _ in range(looks))
            waits = (end_ns - start_ns) / 1e9 * hits / looks
        return replace(span, start_ns=start_ns, end_ns=end_ns, wait_seconds=waits, bytes=None)

    def _off(self, chance: random.Random) -> int:
        return round((chance.random() - 0.5) * self._between_looks * 1e9)
