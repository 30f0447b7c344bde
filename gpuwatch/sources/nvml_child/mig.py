"""MIG: the instances of a partitioned GPU, which answer what the whole GPU then does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller
from gpuwatch.sources.nvml_child.device import Device, Draft, Record
from gpuwatch.sources.nvml_child.driver import Driver
from gpuwatch.sources.nvml_child.facts import text
from gpuwatch.sources.nvml_child.gpm import METRICS, Gpm
from gpuwatch.sources.nvml_child.lanes import Lanes
from gpuwatch.sources.nvml_child.processes import PidMap, Processes, unmapped_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    """The MIG devices of a GPU; slots may be empty, so all of them are looked at."""
    count, code = parent.ask("nvmlDeviceGetMaxMigDeviceCount")
    found = []
    for slot in range(0 if code else min(count, _MOST_SLOTS)):
        handle, code = parent.ask("nvmlDeviceGetMigDeviceHandleByIndex", slot)
        if code:
            continue
        uuid, _ = make_caller(handle, parent.device).ask("nvmlDeviceGetUUID")
        caller = make_caller(handle, text(uuid) or f"{parent.device}/{slot}")
        found.append((caller, _facts(caller, facts)))
    return found


def _facts(caller: Caller, parent: dict[str, Any]) -> dict[str, Any]:
    name, _ = caller.ask("nvmlDeviceGetName")
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
        for name in METRICS.values():
            if self._gpm.code or name not in self._gpm.value:
                draft.miss(name, self._gpm.code or reasons.NOT_FOUND)
            else:
                draft.put(name, self._gpm.value[name], self._gpm.when)
        for name in _OF_THE_WHOLE:
            draft.explain(name, "a MIG instance has none of its own")
        status = self._status(now) if self._processes in asked else []
        return [draft.record(), *status]

    def _status(self, now: float) -> list[Record]:
        draft = Draft("GpuStatus", self, now)
        draft.set("processes", self._processes.value)
        missing = unmapped_reason(self._pids, self._processes.code)
        if missing:
            draft.explain("processes" if self._processes.code else "pid", missing)
        return [draft.record()]
