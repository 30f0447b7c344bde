"""Samples as events of a trace, where their values are such as only a damaged file holds."""

from __future__ import annotations

import json
import math

from gpuwatch.export.samples import Axis
from gpuwatch.export.trace import chrome_trace
from gpuwatch.samples import GpuSample, HostSample, StepEnd, WorkerFetch

SECOND = 1_000_000_000
LARGEST = 1.7e308


def test_a_number_that_json_has_no_word_for_is_left_out() -> None:
    samples = [
        StepEnd("t", 1, SECOND, 2 * SECOND, wait_seconds=LARGEST, forward_seconds=0.25, backward_seconds=math.nan),
        WorkerFetch("t", 1, 0, SECOND, 2 * SECOND, cpu_seconds=-LARGEST),
        GpuSample(SECOND, "GPU-1", memory_used_bytes=1 << 30, power_ring=((SECOND, math.inf), (SECOND, 300.0))),
        HostSample(SECOND, cpu_percent=math.nan),
    ]
    text = "".join(chrome_trace(samples, Axis(0, lambda _: 0.0), 3 * SECOND, {}))
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] in ("X", "C")]
    assert {event["name"]: event.get("args") for event in events} == {
        "step 1": {"forward_ms": 250.0},
        "make a batch": None,
        "memory (GiB)": {"value": 1.0},
        "power (W)": {"value": 300.0},
    }
