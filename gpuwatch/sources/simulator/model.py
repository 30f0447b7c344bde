"""The simulated machine and its training: GPUs as their sensors see them, and the loop that uses them.

Sensors report windows over busy time, power that follows load, heat that follows power. The loop does next batch,
launch, optimizer and phases, in lock-step over ranks that reduce their gradients. Its DataLoader is a queue: batches
are asked for in order, made by N workers in turn, and handed over in order.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuwatch.samples import BatchWait, GpuGap, GpuSample, PhaseSpan, RunMemory, Sample, StepEnd, WorkerFetch
from gpuwatch.sources.simulator.scenarios import GpuSpec, LoaderSpec, PhaseSpec, Scenario

SENSOR_SECONDS = 1 / 6
"""The shortest averaging window of NVML's utilization, and the spacing of its ring."""

_POWER_LAG_SECONDS = 0.12
_HEAT_LAG_SECONDS = 14.0
_CLOCK_PER_CELSIUS, _CLOCK_STEP = 0.006, 0.03  # change per reading and degree from the limit, and at most
_CLOCK_LEAST = 0.3
_START_BELOW_LIMIT_CELSIUS = 10.0
_REASON_IDLE = 0x1
_REASON_POWER_CAP = 0x4
_REASON_SW_THERMAL = 0x20


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of GPU work: how much of it a kernel runs, and what that kernel does.

    `intensity` is the share of the power limit that it draws, `tensor_percent` how busy it keeps the tensor cores.
    """

    start: float
    end: float
    busy_share: float
    intensity: float
    tensor_percent: float = 0.0


@dataclass(slots=True)
class Reading:
    """The counters and sensors as of `time`."""

    time: float
    utilization_percent: float = 0.0
    tensor_percent: float = 0.0
    power_watts: float = 0.0
    temperature_celsius: float = 0.0
    clock_share: float = 1.0
    reasons: int = _REASON_IDLE
    energy_joules: float = 0.0
    power_capped_seconds: float = 0.0
    thermal_seconds: float = 0.0


@dataclass(slots=True)
class GpuModel:
    """One simulated GPU. Work is queued in time order; `advance` lets the sensors look at it."""

    spec: GpuSpec
    inlet_celsius: float
    heat_resistance: float  # 1: as designed; more where air cannot pass
    rng: random.Random
    now: Reading = field(init=False)
    free_at: float = 0.0
    received_bytes: float = 0.0
    utilization_ring: list[tuple[float, float]] = field(default_factory=list)
    power_ring: list[tuple[float, float]] = field(default_factory=list)
    _work: deque[Work] = field(default_factory=deque)
    _readings: int = 0
    _cool_clock: float = 1.0  # the share of the highest clock that heat allows

    def __post_init__(self) -> None:
        self.now = Reading(time=0.0, power_watts=self.spec.idle_watts, temperature_celsius=self.inlet_celsius + 8)

    def warm_up(self, intensity: float) -> None:
        """Sets the heat that a run at `intensity` leaves, but cool enough to show the GPU at its full clock first."""
        self.now.temperature_celsius = min(
            self.inlet_celsius + self._rise(self.spec.power_limit_watts * intensity),
            self.spec.slowdown_celsius - _START_BELOW_LIMIT_CELSIUS,
        )

    def queue(self, work: Work) -> None:
        """Adds work that starts no earlier than what is queued."""
        if work.end > work.start:
            self._work.append(work)
            self.free_at = max(self.free_at, work.end)

    def _rise(self, watts: float) -> float:
        return self.spec.full_load_celsius * self.heat_resistance * watts / self.spec.power_limit_watts

    @property
    def clock_share(self) -> float:
        """The clock now, as a share of the highest."""
        return self.now.clock_share

    def read_sensors(self, until: float) -> None:
        """Takes the readings up to `until`."""
        while (time := (self._readings + 1) * SENSOR_SECONDS) <= until:
            self._readings += 1
            busy, intensity, self.now.tensor_percent = self._load(self.now.time, time)
            self._sense(time, busy, intensity)

    def _load(self, start: float, end: float) -> tuple[float, float, float]:
        """Means over the stretch: busy share, share of the power limit, tensor activity in percent."""
        busy = drawn = tensor = 0.0
        for work in self._work:
            if work.start >= end:
                break
            overlap = (min(end, work.end) - max(start, work.start)) * work.busy_share
            if overlap > 0:
                busy += overlap
                drawn += overlap * work.intensity
                tensor += overlap * work.tensor_percent
        while self._work and self._work[0].end <= end:
            self._work.popleft()
        return min(1.0, busy / (end - start)), drawn / (end - start), tensor / (end - start)

    def _sense(self, time: float, busy: float, intensity: float) -> None:
        spec, now = self.spec, self.now
        seconds = time - now.time
        # Dynamic power goes with clock times voltage squared; over the usual range that is about the clock to the 2.2.
        wanted = spec.idle_watts + max(0.0, spec.power_limit_watts * intensity - spec.idle_watts * busy) * (
            now.clock_share**2.2
        )
        power = now.power_watts + (wanted - now.power_watts) * (1 - math.exp(-seconds / _POWER_LAG_SECONDS))
        power *= 1 + self.rng.gauss(0, 0.006)
        capped = power >= spec.power_limit_watts
        power = min(power, spec.power_limit_watts)
        heat = now.temperature_celsius
        heat += (self.inlet_celsius + self._rise(power) - heat) * (1 - math.exp(-seconds / _HEAT_LAG_SECONDS))
        step = max(-_CLOCK_STEP, min(_CLOCK_STEP, _CLOCK_PER_CELSIUS * (spec.slowdown_celsius - heat)))
        self._cool_clock = max(_CLOCK_LEAST, min(1.0, self._cool_clock + step))
        hot = self._cool_clock < 1
        now.time = time
        now.utilization_percent = float(round(100 * busy))
        now.power_watts = power
        now.temperature_celsius = heat
        now.clock_share = min(self._cool_clock, 0.97 if capped else 1.0)
        now.reasons = (_REASON_SW_THERMAL if hot else 0) | (_REASON_POWER_CAP if capped else 0)
        if not busy:
            now.reasons |= _REASON_IDLE
        now.energy_joules += power * seconds
        now.power_capped_seconds += seconds if capped else 0.0
        now.thermal_seconds += seconds if hot else 0.0
        self.utilization_ring.append((time, now.utilization_percent))
        self.power_ring.append((time, round(power, 3)))

    def poll(self, uuid: str, origin_ns: int, time_ns: int, memory_used_bytes: int) -> GpuSample:
        """The 1 s lane's sample at `time_ns`, of the latest reading; takes the rings with it."""
        spec, now = self.spec, self.now

        def ring(values: list[tuple[float, float]]) -> tuple[tuple[int, float], ...]:
            return tuple((origin_ns + round(time * 1e9), value) for time, value in values)

        recent = [value for _, value in self.utilization_ring] or [now.utilization_percent]
        busy = sum(recent) / len(recent)
        clock = round(spec.sm_clock_max_mhz * now.clock_share * (1 - abs(self.rng.gauss(0, 0.003))) / 15) * 15
        sample = GpuSample(
            time_ns=time_ns,
            uuid=uuid,
            utilization_percent=now.utilization_percent,
            memory_utilization_percent=float(round(now.utilization_percent * 0.55)),
            power_watts=round(now.power_watts, 3),
            power_window_seconds=0.0,
            energy_joules=round(now.energy_joules, 3),
            memory_used_bytes=memory_used_bytes,
            temperature_celsius=float(round(now.temperature_celsius)),
            memory_temperature_celsius=float(round(now.temperature_celsius + 7)) if spec.has_gpm else None,
            sm_clock_mhz=float(clock),
            event_reasons=now.reasons,
            throttled_power_ns=round(now.power_capped_seconds * 1e9),
            throttled_sw_thermal_ns=round(now.thermal_seconds * 1e9),
            throttled_hw_thermal_ns=0,
            throttled_power_brake_ns=0,
            pcie_tx_bytes=round(self.received_bytes * 0.02),
            pcie_rx_bytes=round(self.received_bytes),
            sm_activity_percent=round(busy * 0.84, 1) if spec.has_gpm else None,
            tensor_activity_percent=round(now.tensor_percent, 1) if spec.has_gpm else None,
            dram_activity_percent=round(busy * 0.5, 1) if spec.has_gpm else None,
            utilization_ring=ring(self.utilization_ring),
            power_ring=ring(self.power_ring),
            unavailable={} if spec.has_gpm else _WITHOUT_GPM,
        )
        self.utilization_ring.clear()
        self.power_ring.clear()
        return sample


