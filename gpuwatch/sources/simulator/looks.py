"""What looks from outside see of the simulated run where it has no hook: tallies of stacks, and the loader's count."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    Candidate,
    Candidates,
    GpuGap,
    LineCount,
    ModelFacts,
    RunFacts,
    RunMemory,
    Sample,
    StackTally,
    Standing,
    StepEnd,
    WorkerFetch,
)
from gpuwatch.sources.simulator import facts
from gpuwatch.sources.simulator.host import COMMAND, START_TICKS
from gpuwatch.sources.simulator.training import TRAIN_LOADER

_LOOKS_HZ, _WORKER_LOOKS_HZ = 100, 20
_COST_SECONDS = 0.021  # of looks at one process, per second
_AUGMENT = f"{facts.FOLDER}/augment.py"
_HOW_TO_SEE_MORE = "`gpuwatch run COMMAND` measures steps, waits and the GPU's idle time exactly"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what a thread does at once, with the line that it stands on; None: in no frame of the user's."""

    phase: str
    share: float
    line: LineCount | None


def _line(phase: str, number: int, text: str, leaf: str | None = None, file: str = facts.SCRIPT) -> LineCount:
    return LineCount(phase, file, number, "main" if file == facts.SCRIPT else "__getitem__", 0, text, leaf)


_WAIT = _line("wait", 120, "for images, labels in loader:")
_STEP = (
    _Part("copy", 0.04, _line("copy", 122, "images = images.to(device, non_blocking=True)")),
    _Part("forward", 0.24, _line("forward", 124, "logits = model(images)", "torch/nn/modules/module.py:_call_impl")),
    _Part("backward", 0.30, _line("backward", 127, "loss.backward()", "torch/autograd/graph.py:_engine_run_backward")),
    _Part("optimizer", 0.06, _line("optimizer", 128, "optimizer.step()", "torch/optim/optimizer.py:wrapper")),
    _Part("sync", 0.30, _line("sync", 130, "running += loss.item()")),
    _Part("other", 0.06, _line("other", 131, "seen += labels.size(0)")),
)
_FETCH = (
    _Part("item", 0.22, _line("item", 36, 'image = Image.open(path).convert("RGB")', "PIL/Image.py:convert", _AUGMENT)),
    _Part(
        "item",
        0.48,
        _line("item", 41, "image = image.filter(GaussianBlur(self.radius))", "PIL/ImageFilter.py:filter", _AUGMENT),
    ),
    _Part("item", 0.16, _line("item", 44, "pixels = np.asarray(image, dtype=np.float32) / 255", None, _AUGMENT)),
    _Part("collate", 0.10, None),
    _Part("send", 0.04, None),
)


