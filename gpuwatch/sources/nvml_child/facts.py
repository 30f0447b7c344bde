"""What does not change while a GPU is present; asked once for each GPU, about 12 calls."""

from __future__ import annotations

import time

import pynvml

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, attempt, wheel
from gpuwatch.sources.nvml_child.sanity import sensible

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