_NO_GPM = "not supported by this GPU (Hopper data-centre GPUs and later)"
_WITHOUT_GPM = {
    "memory_temperature_celsius": "not supported by this GPU",
    "sm_activity_percent": _NO_GPM,
    "tensor_activity_percent": _NO_GPM,
    "dram_activity_percent": _NO_GPM,
}


HAND_OVER_SECONDS = 0.0012
"""Queue, unpickle and pin thread per batch; 1.1-1.5 ms measured with torch 2.13 workers."""

WORKER_START_SECONDS = 0.12
"""Fork, import and first item of a worker; first batches came after 168-383 ms with four workers."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One batch made by one worker; `worker` is -1 for the training process itself."""

    worker: int
    start: float
    end: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Handed:
    """One `next()`: when it was entered, when it returned, and where in the epoch its batch lies."""

    entered: float
    returned: float
    epoch_position: int
    new_epoch: bool


class BatchQueue:
    """The loader of one rank.

    A worker takes its batches in the order they were asked for, and a new one is asked for when one is handed over,
    so `num_workers * prefetch_factor` are under way: this alone gives the lag-N comb of too few workers.
    """

    def __init__(self, spec: LoaderSpec, rng: random.Random, cpu_stretch: float) -> None:
        self._spec = spec
        self._rng = rng
        self._cpu_stretch = cpu_stretch
        self._worker_free = [0.0] * spec.num_workers
        self._ready: deque[float] = deque()
        self._asked = 0
        self._position = -1
        self.epochs = 0
        self.fetches: list[Fetch] = []

    def next(self, now: float) -> Handed:
        """The next batch, entered at `now`. Appends to `fetches` what was made or asked for."""
        new_epoch = self._position < 0 or self._position + 1 >= self._spec.batches_per_epoch
        if new_epoch:
            self._start_epoch(now)
        self._position += 1
        if not self._spec.num_workers:
            made = self._make(-1, now)
            return Handed(now, made.end, self._position, new_epoch)
        ready = self._ready.popleft()
        returned = max(now, ready) + HAND_OVER_SECONDS
        self._ask(returned)
        return Handed(now, returned, self._position, new_epoch)

    def _start_epoch(self, now: float) -> None:
        self._position = -1
        self._ready.clear()
        self._asked = 0
        first = self.epochs == 0
        self.epochs += 1
        if first or not self._spec.persistent_workers:
            self._worker_free = [now + WORKER_START_SECONDS * (1 + 0.5 * i) for i in range(self._spec.num_workers)]
        for _ in range(self._spec.num_workers * self._spec.prefetch_factor):
            self._ask(now)

    def _ask(self, now: float) -> None:
        if self._asked >= self._spec.batches_per_epoch:
            return
        worker = self._asked % self._spec.num_workers
        self._asked += 1
        made = self._make(worker, max(now, self._worker_free[worker]))
        self._worker_free[worker] = made.end
        self._ready.append(made.end)

    def _make(self, worker: int, start: float) -> Fetch:
        spec = self._spec
        seconds = spec.batch_seconds * self._rng.lognormvariate(0.0, spec.spread)
        cpu = seconds * spec.cpu_share
        made = Fetch(worker, start, start + cpu * self._cpu_stretch + seconds - cpu, cpu)
        self.fetches.append(made)
        return made


