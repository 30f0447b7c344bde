"""NVML: what each call costs, what the driver's rings hold, whether GPM answers."""

from __future__ import annotations

import argparse
import os
import select
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pynvml

from benchmarks.gpu.facts.answer import Answer, ask, attempt
from gpuwatch.samples import GpuSample, NvmlState
from gpuwatch.sources.nvml.driver import Driver
from gpuwatch.sources.nvml.source import NvmlSource

FIELDS = (186, 185, 83, 82, 197, 198, 74, 76, 269, 270, 271, 230)
RINGS = {"utilization": 1, "power": 0}
_REPEATS = 30


def answer(args: argparse.Namespace) -> Answer:
    pynvml.nvmlInit()
    handle, driver = pynvml.nvmlDeviceGetHandleByIndex(0), Driver()
    return {
        "driver": attempt(pynvml.nvmlSystemGetDriverVersion),
        "nvml": attempt(pynvml.nvmlSystemGetNVMLVersion),
        "gpu": attempt(lambda: pynvml.nvmlDeviceGetName(handle)),
        "call_us (median, most)": {name: timed(call) for name, call in calls(handle, driver).items()},
        "fields": attempt(lambda: field_values(handle)),
        "rings": {name: attempt(lambda kind=kind: ring(driver, handle, kind)) for name, kind in RINGS.items()},
        "gpm": attempt(lambda: gpm(handle)),
        "the child": attempt(lambda: child(args.seconds or 6.0)),
    }


def calls(handle: Any, driver: Driver) -> dict[str, Callable[[], Any]]:
    """One of each that a poll makes."""
    return {
        "utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        "SM clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, 1),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "event reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "12 fields": lambda: pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS)),
        "utilization ring": lambda: driver.samples(handle, 1, 0),
        "power ring": lambda: driver.samples(handle, 0, 0),
        "processes": lambda: driver.processes(handle),
        "process utilization": lambda: driver.process_utilization(handle, 0),
        "performance state": lambda: pynvml.nvmlDeviceGetPerformanceState(handle),
        "fan": lambda: pynvml.nvmlDeviceGetFanSpeed(handle),
        "ECC": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        "PCIe link": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
    }


def timed(call: Callable[[], Any]) -> Any:
    """Microseconds, or the refusal."""

    def measure() -> list[float]:
        took = []
        for _ in range(_REPEATS):
            began = time.perf_counter_ns()
            call()
            took.append((time.perf_counter_ns() - began) / 1e3)
        return [round(statistics.median(took), 1), round(max(took), 1)]

    return attempt(measure)


def field_values(handle: Any) -> dict[str, Any]:
    """Which answer, by the codes that come back."""
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS))
    return {str(value.fieldId): value.value.ullVal if not value.nvmlReturn else f"error {value.nvmlReturn}"
            for value in values}  # fmt: skip


def ring(driver: Driver, handle: Any, kind: int) -> Answer:
    """How many entries, how far apart, from which origin its stamps count, and how old the newest is."""
    entries = driver.samples(handle, kind, 0)
    now, boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    if not entries:
        return {"entries": 0}
    stamps = [entry.stamp for entry in entries]
    newest = stamps[-1] / 1e6
    origin, age = ("1970", now - newest) if abs(now - newest) < abs(boot - newest) else ("boot", boot - newest)
    apart = [(late - early) / 1e3 for early, late in pairwise(stamps)]
    return {
        "entries": len(entries),
        "seconds": round((stamps[-1] - stamps[0]) / 1e6, 3),
        "ms apart (least, median, most)": [
            round(value, 2) for value in (min(apart), statistics.median(apart), max(apart))
        ]
        if apart
        else None,
        "origin": origin,
        "newest is s old": round(age, 3),
        "newest values": [entry.value for entry in entries[-5:]],
    }


def gpm(handle: Any) -> Answer:
    """Metrics between two samples 200 ms apart."""
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        return {"supported": False}
    first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, first)
    time.sleep(0.2)
    cost = timed(lambda: pynvml.nvmlGpmSampleGet(handle, second))
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2, request.numMetrics = first, second, 3
    numbers = {2: "SM", 5: "tensor", 10: "DRAM"}
    for slot, number in enumerate(numbers):
        request.metrics[slot].metricId = number
    pynvml.nvmlGpmMetricsGet(request)
    values = {name: request.metrics[slot].value for slot, name in enumerate(numbers.values())}
    return {"supported": True, "sample_us": cost, "percent": values}


def child(seconds: float) -> Answer:
    """What gpuwatch's own child asks and costs at the default interval, and what it cannot have."""
    source = NvmlSource(1.0)
    states: list[NvmlState] = []
    polls: list[GpuSample] = []
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0:
            for sample in source.collect(time.monotonic_ns()):
                if isinstance(sample, NvmlState):
                    states.append(sample)
                elif isinstance(sample, GpuSample):
                    polls.append(sample)
            file = source.fileno()
            select.select([] if file is None else [file], [], [], min(left, 0.2))
    finally:
        source.close()
    if len(states) < 2 or not polls:
        return {"states": [state.status for state in states], "reason": states[-1].reason if states else None}
    first, last = states[0], states[-1]
    wall, asked = (last.time_ns - first.time_ns) / 1e9, last.calls - first.calls
    return {
        "status": last.status,
        "calls per GPU per s": round(asked / wall / max(1, last.gpu_count or 1), 2),
        "ms per s inside NVML": round(1e3 * (last.call_seconds - first.call_seconds) / wall, 3),
        "ms per call": round(1e3 * (last.call_seconds - first.call_seconds) / max(1, asked), 4),
        "polls": len(polls),
        "ring entries per poll": round(statistics.fmean(len(poll.utilization_ring) for poll in polls), 1),
        "not available": dict(polls[-1].unavailable),
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    raise SystemExit(ask(__doc__, answer))
