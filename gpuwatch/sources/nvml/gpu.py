"""One whole GPU, or one MIG instance: its facts, its readings by lane, and the samples made of them.

At the default interval a GPU takes 6.8 to 7.7 calls a second (benchmarks/nvml_calls.py): 4 on every poll (utilization
ring, fields, memory, SM clock), 3 to 5 on every other one, 5 to 7 every 5 to 10 s, 8 every 30 to 60 s. Its facts take
about 12 calls, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from gpuwatch.sources.nvml import readings, reasons
from gpuwatch.sources.nvml.driver import Caller, Driver, attempt, wheel
from gpuwatch.sources.nvml.readings import (
    GPM_METRICS,
    NVLINK_TOTALS,
    Counter,
    Device,
    Draft,
    Fields,
    Gpm,
    Lanes,
    NvLink,
    PidMap,
    Processes,
    Reading,
    Record,
    Ring,
    StampClock,
    sensible,
    unmapped_reason,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


INTEGRATED_CAPABILITIES = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
"""Jetson Nano, TX2, Xavier, Orin, Thor (two numberings) and GB10: their memory is the host's.

Only these are called unified when MemoryInfo is not supported; nvitop and nvtop show host memory as the GPU's
on any GPU whose call fails.
"""


def read_facts(caller: Caller, index: int, proc_root: str) -> tuple[dict[str, Any], bool]:
    """The fields of GpuFacts for one whole GPU, and whether those that are missing may still come."""
    found = _Found(caller)
    facts: dict[str, Any] = {"time_ns": time.monotonic_ns(), "uuid": caller.device, "index": index}
    facts["name"] = text(found.plain("name", "nvmlDeviceGetName")) or f"GPU {index}"
    facts["pci_bus_id"] = text(found.plain("pci_bus_id", "nvmlDeviceGetPciInfo", using=_pci_bus_id))
    facts["compute_capability"] = found.plain("compute_capability", "nvmlDeviceGetCudaComputeCapability")
    mig, _ = caller.ask("nvmlDeviceGetMigMode")
    facts["mig"] = bool(mig and mig[0])
    facts.update(_memory(found, facts, proc_root))
    facts["power_limit_watts"] = found.number("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)
    facts["power_limit_default_watts"] = found.number(
        "power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3
    )
    facts["sm_clock_max_mhz"] = found.number("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
    facts["memory_clock_max_mhz"] = found.number(
        "memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM
    )
    facts["pcie_generation_max"] = found.number("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration")
    facts["pcie_width_max"] = found.number("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
    facts["unavailable"] = found.unavailable
    return facts, found.may_come


def text(value: Any) -> str | None:
    """A string of the driver's; some wheels return bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value) if value is not None else None


