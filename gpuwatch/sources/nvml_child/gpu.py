"""One whole GPU: its readings by lane, and the samples made of them.

At the default interval this is 6.8 to 7.7 calls a second (benchmarks/nvml_calls.py): 4 on every poll (utilization
ring, fields, memory, SM clock), 3 to 5 on every other one, 5 to 7 every 5 to 10 s, 8 every 30 to 60 s.
"""

from __future__ import annotations

import pynvml

from gpuwatch.sources.nvml_child import fields, reasons, rings
from gpuwatch.sources.nvml_child.calls import Caller
from gpuwatch.sources.nvml_child.device import Device, Draft, Record
from gpuwatch.sources.nvml_child.driver import Driver
from gpuwatch.sources.nvml_child.fields import Fields
from gpuwatch.sources.nvml_child.gpm import METRICS, Gpm
from gpuwatch.sources.nvml_child.lanes import Lanes, Reading
from gpuwatch.sources.nvml_child.nvlink import TOTALS, NvLink
from gpuwatch.sources.nvml_child.processes import PidMap, Processes, unmapped_reason
from gpuwatch.sources.nvml_child.rings import Ring, StampClock
from gpuwatch.sources.nvml_child.sanity import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COUNTERS = {
    "energy_joules": fields.ENERGY,
    "pcie_tx_bytes": fields.PCIE_TX,
    "pcie_rx_bytes": fields.PCIE_RX,
    "throttled_power_ns": fields.THROTTLED_POWER,
    "throttled_sw_thermal_ns": fields.THROTTLED_SW_THERMAL,
    "throttled_hw_thermal_ns": fields.THROTTLED_HW_THERMAL,
    "throttled_power_brake_ns": fields.THROTTLED_POWER_BRAKE,
}
_HEALTH = {
    "ecc_corrected_volatile": (fields.ECC_CORRECTED,),
    "ecc_uncorrected_volatile": (fields.ECC_UNCORRECTED,),
    "remapped_rows_uncorrectable": (fields.REMAPPED_UNCORRECTABLE,),
    "pcie_replays": (fields.PCIE_REPLAYS,),
    "remap_pending": (fields.REMAP_PENDING,),
    "remap_failed": (fields.REMAP_FAILED,),
    "recovery_action": (fields.RECOVERY_ACTION,),
    "retired_pages": (fields.RETIRED_UNCORRECTABLE, fields.RETIRED_CORRECTABLE),
}
"""What is the sum of which fields: unknown as soon as one of them is."""
_RECOVERY = ("none", "reset the GPU", "restart the machine", "drain peer-to-peer traffic", "drain and reset the GPU",
             "recover the IMEX domain", "reset the bus", "restart the system")  # fmt: skip
Entries = list[tuple[int, float]]
_UTILIZATION = ("utilization_percent", "memory_utilization_percent")


