"""A machine made up at random whose every sample is known: with unknowns, pauses, gaps, repetitions and sentinels."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from gpuwatch.samples import (
    NO_LOADER,
    BatchCount,
    GpuFacts,
    GpuGap,
    GpuSample,
    LoaderFacts,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    Sample,
    StackTally,
    StepEnd,
)
from gpuwatch.timeline.windows import GPU_DISTRIBUTIONS

SECOND_NS = 1_000_000_000
START_NS = 7_200 * SECOND_NS
MINUTES = 4
BATCH = 8


@dataclass(frozen=True)
class Shape:
    """What the made-up machine does; probabilities are per step or poll."""

    seed: int
    ranks: int = 1
    loaders: int = 1
    accumulation: int = 1
    unknown_wait: float = 0.0
    unknown_samples: float = 0.0
    unknown_parts: float = 0.0
    overlong_parts: float = 0.0
    phases: float = 0.0
    gaps: float = 0.0
    sent_again: float = 0.0
    sentinels: float = 0.0
    stopped: bool = False
    silent_seconds: int = 0


_SHARES = st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0))
SHAPES = st.builds(
    Shape,
    seed=st.integers(0, 2**16),
    ranks=st.integers(1, 3),
    loaders=st.integers(1, 2),
    accumulation=st.sampled_from((1, 4)),
    unknown_wait=_SHARES,
    unknown_samples=_SHARES,
    unknown_parts=_SHARES,
    overlong_parts=st.sampled_from((0.0, 0.1)),
    phases=st.sampled_from((0.0, 0.05, 0.3)),
    gaps=_SHARES,
    sent_again=st.sampled_from((0.0, 0.1)),
    sentinels=st.sampled_from((0.0, 0.2)),
    stopped=st.booleans(),
    silent_seconds=st.sampled_from((0, 30, 90)),
)


@dataclass(frozen=True)
class AttachedShape:
    """What a run without a hook does; probabilities are per second."""

    seed: int
    ranks: int = 1
    loaders: int = 1
    counts_iterations: bool = False
    batch_size: int | None = BATCH
    waits: bool = True
    pauses: float = 0.0
    missed: float = 0.0
    begins_over: float = 0.0
    stopped: bool = False


ATTACHED_SHAPES = st.builds(
    AttachedShape,
    seed=st.integers(0, 2**16),
    ranks=st.integers(1, 2),
    loaders=st.integers(1, 2),
    counts_iterations=st.booleans(),
    batch_size=st.sampled_from((None, BATCH)),
    waits=st.booleans(),
    pauses=st.sampled_from((0.0, 0.03)),
    missed=st.sampled_from((0.0, 0.05)),
    begins_over=st.sampled_from((0.0, 0.05)),
    stopped=st.booleans(),
)
LOOKS = 100
"""In each second: figures that weigh samples and those that weigh seconds then agree."""


@dataclass
class AttachedMachine:
    """Samples by the second in which they arrive, of a run whose stacks and counters are read from outside."""

    shape: AttachedShape
    by_second: dict[int, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.chance = random.Random(self.shape.seed)
        for rank in range(self.shape.ranks):
            self._rank(rank)

    def _rank(self, rank: int) -> None:
        shape, chance = self.shape, self.chance
        trainer, pid = f"{4711 + rank}.99", 4711 + rank
        numbers = [NO_LOADER] if shape.counts_iterations else list(range(1, shape.loaders + 1))
        loaders = tuple(LoaderFacts(each, batch_size=shape.batch_size, role="train") for each in numbers if each)
        counted, pause_until, stop = dict.fromkeys(numbers, 0), 0, range(130, 141) if shape.stopped else range(0)
        for second in range(MINUTES * 60):
            now_ns, samples = START_NS + second * SECOND_NS, self.by_second[second]
            if not second:
                samples.append(
                    RunFacts(now_ns, trainer, pid, 99, ("python", "train.py"), group="job", rank=rank,
                             visibility="sampled", loaders=loaders)
                )  # fmt: skip
            if shape.stopped:
                state = "T" if second in stop else "R"
                samples.append(ProcessSample(now_ns, pid, 99, state=state))
            if second in stop:
                continue
            if chance.random() < shape.pauses:
                pause_until = second + chance.choice((3, 20))
            if second < pause_until:
                phases = {"eval": LOOKS}
            else:
                waiting = chance.choice((0, 20, 60)) if shape.waits else 0
                parts = {"forward": 20, "backward": 10, "optimizer": 5, "copy": chance.choice((0, 5))}
                phases = {"wait": waiting, **parts}
                phases["other"] = LOOKS - sum(phases.values())
                for number in numbers:
                    grown = chance.randrange(9)
                    counted[number] = grown if chance.random() < shape.begins_over else counted[number] + grown
            if second:
                samples.append(StackTally(trainer, now_ns - SECOND_NS, now_ns, LOOKS, phases))
            for number in numbers if not second or chance.random() >= shape.missed else ():
                samples.append(BatchCount(trainer, now_ns, number, "train", counted[number]))


@dataclass
class Machine:
    """Samples by the second in which they arrive."""

    shape: Shape
    by_second: dict[int, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.chance = random.Random(self.shape.seed)
        for rank in range(self.shape.ranks):
            self._rank(rank)
        self._gpu()

    def _put(self, time_ns: int, sample: Sample) -> None:
        self.by_second[-(-(time_ns - START_NS) // SECOND_NS)].append(sample)

    def _rank(self, rank: int) -> None:
        shape, chance = self.shape, self.chance
        trainer = f"{4711 + rank}.99"
        loaders = tuple(LoaderFacts(each, batch_size=BATCH, role="train") for each in range(shape.loaders))
        self._put(
            START_NS,
            RunFacts(START_NS, trainer, 4711 + rank, 99, ("python", "train.py"), group="job", rank=rank, device="cuda",
                     gpu_uuids=("GPU-0",), loaders=loaders, gpu_gap_measured=True),
        )  # fmt: skip
        now_ns, last_ns, number = START_NS, START_NS + (MINUTES * 60 - 5) * SECOND_NS, 0
        silent_ns = START_NS + 70 * SECOND_NS if shape.silent_seconds else None
        stop_ns = START_NS + 130 * SECOND_NS if shape.stopped and not rank else None
        while now_ns < last_ns:
            number += 1
            training = chance.choice((0.25, 0.5, 0.75, 2.0))
            pause = chance.choice((0.25, 1.5)) if chance.random() < shape.phases else 0.0
            start_ns = now_ns
            now_ns += round((training + pause) * SECOND_NS)
            if silent_ns is not None and now_ns > silent_ns:
                now_ns, start_ns, silent_ns = now_ns + shape.silent_seconds * SECOND_NS, now_ns, None
                continue
            if pause:
                self._put(now_ns, PhaseSpan(trainer, "eval", start_ns, start_ns + round(pause * SECOND_NS)))
            if stop_ns is not None and start_ns <= stop_ns < now_ns:
                now_ns = self._stop(now_ns)
                stop_ns = None
            step = self._step(trainer, number, start_ns, now_ns, training, pause)
            self._put(now_ns, step)
            if chance.random() < shape.sent_again:
                self._put(now_ns + 2 * SECOND_NS, step)
            if chance.random() < shape.gaps:
                late_ns = now_ns + chance.choice((0, 3)) * SECOND_NS
                self._put(late_ns, GpuGap(trainer, number, training * chance.choice((0.0, 0.25, 0.5, 1.5))))

    def _stop(self, now_ns: int) -> int:
        """Stopped for 9 s in the middle of a step, as /proc shows it once a second."""
        for second in range(1, 9):
            self._put(now_ns + second * SECOND_NS, ProcessSample(now_ns + second * SECOND_NS, 4711, 99, state="T"))
        end_ns = now_ns + 10 * SECOND_NS
        self._put(end_ns, ProcessSample(end_ns, 4711, 99, state="R"))
        return end_ns

    def _step(self, trainer: str, number: int, start_ns: int, end_ns: int, training: float, pause: float) -> StepEnd:
        shape, chance = self.shape, self.chance

        def part(most: float, unknown: float) -> float | None:
            seconds = training * chance.choice((0.0, 0.5 * most, most))
            if shape.overlong_parts and chance.random() < shape.overlong_parts:
                seconds = 3 * training
            return None if chance.random() < unknown else seconds

        samples = BATCH * shape.accumulation
        return StepEnd(
            trainer,
            number,
            start_ns,
            end_ns,
            part(0.5, shape.unknown_wait),
            loader=chance.randrange(shape.loaders),
            samples=None if chance.random() < shape.unknown_samples else samples,
            epoch_position=number % 50,
            batches=shape.accumulation,
            phase_seconds=pause,
            copy_seconds=part(0.125, shape.unknown_parts),
            forward_seconds=part(0.25, shape.unknown_parts),
            backward_seconds=part(0.5, shape.unknown_parts),
            optimizer_seconds=part(0.125, shape.unknown_parts),
        )

    def _gpu(self) -> None:
        chance = self.chance
        self._put(START_NS, GpuFacts(START_NS, "GPU-0", 0, "H100", memory_total_bytes=2**36))
        throttled_ns = 0
        for second in range(MINUTES * 60):
            now_ns = START_NS + second * SECOND_NS
            throttled_ns += chance.choice((0, SECOND_NS // 2, SECOND_NS)) if second < 150 else 0

            def reading(value: float, sentinel: float) -> float | None:
                kind = chance.random()
                return None if kind < 0.1 else sentinel if kind < 0.1 + self.shape.sentinels else value

            gauges: dict[str, Any] = {
                name: reading(float(chance.randrange(101)), 9.223372036854776e18) for name in GPU_DISTRIBUTIONS
            }
            gauges["memory_used_bytes"] = chance.randrange(2**20) * 2**16
            self._put(
                now_ns,
                GpuSample(
                    now_ns,
                    "GPU-0",
                    utilization_percent=reading(float(chance.randrange(101)), 255.0),
                    power_watts=reading(chance.randrange(700) / 2, 4e9),
                    energy_joules=second * 300.0,
                    throttled_power_ns=throttled_ns,
                    **gauges,
                ),
            )
