"""GPM: how busy the SMs, the tensor cores and the memory really are, on Hopper and later.

"100 % utilization" only says that some kernel ran. A metric is the mean between two samples that lie at least
100 ms apart.
"""

from __future__ import annotations

import time

import pynvml

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, CallError, attempt, wheel
from gpuwatch.sources.nvml_child.sanity import sensible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METRICS = {2: "sm_activity_percent", 5: "tensor_activity_percent", 10: "dram_activity_percent"}
_LEAST_SECONDS = 0.1
_MOST_PERCENT = 100.5
"""The driver divides two counters that it does not read at the same moment."""


class Gpm:
    """The metrics of one GPU, or of one MIG instance of it (`instance` is the GPU instance's id)."""

    def __init__(self, caller: Caller, instance: int | None = None) -> None:
        self._caller = caller
        self._instance = instance
        self._samples: list[Any] = []
        self._taken_at: float | None = None
        self._supported = False

    def read(self) -> dict[str, float]:
        """Metric by name since the previous reading.

        Raises:
            CallError: not supported here, or this is the first of two samples.
        """
        if not self._supported:
            self._probe()
        older, newer = self._samples
        if self._instance is None:
            self._caller.call("nvmlGpmSampleGet", newer)
        else:
            self._caller.call("nvmlGpmMigSampleGet", self._instance, newer)
        now, before = time.monotonic(), self._taken_at
        self._taken_at = now
        self._samples = [newer, older]
        if before is None or now - before < _LEAST_SECONDS:
            raise CallError(reasons.NOT_YET)
        return self._metrics(older, newer)

    def _probe(self) -> None:
        self._caller.call("nvmlGpmQueryDeviceSupport", using=_require_support)
        alloc = wheel("nvmlGpmSampleAlloc")
        self._samples = [self._caller.call("nvmlGpmSampleAlloc", using=lambda _handle: attempt(alloc)) for _ in "ab"]
        self._supported = True

    def _metrics(self, older: Any, newer: Any) -> dict[str, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = older, newer
        request.numMetrics = len(METRICS)
        for slot, number in enumerate(METRICS):
            request.metrics[slot].metricId = number
        self._caller.call("nvmlGpmMetricsGet", using=lambda _handle: pynvml.nvmlGpmMetricsGet(request))
        found = {}
        for slot, name in enumerate(METRICS.values()):
            metric = request.metrics[slot]
            percent = 100.0 if 100.0 < metric.value <= _MOST_PERCENT else metric.value
            value = sensible(name, percent, self._caller.ledger) if metric.nvmlReturn == 0 else None
            if value is not None:
                found[name] = round(value, 2)
        return found


def _require_support(handle: Any) -> None:
    """Makes "no" an error of the call, which is then remembered as any other refusal."""
    if not attempt(wheel("nvmlGpmQueryDeviceSupport"), handle).isSupportedDevice:
        raise CallError(reasons.NOT_SUPPORTED)
