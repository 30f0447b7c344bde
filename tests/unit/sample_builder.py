"""Builds the samples that timeline and monitor tests feed in. Moments and durations are seconds after START_NS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

from gpuwatch.samples import (
    BatchCount,
    Candidate,
    Candidates,
    CurrentLine,
    GpuFacts,
    GpuProcess,
    GpuSample,
    GpuStatus,
    HostSample,
    LineCount,
    LoaderFacts,
    PhaseKind,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    StackTally,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
)
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GpuWindow, RankWindow, Scene

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
GPU = "GPU-0"
TRAINER = "4711.1"


def at(seconds: float) -> int:
    """The monotonic time this many seconds after the start."""
    return START_NS + round(seconds * SECOND)


def gpu_facts(index: int = 0, **fields: Any) -> GpuFacts:
    """A GPU of 700 W."""
    usual: dict[str, Any] = {"time_ns": at(0), "uuid": f"GPU-{index}", "index": index, "name": "H100"}
    return GpuFacts(**(usual | fields))


def poll(seconds: float, uuid: str = GPU, **fields: Any) -> GpuSample:
    """One poll of a GPU."""
    return GpuSample(time_ns=at(seconds), uuid=uuid, **fields)


def polls(times: Iterable[float], uuid: str = GPU, **fields: Any) -> list[GpuSample]:
    """The same poll again and again."""
    return [poll(seconds, uuid, **fields) for seconds in times]


def ring(values: Sequence[float], end: float, spacing: float) -> tuple[tuple[int, float], ...]:
    """A drained ring whose newest value was taken at `end`."""
    first = end - spacing * (len(values) - 1)
    return tuple((at(first + place * spacing), value) for place, value in enumerate(values))


def gpu_processes(seconds: float, *pids: int, uuid: str = GPU) -> GpuStatus:
    """The processes that NVML sees on a GPU."""
    return GpuStatus(time_ns=at(seconds), uuid=uuid, processes=tuple(GpuProcess(host_pid=pid, pid=pid) for pid in pids))


def loader(**fields: Any) -> LoaderFacts:
    """A training loader without workers."""
    return LoaderFacts(**({"loader": 1, "num_workers": 0, "batch_size": 32, "role": "train"} | fields))


def run_facts(pid: int = 4711, **fields: Any) -> RunFacts:
    """A trainer that has introduced itself."""
    usual: dict[str, Any] = {
        "time_ns": at(0),
        "trainer": f"{pid}.1",
        "pid": pid,
        "start_ticks": 1,
        "command": ("python", "train.py"),
        "loaders": (loader(),),
    }
    return RunFacts(**(usual | fields))


def steps(
    count: int,
    *,
    start: float = 0.0,
    period: float | Sequence[float] = 0.1,
    wait: float | Sequence[float] | None = 0.0,
    first: int = 1,
    trainer: str = TRAINER,
    **fields: Any,
) -> list[StepEnd]:
    """Steps one after the other; a sequence is repeated."""
    made: list[StepEnd] = []
    clock = start
    for number, seconds, waited in zip(
        range(first, first + count), _repeated(period, count), _repeated(wait, count), strict=True
    ):
        assert seconds is not None
        usual = {"wait_seconds": waited, "samples": 32, "epoch_position": 100 + number, "loader": 1}
        made.append(StepEnd(trainer, number, at(clock), at(clock + seconds), **(usual | fields)))
        clock += seconds
    return made


def _repeated(value: float | Sequence[float] | None, count: int) -> list[float | None]:
    if value is None or isinstance(value, int | float):
        return [value] * count
    return list(islice(cycle(value), count))


def phase(kind: PhaseKind, start: float, end: float | None, *, trainer: str = TRAINER, **fields: Any) -> PhaseSpan:
    """A phase; without an end it still lasts."""
    return PhaseSpan(trainer, kind, at(start), None if end is None else at(end), **fields)


def fetch(
    worker: int, start: float, end: float, cpu: float | None = None, trainer: str = TRAINER, **fields: Any
) -> WorkerFetch:
    """A batch made by a worker."""
    return WorkerFetch(trainer, 9000 + worker, worker, at(start), at(end), cpu, **fields)


def sampled_facts(pid: int = 4711, **fields: Any) -> RunFacts:
    """A trainer without a hook whose stacks are read."""
    return run_facts(pid, **({"visibility": "sampled", "how_to_see_more": "restart it with `gpuwatch run`"} | fields))


def line(number: int, samples: int, phase: str = "forward", **fields: Any) -> LineCount:
    """Samples on one line of train.py."""
    usual: dict[str, Any] = {"file": "/home/user/train.py", "function": "main"}
    return LineCount(phase=phase, line=number, samples=samples, **(usual | fields))


def tally(
    end: float, phases: dict[str, int], *, seconds: float = 1.0, trainer: str = TRAINER, **fields: Any
) -> StackTally:
    """The looks of the second up to `end`, by phase."""
    return StackTally(trainer, at(end - seconds), at(end), sum(phases.values()), phases, **fields)


def tallies(
    seconds: int, phases: dict[str, int], *, start: float = 0.0, trainer: str = TRAINER, **fields: Any
) -> list[StackTally]:
    """The same second of looks again and again."""
    return [tally(start + second + 1, phases, trainer=trainer, **fields) for second in range(seconds)]


def count(seconds: float, batches: int, *, loader: int = 1, trainer: str = TRAINER, **fields: Any) -> BatchCount:
    """A reading of a training loader's counter."""
    return BatchCount(trainer, at(seconds), loader, **({"role": "train", "batches": batches} | fields))


