"""What the timeline and the monitor's thread cost: 8 GPUs with both rings, the host, and one run of 8 ranks.

    python -m benchmarks.timeline_cost [--seconds 120] [--steps-per-second 10]

CPU: samples made beforehand are played through a monitor on a clock that jumps, so that only the monitor's own work is
counted: feeding, a snapshot and an evaluation with all rules as often as live. Memory: a timeline is filled until every
tier is at its limit, which is where it stays from then on.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.samples import (
    BatchWait,
    GpuFacts,
    GpuGap,
    GpuSample,
    GpuStatus,
    HostSample,
    LoaderFacts,
    NvmlState,
    ProcessSample,
    RunFacts,
    Sample,
    StepEnd,
    WorkerFetch,
    WorkerSample,
)
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.timeline import Timeline

SECOND = 1_000_000_000
GPUS = 8
WORKERS = 8
RING_PER_SECOND = 7


class Played:
    """A source that plays samples made beforehand, one batch per tenth of a second, as the link's packets come."""

    name = "played"

    def __init__(self, batches: Iterable[tuple[int, list[Sample]]]) -> None:
        self._batches = deque(batches)

    def fileno(self) -> int | None:
        return None

    def due_ns(self) -> int | None:
        return self._batches[0][0] if self._batches else None

    def collect(self, now_ns: int) -> Iterable[Sample]:
        samples: list[Sample] = []
        while self._batches and self._batches[0][0] <= now_ns:
            samples += self._batches.popleft()[1]
        return samples

    def close(self) -> None:
        self._batches.clear()


