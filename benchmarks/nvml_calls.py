"""What watching GPUs asks of the driver and costs in CPU and memory, counted by the simulated driver itself.

    python -m benchmarks.nvml_calls [--seconds 30] [--gpus 1 8 64]

One child at the default interval over N simulated GPUs of two kinds: an H100 (GPM, no fan) and an RTX 4090 (fan,
no GPM). Start-up is left out. Exits 1 if a GPU is asked more than 8 times a second.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
from pathlib import Path

import psutil

from gpuwatch.samples import NvmlState
from gpuwatch.sources.nvml.source import NvmlSource
from tests import nvml_sim

MOST_CALLS = 8.0
KINDS = {"H100": ["process * 1 1000000000 80"], "RTX 4090": ["gpu * gpm 0", "gpu * has_fan 1", "gpu * has_ecc 0"]}


def listen(source: NvmlSource, seconds: float, until_ok: bool = False) -> float:
    """Reads the source as the monitor does; returns the seconds until the time or the first good state was there."""
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        samples = source.collect(time.monotonic_ns())
        if until_ok and any(isinstance(sample, NvmlState) and sample.status == "ok" for sample in samples):
            break
        due = (source.due_ns() or 0) / 1e9 - time.monotonic()
        select.select([source.fileno()], [], [], max(0.0, min(left, due)))
    return time.monotonic() - began


def measure(driver: nvml_sim.SimulatedDriver, seconds: float) -> tuple[float, ...]:
    """Seconds to the first full round, calls per GPU and second, CPU seconds per minute of both sides, MB."""
    source = NvmlSource(env={**os.environ, **driver.env}, kernel_log=None)
    try:
        first = listen(source, 30.0, until_ok=True)
        (child,) = psutil.Process().children()
        before, own = sum(driver.counts().values()), time.process_time()
        child_before = sum(child.cpu_times()[:2])
        watched = listen(source, seconds)
        calls = sum(driver.counts().values()) - before
        child_cpu = (sum(child.cpu_times()[:2]) - child_before) / watched * 60
        own_cpu = (time.process_time() - own) / watched * 60
        return first, calls / driver.gpus / watched, child_cpu, own_cpu, child.memory_info().rss / 1e6
    finally:
        source.close()


def main() -> int:
    """Prints one row for each kind and number of GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    arguments = parser.parse_args()
    worst = 0.0
    print("| GPUs | first round, s | calls per GPU per s | child CPU, s/min | monitor CPU, s/min | child RSS, MB |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        library = nvml_sim.build(Path(folder) / "lib")
        for name, scenario in KINDS.items():
            for count in arguments.gpus:
                place = Path(folder) / f"{name}-{count}"
                place.mkdir()
                driver = nvml_sim.SimulatedDriver(place, library, gpus=count)
                driver.write(*scenario)
                first, calls, child_cpu, own_cpu, memory = measure(driver, arguments.seconds)
                worst = max(worst, calls)
                row = f"{first:.2f} | {calls:.2f} | {child_cpu:.2f} | {own_cpu:.2f} | {memory:.1f}"
                print(f"| {count} x {name} | {row} |", flush=True)
    return int(worst > MOST_CALLS)


if __name__ == "__main__":
    sys.exit(main())
