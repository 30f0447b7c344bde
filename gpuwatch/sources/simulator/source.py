"""The source that plays a scenario: a seeded model of machine and run, advanced to the clock it is asked with."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable

from gpuwatch.samples import Sample, WorkerFetch
from gpuwatch.sources.simulator import facts
from gpuwatch.sources.simulator.focus import SimulatedFocus
from gpuwatch.sources.simulator.gpu import GpuModel
from gpuwatch.sources.simulator.host import HostModel
from gpuwatch.sources.simulator.loader import BatchQueue
from gpuwatch.sources.simulator.looks import Looks, candidates
from gpuwatch.sources.simulator.parameters import Scenario
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.training import Rank, Training

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
        self._looks = self._looks_from_outside() if self.scenario.attached else None
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
        known = sample if self._looks is None else self._looks.seen(sample)
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

    def _looks_from_outside(self) -> Looks:
        workers, trainer = self.scenario.loader.num_workers, facts.trainer_id(0)
        return Looks(workers, random.Random(self._rng.random()), self._to_ns, trainer)

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
        if self._looks is not None:
            for seen in self._looks.second(end - 1, end):
                self._emit(end, seen)
            if self._host_polls % _STATUS_SECONDS == 1:
                self._emit(end, candidates(self._to_ns(end), end, self.scenario.loader.num_workers))