class Looks:
    """Follows the training's own samples, hides those that only a hook gives, and counts looks once a second.

    Args:
        workers: of the loader.
        rng: when each look falls.
        to_ns: model seconds to the clock's.
    """

    def __init__(self, workers: int, rng: random.Random, to_ns: Callable[[float], int], trainer: str) -> None:
        self._workers = workers
        self._rng = rng
        self._ns = to_ns
        self._trainer = trainer
        self._stretches: list[tuple[int, int, _Part]] = []
        self._fetches: list[tuple[int, int, int]] = []
        self._batch_ends: list[int] = []
        self._waited_until: int | None = None

    def seen(self, sample: Sample) -> Sample | None:
        """The sample as it is known without a hook; None where it is not."""
        if isinstance(sample, RunFacts):
            return _from_outside(sample)
        if isinstance(sample, BatchWait):
            self._stretches.append((sample.start_ns, sample.end_ns, _Part("wait", 1.0, _WAIT)))
            self._batch_ends.append(sample.end_ns)
            self._waited_until = sample.end_ns
        elif isinstance(sample, StepEnd):
            self._step(self._waited_until or sample.start_ns, sample.end_ns)
        elif isinstance(sample, WorkerFetch):
            self._fetches.append((sample.worker, sample.start_ns, sample.end_ns))
        return None if isinstance(sample, BatchWait | StepEnd | WorkerFetch | GpuGap | RunMemory) else sample

    def second(self, start: float, end: float) -> Iterator[Sample]:
        """What the looks of a second found, the loader's count, and where the thread stands."""
        start_ns, end_ns = self._ns(start), self._ns(end)
        found = [self._at(moment) for moment in self._moments(start_ns, end_ns, _LOOKS_HZ)]
        parts = [part for part in found if part is not None]
        in_workers = [
            self._fetching(worker, moment)
            for worker in range(self._workers)
            for moment in self._moments(start_ns, end_ns, _WORKER_LOOKS_HZ)
        ]
        if parts:
            yield StackTally(
                trainer=self._trainer,
                start_ns=start_ns,
                end_ns=end_ns,
                samples=len(parts),
                phases=Counter(part.phase for part in parts),
                lines=_lines(parts),
                rejected=len(found) - len(parts),
                workers=self._workers,
                worker_samples=len(in_workers),
                worker_phases=Counter(part.phase if part else "idle" for part in in_workers),
                worker_lines=_lines([part for part in in_workers if part is not None]),
                cpu_seconds=_COST_SECONDS,
            )
            line = parts[-1].line
            if line is not None:
                yield Standing(
                    self._trainer,
                    end_ns,
                    end_ns - 10_000_000,
                    line.phase,
                    line.file,
                    line.line,
                    line.function,
                    line.text,
                )
        batches = bisect_right(self._batch_ends, end_ns)
        yield BatchCount(self._trainer, end_ns, TRAIN_LOADER, "train", batches, epochs=1)
        self._stretches = [stretch for stretch in self._stretches if stretch[1] > end_ns]
        self._fetches = [fetch for fetch in self._fetches if fetch[2] > end_ns]

    def _step(self, start_ns: int, end_ns: int) -> None:
        moment = float(start_ns)
        for part in _STEP:
            after = moment + part.share * (end_ns - start_ns)
            self._stretches.append((round(moment), round(after), part))
            moment = after

    def _moments(self, start_ns: int, end_ns: int, count: int) -> list[int]:
        """Jittered, one in each equal part of the second."""
        width = (end_ns - start_ns) / count
        return [start_ns + round((number + self._rng.random()) * width) for number in range(count)]

    def _at(self, moment_ns: int) -> _Part | None:
        return next((part for start, end, part in self._stretches if start <= moment_ns < end), None)

    def _fetching(self, worker: int, moment_ns: int) -> _Part | None:
        if not any(number == worker and start <= moment_ns < end for number, start, end in self._fetches):
            return None
        return self._rng.choices(_FETCH, [part.share for part in _FETCH])[0]


def candidates(time_ns: int, age_seconds: float, workers: int) -> Candidates:
    """The run, and another user's that may not be read."""
    own = Candidate(
        pid=facts.FIRST_PID,
        start_ticks=START_TICKS,
        command=tuple(COMMAND.split()),
        user="ana",
        age_seconds=61_000.0 + age_seconds,
        visibility="sampled",
        why=f"it computes on GPU 0, and {workers} DataLoader workers run below it",
        workers=workers,
        gpu_uuids=(facts.gpu_uuid(0),),
        how_to_see_more=_HOW_TO_SEE_MORE,
    )
    other = Candidate(
        pid=facts.FIRST_PID + 2_000,
        start_ticks=START_TICKS + 1,
        command=("python", "finetune.py"),
        user="ben",
        age_seconds=1_300.0 + age_seconds,
        visibility="process",
        why="libtorch is in its memory",
        refusal="it belongs to another user",
        how_to_see_more="run gpuwatch with sudo to read its stacks",
    )
    return Candidates(time_ns, (own, other))


def _from_outside(known: RunFacts) -> RunFacts:
    """What the reader finds of what a hook would say."""
    loaders = tuple(
        replace(
            loader, batch_bytes=None, batch_shape=None, start_method=None, loop_file=_WAIT.file, loop_line=_WAIT.line
        )
        for loader in known.loaders
    )
    return replace(
        known,
        loaders=loaders,
        model=ModelFacts(),
        torch_threads=None,
        gpu_gap_measured=False,
        visibility="sampled",
        how_to_see_more=_HOW_TO_SEE_MORE,
    )


def _lines(parts: list[_Part]) -> tuple[LineCount, ...]:
    counted = Counter(part.line for part in parts if part.line is not None)
    return tuple(replace(line, samples=count) for line, count in counted.most_common())