class Machine:
    """Makes the samples of a second."""

    def __init__(self, steps_per_second: float) -> None:
        self._random = random.Random(0)
        self._period_ns = round(SECOND / steps_per_second)
        self._step = 0

    def introduction(self, time_ns: int) -> list[Sample]:
        loader = LoaderFacts(1, "train.py", 88, num_workers=WORKERS, batch_size=256, prefetch_factor=2, role="train")
        gpus: list[Sample] = [
            GpuFacts(time_ns, f"GPU-{index}", index, "H100", memory_total_bytes=80 << 30, power_limit_watts=700.0)
            for index in range(GPUS)
        ]
        runs: list[Sample] = [
            RunFacts(
                time_ns,
                trainer(rank),
                4711 + rank,
                1,
                ("python", "train.py"),
                group="job",
                rank=rank,
                device="cuda",
                gpu_uuids=(f"GPU-{rank}",),
                loaders=(loader,),
                gpu_gap_measured=True,
            )
            for rank in range(GPUS)
        ]
        return gpus + runs

    def polls(self, time_ns: int, ring_seconds: float = 1.0) -> Iterator[Sample]:
        yield NvmlState(time_ns, "ok", gpu_count=GPUS, calls=time_ns // SECOND * 7 * GPUS)
        for index in range(GPUS):
            count = int(RING_PER_SECOND * ring_seconds)
            stamps = [time_ns - place * SECOND // RING_PER_SECOND for place in range(count)][::-1]
            yield GpuSample(
                time_ns,
                f"GPU-{index}",
                utilization_percent=self._random.uniform(60, 100),
                memory_utilization_percent=40.0,
                power_watts=self._random.uniform(400, 600),
                energy_joules=time_ns / SECOND * 500,
                memory_used_bytes=60 << 30,
                temperature_celsius=60.0,
                sm_clock_mhz=1900.0,
                event_reasons=0,
                throttled_power_ns=0,
                throttled_sw_thermal_ns=0,
                throttled_hw_thermal_ns=0,
                throttled_power_brake_ns=0,
                pcie_tx_bytes=time_ns // 100,
                pcie_rx_bytes=time_ns // 10,
                sm_activity_percent=80.0,
                tensor_activity_percent=40.0,
                utilization_ring=tuple((stamp, self._random.uniform(60, 100)) for stamp in stamps),
                power_ring=tuple((stamp, self._random.uniform(400, 600)) for stamp in stamps),
            )
        if time_ns // SECOND % 5 == 0:
            yield from (GpuStatus(time_ns, f"GPU-{index}", processes=()) for index in range(GPUS))

    def host(self, time_ns: int) -> Iterator[Sample]:
        yield HostSample(
            time_ns,
            cpu_percent=50.0,
            memory_total_bytes=1 << 40,
            memory_available_bytes=1 << 39,
            pressure_io_percent=1.0,
        )
        for rank in range(GPUS):
            workers = tuple(WorkerSample(9000 + rank * WORKERS + place, 0.5, "R", 0.0, 1) for place in range(WORKERS))
            yield ProcessSample(time_ns, 4711 + rank, 1, "R", main_thread_cores=0.9, tree_cores=5.0, workers=workers)

    def steps(self, start_ns: int, end_ns: int) -> Iterator[Sample]:
        for ended_ns in range(start_ns + self._period_ns, end_ns + 1, self._period_ns):
            self._step += 1
            for rank in range(GPUS):
                wait = self._random.uniform(0.0, 0.3) * self._period_ns
                began_ns = ended_ns - self._period_ns
                yield BatchWait(trainer(rank), 1, "train", began_ns, began_ns + round(wait), self._step)
                yield WorkerFetch(trainer(rank), 9000, self._step % WORKERS, began_ns, ended_ns, 0.05)
                yield StepEnd(
                    trainer(rank),
                    self._step,
                    began_ns,
                    ended_ns,
                    wait / SECOND,
                    loader=1,
                    samples=256,
                    epoch_position=self._step,
                    copy_seconds=0.001,
                    forward_seconds=0.02,
                    backward_seconds=0.04,
                    optimizer_seconds=0.005,
                )
                yield GpuGap(trainer(rank), self._step - 2, wait / SECOND / 2)


def trainer(rank: int) -> str:
    return f"{4711 + rank}.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--steps-per-second", type=float, default=10.0)
    args = parser.parse_args()
    print(f"{GPUS} GPUs, 1 run of {GPUS} ranks at {args.steps_per_second:g} steps/s")
    for name, milliseconds in cpu(args.seconds, args.steps_per_second).items():
        print(f"{name:42} {milliseconds:8.2f} ms CPU per second")
    megabytes, chart_microseconds = memory(args.steps_per_second)
    print(f"{'timeline at 24 h':42} {megabytes:8.1f} MB")
    print(f"{'a chart of 120 s in 120 buckets':42} {chart_microseconds:8.0f} us")


def cpu(seconds: int, steps_per_second: float) -> dict[str, float]:
    """Milliseconds of CPU per second: with all rules, and without them."""
    return {
        "monitor thread, all rules every 5 s": played(seconds, steps_per_second, rules=True),
        "monitor thread without rules": played(seconds, steps_per_second, rules=False),
    }


def played(seconds: int, steps_per_second: float, *, rules: bool) -> float:
    machine = Machine(steps_per_second)
    start_ns = 100 * SECOND
    batches: list[tuple[int, list[Sample]]] = [(start_ns, machine.introduction(start_ns))]
    tenth = SECOND // 10
    for moment in range(start_ns, start_ns + seconds * SECOND, tenth):
        samples = list(machine.steps(moment, moment + tenth)) if steps_per_second >= 10 else []
        if (moment - start_ns) % SECOND == 0:
            samples += machine.steps(moment, moment + SECOND) if steps_per_second < 10 else ()
            samples += machine.polls(moment)
            samples += machine.host(moment)
        batches.append((moment + tenth, samples))
    monitor = Monitor(
        [Played(batches)],
        origin=Origin("simulated", "benchmark"),
        clock=VirtualClock(start_ns),
        engine=Engine() if rules else None,
    )
    gc.collect()
    began = time.process_time()
    monitor.run_until(start_ns + seconds * SECOND)
    spent = time.process_time() - began
    assert monitor.snapshot().notices == ()
    monitor.stop()
    return 1000 * spent / seconds


def memory(steps_per_second: float) -> tuple[float, float]:
    """Megabytes of a full timeline, and microseconds of a chart from it.

    The day before the last 2 h only fills minutes, the time before the last 10 min only seconds: samples come as rarely
    there as leaves no bucket empty.
    """
    machine = Machine(steps_per_second)
    slow = Machine(1 / 60)
    timeline = Timeline(started_ns=0)
    gc.collect()
    before = resident_megabytes()
    timeline.extend(machine.introduction(0))
    for moment in range(0, 22 * 3600 * SECOND, 60 * SECOND):
        timeline.extend(slow.polls(moment, ring_seconds=0))
        timeline.extend(slow.steps(moment, moment + 60 * SECOND))
    once_a_second = Machine(1)
    once_a_second._step = slow._step
    for moment in range(22 * 3600 * SECOND, 24 * 3600 * SECOND - 600 * SECOND, SECOND):
        timeline.extend(once_a_second.polls(moment, ring_seconds=0))
        timeline.extend(once_a_second.host(moment))
        timeline.extend(once_a_second.steps(moment, moment + SECOND))
    machine._step = once_a_second._step
    end_ns = 24 * 3600 * SECOND
    for moment in range(end_ns - 900 * SECOND, end_ns, SECOND):
        timeline.extend(machine.polls(moment))
        timeline.extend(machine.host(moment))
        timeline.extend(machine.steps(moment, moment + SECOND))
    timeline.prune(end_ns)
    gc.collect()
    megabytes = resident_megabytes() - before
    began = time.process_time()
    for _ in range(200):
        timeline.chart(Series("gpu.utilization_percent", "GPU-3"), end_ns - 120 * SECOND, end_ns, 120)
    return megabytes, (time.process_time() - began) / 200 * 1e6


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