def host_memory_bytes(proc_root: str) -> int | None:
    """MemTotal of the host."""
    try:
        with open(f"{proc_root}/meminfo", encoding="ascii", errors="replace") as file:
            return next(int(row.split()[1]) * 1024 for row in file if row.startswith("MemTotal:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _pci_bus_id(handle: Any) -> Any:
    """The attribute is decoded when it is read, which fails for bytes that are no text."""
    return attempt(wheel("nvmlDeviceGetPciInfo"), handle).busId


class _Found:
    """Answers, and for what is missing the reason under the field's name."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.unavailable: dict[str, str] = {}
        self.may_come = False

    def plain(self, field: str, name: str, *arguments: Any, using: Callable[..., Any] | None = None) -> Any:
        value, code = self._caller.ask(name, *arguments, using=using)
        if code:
            self.miss(field, code)
        return value

    def miss(self, field: str, code: int) -> None:
        self.unavailable[field] = reasons.reason_of(code)
        self.may_come = self.may_come or code not in reasons.PERMANENT

    def number(self, field: str, name: str, *arguments: Any, scale: float = 1) -> float | None:
        value = self.plain(field, name, *arguments)
        if value is None:
            return None
        number = sensible(field, value * scale, self._caller.ledger)
        if number is None:
            self.unavailable[field] = reasons.reason_of(reasons.NOT_SENSIBLE)
        return number

    def memory(self) -> tuple[float | None, int]:
        value, code = self._caller.ask("nvmlDeviceGetMemoryInfo")
        if value is None:
            self.miss("memory_total_bytes", code)
            return None, code
        return sensible("memory_total_bytes", value.total, self._caller.ledger), 0


def _memory(found: _Found, facts: dict[str, Any], proc_root: str) -> dict[str, Any]:
    total, code = found.memory()
    unified = code == reasons.NOT_SUPPORTED and facts["compute_capability"] in INTEGRATED_CAPABILITIES
    if unified:
        total = host_memory_bytes(proc_root)
        found.unavailable.pop("memory_total_bytes", None)
    return {"memory_total_bytes": total, "memory_unified": unified}


_COUNTERS = {
    "energy_joules": readings.ENERGY,
    "pcie_tx_bytes": readings.PCIE_TX,
    "pcie_rx_bytes": readings.PCIE_RX,
    "throttled_power_ns": readings.THROTTLED_POWER,
    "throttled_sw_thermal_ns": readings.THROTTLED_SW_THERMAL,
    "throttled_hw_thermal_ns": readings.THROTTLED_HW_THERMAL,
    "throttled_power_brake_ns": readings.THROTTLED_POWER_BRAKE,
}
_HEALTH = {
    "ecc_corrected_volatile": (readings.ECC_CORRECTED,),
    "ecc_uncorrected_volatile": (readings.ECC_UNCORRECTED,),
    "remapped_rows_uncorrectable": (readings.REMAPPED_UNCORRECTABLE,),
    "pcie_replays": (readings.PCIE_REPLAYS,),
    "remap_pending": (readings.REMAP_PENDING,),
    "remap_failed": (readings.REMAP_FAILED,),
    "recovery_action": (readings.RECOVERY_ACTION,),
    "retired_pages": (readings.RETIRED_UNCORRECTABLE, readings.RETIRED_CORRECTABLE),
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
        self._sensors = Fields(caller, readings.SENSORS)
        stamps = StampClock()
        self._utilization_ring = Ring(caller, driver, readings.UTILIZATION_RING, stamps)
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
        self._powers = self.made(alternate, Ring(caller, driver, readings.POWER_RING, stamps).drain, offset=0.5)
        self._gpm = self.made(alternate, Gpm(caller).read, offset=0.5)

    def _slower(self, lanes: Lanes, driver: Driver) -> None:
        self._process_list = Processes(self.caller, driver, self._pids, self._utilization_ring)
        self._processes = self.made(lanes.slow, self._process_list.read)
        self._memory_clock = self.reading(lanes.slow, ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM))
        self._fan = self.reading(lanes.slow, ("nvmlDeviceGetFanSpeed",))
        self._performance_state = self.reading(lanes.slow, ("nvmlDeviceGetPerformanceState",))
        self._pcie_generation = self.reading(lanes.lazy, ("nvmlDeviceGetCurrPcieLinkGeneration",))
        self._pcie_width = self.reading(lanes.lazy, ("nvmlDeviceGetCurrPcieLinkWidth",))
        self._health = Fields(self.caller, readings.HEALTH)
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
        if utilizations or self._utilizations.code:  # a dry ring says nothing about the GPU
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
        if code == reasons.NOT_SUPPORTED and self.facts["mig"] and name in (*_UTILIZATION, *GPM_METRICS.values()):
            return "MIG is on: only its instances report it"
        return super().reason(name, code)

    def _lacks_power_fields(self) -> bool:
        codes = self._sensors.codes
        return bool(codes[readings.POWER_INSTANT] and codes[readings.POWER_AVERAGE])

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
        _put_gpm(draft, self._gpm)
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
        for number, window in ((readings.POWER_INSTANT, 0.0), (readings.POWER_AVERAGE, 1.0)):
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
        if values.get(readings.MEMORY_TEMPERATURE):  # 0 is what boards without the sensor say
            draft.put("memory_temperature_celsius", values[readings.MEMORY_TEMPERATURE], self._values.when)
        else:
            code = self._sensors.codes[readings.MEMORY_TEMPERATURE]
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
        _put_processes(draft, self._processes, self._pids)
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
        for name in NVLINK_TOTALS:
            if name in errors:
                draft.set(name, errors[name])
            else:
                draft.miss(name, self._link_errors.code or reasons.NOT_SUPPORTED)


def _put_gpm(draft: Draft, gpm: Reading) -> None:
    for name in GPM_METRICS.values():
        if gpm.code or name not in gpm.value:
            draft.miss(name, gpm.code or reasons.NOT_FOUND)
        else:
            draft.put(name, gpm.value[name], gpm.when)


def _put_processes(draft: Draft, processes: Reading, pids: PidMap) -> None:
    draft.set("processes", processes.value)
    missing = unmapped_reason(pids, processes.code)
    if missing:
        draft.explain("processes" if processes.code else "pid", missing)


def _news(ring: Reading, now: float) -> Entries:
    """What a ring has to report now; its reading keeps the last drain, which must not be reported twice."""
    return (ring.value or []) if ring.poll(now) else []


def _health_value(name: str, value: int) -> object:
    if name in ("remap_pending", "remap_failed"):
        return bool(value)
    if name == "recovery_action":
        return _RECOVERY[value] if value < len(_RECOVERY) else f"action {value}"
    return value


_OF_THE_WHOLE = (
    "utilization_percent",
    "memory_utilization_percent",
    "power_watts",
    "energy_joules",
    "temperature_celsius",
    "sm_clock_mhz",
    "event_reasons",
)

_MOST_SLOTS = 64
"""A GPU has 7; a driver that claims four thousand million is asked no further."""

Instance = tuple[Caller, "dict[str, Any]"]
"""The caller of a MIG device and its facts."""


def find_instances(parent: Caller, facts: dict[str, Any], make_caller: Callable[[Any, str], Caller]) -> list[Instance]:
    """The MIG devices of a GPU; slots may be empty, so all of them are queried."""
    count, code = parent.ask("nvmlDeviceGetMaxMigDeviceCount")
    found = []
    for slot in range(0 if code else min(count, _MOST_SLOTS)):
        handle, code = parent.ask("nvmlDeviceGetMigDeviceHandleByIndex", slot)
        if code:
            continue
        uuid, _ = make_caller(handle, parent.device).ask("nvmlDeviceGetUUID")
        caller = make_caller(handle, text(uuid) or f"{parent.device}/{slot}")
        found.append((caller, _facts(caller, facts, slot)))
    return found


def _facts(caller: Caller, parent: dict[str, Any], slot: int) -> dict[str, Any]:
    name, _ = caller.ask("nvmlDeviceGetName")
    number, _ = caller.ask("nvmlDeviceGetGpuInstanceId")
    memory, code = caller.ask("nvmlDeviceGetMemoryInfo")
    return {
        "time_ns": time.monotonic_ns(),
        "uuid": caller.device,
        "index": parent["index"],
        "name": text(name) or f"{parent['name']} MIG",
        "pci_bus_id": parent["pci_bus_id"],
        "compute_capability": parent["compute_capability"],
        "memory_total_bytes": memory.total if memory is not None else None,
        "mig": True,
        "mig_parent": parent["uuid"],
        "mig_slot": slot,
        "mig_gpu_instance": number,
        "unavailable": {"memory_total_bytes": reasons.reason_of(code)} if code else {},
    }


class MigInstance(Device):
    """One instance: memory, processes, and what GPM says of it on Hopper and later."""

    def __init__(self, caller: Caller, whole: Caller, lanes: Lanes, driver: Driver, pids: PidMap) -> None:
        super().__init__(caller, lanes)
        self._pids = pids
        number, _ = caller.ask("nvmlDeviceGetGpuInstanceId")
        self._memory = self.reading(
            lanes.every_poll, ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",)
        )
        self._gpm = self.made(lanes.alternate, Gpm(whole, number).read, offset=0.5)
        self._processes = self.made(lanes.slow, Processes(caller, driver, pids, None).read)

    def read(self, now: float) -> list[Record]:
        """A GpuSample on every poll, a GpuStatus with the processes in the slow lane."""
        asked = [reading for reading in (self._memory, self._processes) if reading.poll(now)]
        self.judge(asked)
        if self.lost_code:
            return []
        self._gpm.poll(now)
        draft = Draft("GpuSample", self, now)
        draft.take("memory_used_bytes", self._memory, getattr(self._memory.value, "used", None))
        _put_gpm(draft, self._gpm)
        for name in _OF_THE_WHOLE:
            draft.explain(name, "a MIG instance has none of its own")
        status = self._status(now) if self._processes in asked else []
        return [draft.record(), *status]

    def _status(self, now: float) -> list[Record]:
        draft = Draft("GpuStatus", self, now)
        _put_processes(draft, self._processes, self._pids)
        return [draft.record()]