Emit = Callable[[float, Sample], None]
"""Takes a sample and the moment, in model seconds, at which a monitor would get it."""

TRAIN_LOADER = 1
EVAL_LOADER = 2

_LAUNCH_LATENCY_SECONDS = 0.002
_FORWARD_SHARE = 0.32
_OPTIMIZER_SHARE = 0.06
_REDUCE_INTENSITY = 0.25  # a spinning collective keeps the GPU "100% busy" at low power
_KERNEL_SHARE = (0.96, 0.995)  # even a fed GPU has short stretches between kernels
_GAP_LATE_STEPS = 2  # the hook reads its event pairs two steps later


@dataclass(slots=True)
class Rank:
    """One training process: its loader, its GPU, and the steps it made."""

    index: int
    trainer: str
    queue: BatchQueue
    gpu: GpuModel
    step_ended: float
    worker_pids: tuple[int, ...]
    cpu_busy: list[tuple[float, float, float]]
    """Stretches of the training thread on the CPU: start, end, cores."""
    phase_seconds: float = 0.0
    worker_generation: int = 0


class Training:
    """The run of a scenario. `time` is how far it got; all work before it is queued on the GPUs."""

    def __init__(
        self, scenario: Scenario, ranks: list[Rank], rng: random.Random, emit: Emit, to_ns: Callable[[float], int]
    ) -> None:
        self._scenario = scenario
        self._ranks = ranks
        self._rng = rng
        self._emit = emit
        self._ns = to_ns
        self.steps = 0
        self.hung_at: float | None = None
        self.time = min(rank.step_ended for rank in ranks)

    def advance(self) -> None:
        """One step, and the phase that follows it if one is due; or, when it hangs, a quarter of a second of that."""
        hang_after = self._scenario.hang_after_seconds
        if hang_after is not None and self.time >= hang_after:
            self._hang()
            return
        self._step()
        for phase in self._scenario.phases:
            if self.steps % phase.every_steps == 0:
                self._phase(phase)
        self.time = min(rank.step_ended + rank.phase_seconds for rank in self._ranks)

    def _hang(self) -> None:
        if self.hung_at is None:
            self.hung_at = self.time
        for rank in self._ranks:
            start = max(self.time, rank.gpu.free_at)
            rank.gpu.queue(Work(start, self.time + 0.25, 1.0, _REDUCE_INTENSITY))
            rank.cpu_busy.append((self.time, self.time + 0.25, 1.0))
        self.time += 0.25

    def _step(self) -> None:
        """Every rank's step. The thread may run one step ahead of the GPU, so a wait shorter than that is free."""
        compute, loader = self._scenario.compute, self._scenario.loader
        handed = [self._wait(rank) for rank in self._ranks]
        before = [rank.gpu.free_at for rank in self._ranks]
        own_ends = []
        for rank, batch in zip(self._ranks, handed, strict=True):
            own = compute.gpu_seconds / rank.gpu.clock_share * (1 + abs(self._rng.gauss(0, compute.spread)))
            start = max(rank.gpu.free_at, batch.returned + _LAUNCH_LATENCY_SECONDS)
            rank.gpu.queue(
                Work(
                    start,
                    start + own,
                    self._rng.uniform(*_KERNEL_SHARE),
                    compute.intensity,
                    compute.tensor_activity_percent,
                )
            )
            rank.gpu.received_bytes += loader.batch_bytes
            own_ends.append((own, start + own))
        reduced = max(end for _, end in own_ends)
        self.steps += 1
        for rank, batch, free_before, (own, own_end) in zip(self._ranks, handed, before, own_ends, strict=True):
            rank.gpu.queue(Work(own_end, reduced, 1.0, _REDUCE_INTENSITY))
            self._end_step(rank, batch, free_before, own / (own + reduced - own_end))

    def _wait(self, rank: Rank) -> Handed:
        entered = rank.step_ended + rank.phase_seconds + 5e-6
        handed = rank.queue.next(entered)
        fetches, rank.queue.fetches = rank.queue.fetches, []
        if handed.new_epoch and rank.queue.epochs > 1 and not self._scenario.loader.persistent_workers:
            rank.worker_generation += 1
            rank.worker_pids = tuple(pid + len(rank.worker_pids) for pid in rank.worker_pids)
        for fetch in fetches:
            self._fetched(rank, fetch)
        self._emit(
            handed.returned,
            BatchWait(
                trainer=rank.trainer,
                loader=TRAIN_LOADER,
                role="train",
                start_ns=self._ns(handed.entered),
                end_ns=self._ns(handed.returned),
                epoch_position=handed.epoch_position,
            ),
        )
        return handed

    def _fetched(self, rank: Rank, fetch: Fetch) -> None:
        if fetch.worker < 0:
            cores = fetch.cpu_seconds / (fetch.end - fetch.start)
            rank.cpu_busy.append((fetch.start, fetch.end, cores))
            return
        self._emit(
            fetch.end,
            WorkerFetch(
                trainer=rank.trainer,
                worker_pid=rank.worker_pids[fetch.worker],
                worker=fetch.worker,
                start_ns=self._ns(fetch.start),
                end_ns=self._ns(fetch.end),
                cpu_seconds=fetch.cpu_seconds,
            ),
        )

    def _end_step(self, rank: Rank, batch: Handed, free_before: float, own_share: float) -> None:
        """Ends the step on the CPU: after its launches, or when the GPU is through with the step before."""
        compute, loader = self._scenario.compute, self._scenario.loader
        copy = 0.0004 if loader.pin_memory else loader.batch_bytes / 6e9
        launched = batch.returned + copy + compute.launch_seconds * (1 + abs(self._rng.gauss(0, 0.05)))
        ended = max(launched, free_before)
        rank.cpu_busy.append((batch.returned, launched, 1.0))
        worked = ended - batch.returned - copy
        forward, optimizer = worked * _FORWARD_SHARE * own_share, worked * _OPTIMIZER_SHARE * own_share
        started = rank.step_ended
        self._emit(
            ended,
            StepEnd(
                trainer=rank.trainer,
                number=self.steps,
                start_ns=self._ns(started),
                end_ns=self._ns(ended),
                wait_seconds=batch.returned - batch.entered,
                loader=TRAIN_LOADER,
                samples=loader.batch_size,
                epoch_position=batch.epoch_position,
                phase_seconds=rank.phase_seconds,
                copy_seconds=copy,
                forward_seconds=forward,
                backward_seconds=worked - forward - optimizer,
                optimizer_seconds=optimizer,
            ),
        )
        gap = max(0.0, batch.returned - max(batch.entered, free_before))
        late = _GAP_LATE_STEPS * (ended - started - rank.phase_seconds)
        self._emit(ended + late, GpuGap(trainer=rank.trainer, number=self.steps, seconds=gap))
        if self.steps % 20 == 1:
            self._emit(ended, self._memory(rank, ended))
        rank.step_ended, rank.phase_seconds = ended, 0.0

    def _memory(self, rank: Rank, time: float) -> RunMemory:
        total = self._scenario.gpu.memory_total_bytes
        reserved = int(total * (self._scenario.compute.memory_share - 0.02))
        return RunMemory(
            trainer=rank.trainer,
            time_ns=self._ns(time),
            allocated_peak_bytes=int(reserved * 0.93),
            reserved_peak_bytes=reserved,
            total_bytes=total,
            alloc_retries=0,
            out_of_memory=0,
        )

    def _phase(self, phase: PhaseSpec) -> None:
        """A phase on every rank: it begins when the GPU is through, and shows as an open span, then a closed one."""
        seconds = phase.seconds * (1 + self._rng.gauss(0, 0.03))
        start = max(max(rank.step_ended + rank.phase_seconds, rank.gpu.free_at) for rank in self._ranks)
        end = start + seconds
        for rank in self._ranks:
            self._phase_work(rank, phase, start, end)
            is_eval = phase.kind == "eval"
            opened = PhaseSpan(
                trainer=rank.trainer,
                kind=phase.kind,
                start_ns=self._ns(start),
                end_ns=None,
                loader=EVAL_LOADER if is_eval else None,
                file="/simulated/train.py",
                line=phase.line,
            )
            closed = PhaseSpan(
                trainer=rank.trainer,
                kind=phase.kind,
                start_ns=self._ns(start),
                end_ns=self._ns(end),
                loader=EVAL_LOADER if is_eval else None,
                batches=phase.batches or None,
                wait_seconds=seconds * phase.wait_share if is_eval else None,
                bytes=phase.bytes or None,
                file="/simulated/train.py",
                line=phase.line,
            )
            self._emit(start, opened)
            self._emit(end, closed)
            rank.phase_seconds = end - rank.step_ended

    def _phase_work(self, rank: Rank, phase: PhaseSpec, start: float, end: float) -> None:
        """The GPU in short bursts and the loader's waits between them, or the thread busy with a file."""
        rank.cpu_busy.append((start, end, 0.9))
        if not phase.batches:
            return
        seconds = (end - start) / phase.batches
        for number in range(phase.batches):
            begun = start + number * seconds
            waited = begun + seconds * phase.wait_share
            self._emit(
                waited,
                BatchWait(
                    trainer=rank.trainer,
                    loader=EVAL_LOADER,
                    role="eval",
                    start_ns=self._ns(begun),
                    end_ns=self._ns(waited),
                    epoch_position=number,
                ),
            )
            rank.gpu.queue(Work(waited, waited + seconds * phase.gpu_busy_share, 1.0, 0.55))
