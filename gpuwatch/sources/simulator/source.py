"""The source that plays a scenario: a seeded model of machine and run, advanced to the clock it is asked with.

Where the simulated run has no hook, its stacks are sampled from outside and its loader's batches counted. The watch can
be narrowed to one process, so that the demo of attaching can be attached and detached, too.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    Candidate,
    Candidates,
    CurrentLine,
    GpuGap,
    LineCount,
    ModelFacts,
    RunFacts,
    RunMemory,
    Sample,
    StackTally,
    StepEnd,
    WorkerFetch,
)
from gpuwatch.sources.simulator import facts
from gpuwatch.sources.simulator.facts import COMMAND, START_TICKS, HostModel
from gpuwatch.sources.simulator.gpu import GpuModel
from gpuwatch.sources.simulator.scenarios import SCENARIOS, Scenario
from gpuwatch.sources.simulator.training import TRAIN_LOADER, BatchQueue, Rank, Training


class SimulatedFocus:
    """One process, or everything; no process of this machine is ever sampled.

    Args:
        pid: of the simulated run that is attached to at the start.
    """

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    @property
    def attached_pid(self) -> int | None:
        """Its pid; None where everything is shown."""
        return self._pid

    def attach(self, pid: int | None) -> None:
        """Narrows it to another one."""
        self._pid = pid

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""
        return None if self._pid is None else frozenset((self._pid,))


_SAMPLES_HZ, _WORKER_SAMPLES_HZ = 100, 20
_COST_SECONDS = 0.021  # of samples of one process, per second
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


class OutsideView:
    """Follows the training's own samples, hides those that only a hook gives, and counts samples once a second.

    Args:
        workers: of the loader.
        rng: when each sample is taken.
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
        """What the samples of a second found, the loader's count, and where the thread stands."""
        start_ns, end_ns = self._ns(start), self._ns(end)
        found = [self._at(moment) for moment in self._moments(start_ns, end_ns, _SAMPLES_HZ)]
        parts = [part for part in found if part is not None]
        in_workers = [
            self._fetching(worker, moment)
            for worker in range(self._workers)
            for moment in self._moments(start_ns, end_ns, _WORKER_SAMPLES_HZ)
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
                yield CurrentLine(
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


_STATUS_SECONDS = 5.0
_HEALTH_SECONDS = 30.0


class SimulatorSource:
    """A source of made-up samples, the same for the same scenario, seed and start.

    The first `collect` brings `history_seconds` of past at once, so that a demo opens with a full chart.
    """

    name = "simulator"

    def __init__(
        self,
        scenario: str | Scenario,
        *,
        seed: int = 0,
        start_ns: int,
        history_seconds: float = 0,
        interval_seconds: float = 1.0,
    ) -> None:
        self.scenario = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        self._origin_ns = max(0, start_ns - round(history_seconds * 1e9))
        self._interval = interval_seconds
        self._rng = random.Random(f"{self.scenario.name} {seed}")
        self._pending: list[tuple[float, int, Sample]] = []
        self._order = 0
        self._host = HostModel(self.scenario, self._rng)
        self._gpus = [self._gpu(index) for index in range(self.scenario.gpu_count)]
        self._ranks = [self._rank(index) for index in range(self.scenario.gpu_count)]
        self._training = Training(self.scenario, self._ranks, self._rng, self._emit, self._to_ns)
        self._outside = self._view_from_outside() if self.scenario.attached else None
        self.focus = SimulatedFocus(facts.FIRST_PID) if self.scenario.attached else None
        self._polls = 0
        self._host_polls = 0
        self._closed = False
        self._introduce()

    def fileno(self) -> int | None:
        """No file: only the clock moves this source."""
        return None

    def due_ns(self) -> int | None:
        """When the next sample is there."""
        if self._closed:
            return None
        self._advance(self._to_seconds_of_next())
        return self._to_ns(self._pending[0][0])

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples up to `now_ns`, oldest first."""
        if self._closed:
            return []
        now = (now_ns - self._origin_ns) / 1e9
        self._advance(now)
        samples = []
        while self._pending and self._pending[0][0] <= now:
            samples.append(heapq.heappop(self._pending)[2])
        return samples

    def close(self) -> None:
        """Ends it; there is nothing to release."""
        self._closed = True
        self._pending.clear()

    def _to_ns(self, seconds: float) -> int:
        return self._origin_ns + round(seconds * 1e9)

    def _to_seconds_of_next(self) -> float:
        return self._pending[0][0] if self._pending else self._training.time + self._interval

    def _emit(self, time: float, sample: Sample) -> None:
        if isinstance(sample, WorkerFetch):
            start, end = ((at - self._origin_ns) / 1e9 for at in (sample.start_ns, sample.end_ns))
            self._host.fetched(sample.trainer, sample.worker, start, end, sample.cpu_seconds or 0.0)
        known = sample if self._outside is None else self._outside.seen(sample)
        if known is not None:
            self._order += 1
            heapq.heappush(self._pending, (time, self._order, known))

    def _gpu(self, index: int) -> GpuModel:
        inlet = self.scenario.inlet_celsius + 0.6 * index
        resistance = self.scenario.heat_resistance.get(index, 1.0)
        gpu = GpuModel(self.scenario.gpu, inlet, resistance, random.Random(self._rng.random()))
        gpu.warm_up(self.scenario.compute.intensity)
        return gpu

    def _rank(self, index: int) -> Rank:
        scenario = self.scenario
        wanted = scenario.gpu_count * (1 + scenario.loader.num_workers * scenario.loader.cpu_share)
        queue = BatchQueue(scenario.loader, random.Random(self._rng.random()), max(1.0, wanted / scenario.cpu_count))
        first_worker = facts.FIRST_PID + 100 + index * scenario.loader.num_workers
        return Rank(
            index=index,
            trainer=facts.trainer_id(index),
            queue=queue,
            gpu=self._gpus[index],
            step_ended=0.2,
            worker_pids=tuple(range(first_worker, first_worker + scenario.loader.num_workers)),
            cpu_busy=[],
        )

    def _view_from_outside(self) -> OutsideView:
        workers, trainer = self.scenario.loader.num_workers, facts.trainer_id(0)
        return OutsideView(workers, random.Random(self._rng.random()), self._to_ns, trainer)

    def _introduce(self) -> None:
        start_ns = self._origin_ns
        self._emit(0.0, facts.machine_facts(self.scenario, start_ns))
        self._emit(0.0, facts.nvml_state(self.scenario, start_ns))
        for index in range(self.scenario.gpu_count):
            self._emit(0.0, facts.gpu_facts(self.scenario.gpu, index, start_ns))
        for rank in self._ranks:
            self._emit(0.1, facts.run_facts(self.scenario, rank.index, self._to_ns(0.1)))

    def _advance(self, until: float) -> None:
        """Plays the training past `until`, then lets the sensors look at what is settled."""
        while self._training.time <= until:
            self._training.advance()
            self._read_sensors(self._training.time)

    def _read_sensors(self, until: float) -> None:
        while (poll_time := (self._polls + 1) * self._interval) <= until:
            for gpu in self._gpus:
                gpu.read_sensors(poll_time)
            self._poll(poll_time)
        for gpu in self._gpus:
            gpu.read_sensors(until)
        while self._host_polls + 1 <= until:
            self._poll_host()

    def _poll(self, time: float) -> None:
        self._polls += 1
        time_ns = self._to_ns(time)
        self._emit(time, facts.nvml_state(self.scenario, time_ns))
        for index, gpu in enumerate(self._gpus):
            used = facts.memory_used(self.scenario)
            sample = gpu.poll(facts.gpu_uuid(index), self._origin_ns, time_ns, used)
            self._emit(time, sample)
            if self._is_due(_STATUS_SECONDS):
                busy = sample.utilization_percent or 0.0
                self._emit(time, facts.gpu_status(self.scenario, index, time_ns, busy))
            if self._is_due(_HEALTH_SECONDS):
                self._emit(time, facts.gpu_health(self.scenario.gpu, index, time_ns))

    def _is_due(self, lane_seconds: float) -> bool:
        """Whether a slower lane is read along with this poll."""
        return (self._polls - 1) % max(1, round(lane_seconds / self._interval)) == 0

    def _poll_host(self) -> None:
        self._host_polls += 1
        end = float(self._host_polls)
        for sample in self._host.second(self._ranks, end - 1, end, self._to_ns(end)):
            self._emit(end, sample)
        if self._outside is not None:
            for seen in self._outside.second(end - 1, end):
                self._emit(end, seen)
            if self._host_polls % _STATUS_SECONDS == 1:
                self._emit(end, candidates(self._to_ns(end), end, self.scenario.loader.num_workers))
