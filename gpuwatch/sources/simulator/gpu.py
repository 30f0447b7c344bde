"""A GPU as its sensors see it: windows over busy time, power that follows load, heat that follows power."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from gpuwatch.samples import GpuSample
from gpuwatch.sources.simulator.scenarios import GpuSpec

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
    busy_seconds: float = 0.0


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
        now.busy_seconds += busy * seconds
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