def counts(seconds: int, per_second: float, *, start: float = 0.0, **fields: Any) -> list[BatchCount]:
    """Readings once a second of a counter that grows evenly from 0; the first one is at the start."""
    return [count(start + second, int(second * per_second), **fields) for second in range(seconds + 1)]


def current_line(seconds: float, phase: str = "forward", *, since: float = 0.0, **fields: Any) -> CurrentLine:
    """Where the training thread stood."""
    usual: dict[str, Any] = {"file": "/home/user/train.py", "line": 20, "function": "main"}
    return CurrentLine(
        **({"trainer": TRAINER, "time_ns": at(seconds), "since_ns": at(since), "phase": phase} | usual | fields)
    )


def candidate(pid: int = 4711, **fields: Any) -> Candidate:
    """A process that trains and whose stacks can be read."""
    usual: dict[str, Any] = {
        "start_ticks": 1,
        "command": ("python", "train.py"),
        "user": "ada",
        "age_seconds": 60.0,
        "visibility": "sampled",
        "why": "torch is loaded",
    }
    return Candidate(pid=pid, **(usual | fields))


def candidates(seconds: float, *found: Candidate) -> Candidates:
    """The processes of this machine that train."""
    return Candidates(at(seconds), found)


def process(seconds: float, pid: int = 4711, **fields: Any) -> ProcessSample:
    """A training process."""
    return ProcessSample(time_ns=at(seconds), pid=pid, start_ticks=1, **fields)


def host(seconds: float, **fields: Any) -> HostSample:
    """The machine."""
    return HostSample(time_ns=at(seconds), **fields)


def ended(seconds: float, trainer: str = TRAINER, how: Any = "exited") -> TrainerEnded:
    """The end of a trainer."""
    return TrainerEnded(trainer, at(seconds), how)


def timeline(*samples: Any, interval_seconds: float = 1.0) -> Timeline:
    """A timeline of these samples; lists of them are flattened."""
    history = Timeline(started_ns=START_NS, interval_seconds=interval_seconds)
    for sample in samples:
        history.extend(sample if isinstance(sample, list | tuple) else [sample])
    return history


def scene(history: Timeline, seconds: float, window: float = 60.0, **options: Any) -> Scene:
    """The scene at a moment."""
    return history.scene(at(seconds), window, **options)


def gpu_at(history: Timeline, seconds: float, window: float = 60.0) -> GpuWindow:
    """The only GPU's window."""
    (found,) = scene(history, seconds, window).gpus
    return found


def rank_at(history: Timeline, seconds: float, window: float = 60.0) -> RankWindow:
    """The only trainer's window."""
    (run,) = scene(history, seconds, window).runs
    (found,) = run.ranks
    return found
