"""What this driver answers and at what price, function by function, for `gpuwatch doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from gpuwatch.sources.nvml_child import fields, reasons, rings
from gpuwatch.sources.nvml_child.calls import Caller, CallError
from gpuwatch.sources.nvml_child.driver import Driver
from gpuwatch.sources.nvml_child.machine import Machine

_REPEATS = 3

Question = tuple[str, str, tuple[Any, ...], "Callable[..., Any] | None"]
"""Function, what it tells, arguments, and our own way to call it."""


def questions(driver: Driver) -> list[Question]:
    """Every NVML function of the poll plan."""
    return [
        ("nvmlDeviceGetUtilizationRates", "utilization", (), None),
        ("nvmlDeviceGetSamples", "utilization ring", (), lambda h: driver.samples(h, rings.UTILIZATION, 0)),
        ("nvmlDeviceGetSamples", "power ring", (), lambda h: driver.samples(h, rings.POWER, 0)),
        ("nvmlDeviceGetFieldValues", "power, energy, PCIe and throttle counters", (list(fields.SENSORS),), None),
        ("nvmlDeviceGetFieldValues", "memory health", (list(fields.HEALTH),), None),
        ("nvmlDeviceGetPowerUsage", "power, if the fields have none", (), None),
        ("nvmlDeviceGetMemoryInfo", "memory", (pynvml.nvmlMemory_v2,), None),
        ("nvmlDeviceGetClockInfo", "SM clock", (pynvml.NVML_CLOCK_SM,), None),
        ("nvmlDeviceGetClockInfo", "memory clock", (pynvml.NVML_CLOCK_MEM,), None),
        ("nvmlDeviceGetTemperature", "temperature", (pynvml.NVML_TEMPERATURE_GPU,), None),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttle reasons", (), None),
        ("nvmlGpmQueryDeviceSupport", "SM, tensor and memory activity", (), None),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes", (), driver.processes),
        ("nvmlDeviceGetProcessUtilization", "SM share by process", (), lambda h: driver.process_utilization(h, 0)),
        ("nvmlDeviceGetFanSpeed", "fan", (), None),
        ("nvmlDeviceGetPerformanceState", "performance state", (), None),
        ("nvmlDeviceGetCurrPcieLinkGeneration", "PCIe generation", (), None),
        ("nvmlDeviceGetCurrPcieLinkWidth", "PCIe width", (), None),
        ("nvmlDeviceGetEnforcedPowerLimit", "power limit", (), None),
        ("nvmlDeviceGetMigMode", "MIG", (), None),
        ("nvmlDeviceGetSupportedEventTypes", "XID events", (), None),
    ]


def survey(machine: Machine) -> None:
    """Asks everything of every GPU, one line an answer; the last line bears the versions."""
    output = machine.output
    for gpu in machine.gpus:
        for question in questions(machine.driver):
            answer = ask(gpu.caller, *question)
            output.line(answer={"uuid": gpu.uuid, "index": gpu.index, **answer})
    output.line(done=machine.versions)


def ask(
    caller: Caller, function: str, tells: str, arguments: tuple[Any, ...], using: Callable[..., Any] | None
) -> dict[str, Any]:
    """The median time of three calls after a first one, or why there is no answer."""
    microseconds, error = [], None
    for repeat in range(_REPEATS + 1):
        before = caller.ledger.seconds
        try:
            value = caller.call(function, *arguments, using=using, variant=tells)
            if function == "nvmlGpmQueryDeviceSupport" and not value.isSupportedDevice:
                error = reasons.reason_of(reasons.NOT_SUPPORTED)
        except CallError as refusal:
            error = reasons.reason_of(refusal.code)
        if repeat:
            microseconds.append((caller.ledger.seconds - before) * 1e6)
        if error:
            break
    cost = round(sorted(microseconds)[len(microseconds) // 2], 1) if microseconds else None
    return {"function": function, "tells": tells, "microseconds": cost, "error": error}