class Gpu(Device):
    """Everything that is read of one GPU. `facts` are those of GpuFacts; they may be completed later."""

    def __init__(self, caller: Caller, lanes: Lanes, facts: dict[str, Any], driver: Driver, pids: PidMap) -> None:
        super().__init__(caller, lanes)
        self.facts = facts
        self.index: int = facts["index"]
        self.pci_bus_id: str | None = facts["pci_bus_id"]
        self.mig: bool = facts["mig"]
        self.facts_may_come = False
        self._pids = pids
        self._counters = {name: Counter(caller.ledger) for name in _COUNTERS}
        self._every_poll(caller, lanes, driver)
        self._slower(lanes, driver)

    def _every_poll(self, caller: Caller, lanes: Lanes, driver: Driver) -> None:
        often, alternate = lanes.every_poll, lanes.alternate
        self._sensors = Fields(caller, fields.SENSORS)
        stamps = StampClock()
        self._utilization_ring = Ring(caller, driver, rings.UTILIZATION, stamps)
        self._utilizations = self.made(often, self._utilization_ring.drain)
        self._rates = self.reading(often, ("nvmlDeviceGetUtilizationRates",))
        self._values = self.made(often, self._sensors.read)
        self._power_usage = self.reading(often, ("nvmlDeviceGetPowerUsage",))
        self._memory = self.reading(
            often, ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",)
        )
        self._sm_clock = self.reading(often, ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))
        self._temperature = self.reading(
            alternate, ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), ("nvmlDeviceGetTemperatureV", 0)
        )
        self._event_reasons = self.reading(
            alternate,
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        self._powers = self.made(alternate, Ring(caller, driver, rings.POWER, stamps).drain, offset=0.5)
        self._gpm = self.made(alternate, Gpm(caller).read, offset=0.5)

    def _slower(self, lanes: Lanes, driver: Driver) -> None:
        self._process_list = Processes(self.caller, driver, self._pids, self._utilization_ring)
        self._processes = self.made(lanes.slow, self._process_list.read)
        self._memory_clock = self.reading(lanes.slow, ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM))
        self._fan = self.reading(lanes.slow, ("nvmlDeviceGetFanSpeed",))
        self._performance_state = self.reading(lanes.slow, ("nvmlDeviceGetPerformanceState",))
        self._pcie_generation = self.reading(lanes.lazy, ("nvmlDeviceGetCurrPcieLinkGeneration",))
        self._pcie_width = self.reading(lanes.lazy, ("nvmlDeviceGetCurrPcieLinkWidth",))
        self._health = Fields(self.caller, fields.HEALTH)
        self._health_values = self.made(lanes.rare, self._health.read)
        self._power_limit = self.reading(lanes.rare, ("nvmlDeviceGetEnforcedPowerLimit",))
        self._application_clock = self.reading(2 * lanes.rare, ("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_SM))
        self.mig_mode = self.reading(lanes.rare, ("nvmlDeviceGetMigMode",))
        nvlink = NvLink(self.caller, self.facts.get("compute_capability"))
        self._links = self.made(lanes.rare if nvlink.is_scoped else 2 * lanes.rare, nvlink.links)
        self._link_errors = self.made(lanes.rare, nvlink.errors)

    def read(self, now: float) -> list[Record]:
        """Polls what is due: always a GpuSample, sometimes a GpuStatus and a GpuHealth."""
        first = [self._values, self._memory, self._sm_clock, self._temperature, self._event_reasons]
        asked = [reading for reading in first if reading.poll(now)]
        if self._lacks_power_fields() and self._power_usage.poll(now):
            asked.append(self._power_usage)
        utilizations = _news(self._utilizations, now)
        if utilizations or self._utilizations.code:  # a dry ring tells nothing about the GPU
            asked.append(self._utilizations)
        self._rates.period = self.lanes.slow if utilizations else self.lanes.every_poll
        if not utilizations:
            self._rates.hurry()
        if self._rates.poll(now):
            asked.append(self._rates)
        self.judge(asked)
        if self.lost_code:
            return []
        powers = _news(self._powers, now)
        self._gpm.poll(now)
        status = self._status(now)  # before the sample: unified memory is the processes' sum
        return [self._sample(now, utilizations, powers), *status, *self._health_sample(now)]

    def reason(self, name: str, code: int) -> str:
        """MIG has its own answer to what is not supported."""
        if code == reasons.NOT_SUPPORTED and self.facts["mig"] and name in (*_UTILIZATION, *METRICS.values()):
            return "MIG is on: only its instances report it"
        return super().reason(name, code)

    def _lacks_power_fields(self) -> bool:
        codes = self._sensors.codes
        return bool(codes[fields.POWER_INSTANT] and codes[fields.POWER_AVERAGE])

    def _sample(self, now: float, utilizations: Entries, powers: Entries) -> Record:
        draft = Draft("GpuSample", self, now)
        draft.set("utilization_ring", utilizations)
        draft.set("power_ring", powers)
        self._put_utilization(draft, utilizations)
        self._put_power(draft)
        self._put_fields(draft)
        self._put_memory(draft)
        draft.take("sm_clock_mhz", self._sm_clock)
        draft.take("temperature_celsius", self._temperature)
        draft.take("event_reasons", self._event_reasons)
        for name in METRICS.values():
            if self._gpm.code or name not in self._gpm.value:
                draft.miss(name, self._gpm.code or reasons.NOT_FOUND)
            else:
                draft.put(name, self._gpm.value[name], self._gpm.when)
        return draft.record()

    def _put_utilization(self, draft: Draft, ring: Entries) -> None:
        """The mean of what the ring holds of the last interval, else the sensor's last window."""
        if ring:
            since = ring[-1][0] - self.lanes.interval * 1e9
            recent = [value for time_ns, value in ring if time_ns > since]
            draft.put("utilization_percent", round(sum(recent) / len(recent), 1), self._utilizations.when)
        else:
            draft.take("utilization_percent", self._rates, getattr(self._rates.value, "gpu", None))
        draft.take("memory_utilization_percent", self._rates, getattr(self._rates.value, "memory", None))

    def _put_power(self, draft: Draft) -> None:
        values = self._values.value or {}
        for number, window in ((fields.POWER_INSTANT, 0.0), (fields.POWER_AVERAGE, 1.0)):
            if number in values:
                draft.put("power_watts", values[number] / 1000, self._values.when)
                draft.set("power_window_seconds", window)
                return
        draft.take("power_watts", self._power_usage, scale=1e-3)
        if not self._power_usage.code:
            capability = self.facts.get("compute_capability")
            averaged = capability and tuple(capability) > (8, 0)  # NVML: 1 s from Ampere on, but not on GA100
            draft.set("power_window_seconds", (1.0 if averaged else 0.0) if capability else None)

    def _put_fields(self, draft: Draft) -> None:
        values = self._values.value or {}
        if values.get(fields.MEMORY_TEMPERATURE):  # 0 is what boards without the sensor say
            draft.put("memory_temperature_celsius", values[fields.MEMORY_TEMPERATURE], self._values.when)
        else:
            code = self._sensors.codes[fields.MEMORY_TEMPERATURE]
            draft.miss("memory_temperature_celsius", code or reasons.NOT_SUPPORTED)
        for name, number in _COUNTERS.items():
            count = self._counters[name].take(int(values[number])) if number in values else None
            if count is None:
                draft.miss(name, self._sensors.codes[number] or reasons.NOT_SENSIBLE)
            else:
                draft.set(name, count / 1000 if name == "energy_joules" else count)

    def _put_memory(self, draft: Draft) -> None:
        total = self.facts.get("memory_total_bytes")
        if self.facts["memory_unified"]:
            used = self._process_list.memory_bytes
            if used is None:
                draft.explain("memory_used_bytes", "unified memory, and the processes' shares are not known")
            else:
                draft.put("memory_used_bytes", used, self._processes.when)
        elif not self._memory.code and total and self._memory.value.used > total:
            self.caller.ledger.dropped += 1
            draft.miss("memory_used_bytes", reasons.NOT_SENSIBLE)
        else:
            draft.take("memory_used_bytes", self._memory, getattr(self._memory.value, "used", None))

    def _status(self, now: float) -> list[Record]:
        slow = [self._processes, self._memory_clock, self._fan, self._performance_state]
        slow += [self._pcie_generation, self._pcie_width]
        asked = [reading for reading in slow if reading.poll(now)]
        if not asked:
            return []
        draft = Draft("GpuStatus", self, now)
        draft.take("memory_clock_mhz", self._memory_clock)
        draft.take("fan_percent", self._fan)
        draft.take("performance_state", self._performance_state)
        draft.take("pcie_generation", self._pcie_generation)
        draft.take("pcie_width", self._pcie_width)
        draft.set("processes", self._processes.value)
        missing = unmapped_reason(self._pids, self._processes.code)
        if missing:
            draft.explain("processes" if self._processes.code else "pid", missing)
        return [draft.record()]

    def _health_sample(self, now: float) -> list[Record]:
        rare = [self._health_values, self._power_limit, self._application_clock, self.mig_mode]
        rare += [self._links, self._link_errors]
        asked = [reading for reading in rare if reading.poll(now)]
        if not asked:
            return []
        draft, values = Draft("GpuHealth", self, now), self._health_values.value or {}
        draft.take("power_limit_watts", self._power_limit, scale=1e-3)
        draft.take("application_clock_mhz", self._application_clock)
        self._put_links(draft)
        for name, numbers in _HEALTH.items():
            missing = [number for number in numbers if number not in values]
            if missing:
                draft.miss(name, self._health.codes[missing[0]])
            else:
                draft.set(name, _health_value(name, sum(int(values[number]) for number in numbers)))
        return [draft.record()]

    def _put_links(self, draft: Draft) -> None:
        links, errors = self._links.value, self._link_errors.value or {}
        draft.take("nvlink_count", self._links, getattr(links, "total", None))
        draft.take("nvlink_active", self._links, getattr(links, "active", None))
        for name in TOTALS:
            if name in errors:
                draft.set(name, errors[name])
            else:
                draft.miss(name, self._link_errors.code or reasons.NOT_SUPPORTED)


def _news(ring: Reading, now: float) -> Entries:
    """What a ring has to report now; its reading keeps the last drain, which must not be reported twice."""
    return (ring.value or []) if ring.poll(now) else []


def _health_value(name: str, value: int) -> object:
    if name in ("remap_pending", "remap_failed"):
        return bool(value)
    if name == "recovery_action":
        return _RECOVERY[value] if value < len(_RECOVERY) else f"action {value}"
    return value
