"""What recording costs: size of a day, CPU, the longest write, and how long reading takes. Prints a Markdown table.

    python -m benchmarks.recording_cost [--minutes 20] [--full] [--only 1] [--folder /tmp]

The machine is made up: 8 GPUs polled 10 times a second, 19 readings each, whose noise is that of real sensors (whole
percents, milliwatts, counters in bytes); 8 ranks that make 5 steps a second; the host once a second. CPU time is that
of the recorder's calls alone; a shortened day is scaled up.
"""

from __future__ import annotations

import argparse
import math
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import BatchWait, GpuFacts, GpuSample, HostSample, RunFacts, Sample, StepEnd

DAY_MINUTES = 24 * 60
GPUS = 8
SECOND_NS = 1_000_000_000
STEP_NS = 200_000_000
START_NS = 3_600 * SECOND_NS
WALL = 1_700_000_000.0


class Gpu:
    """One made-up GPU whose training stalls in waves."""

    def __init__(self, number: int, interval_seconds: float, rng: random.Random) -> None:
        self.uuid = f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
        self.rng = rng
        self.interval = interval_seconds
        self.phase = number * 0.7
        self.energy = self.tx = self.rx = self.slowed = 0
        self.temperature = 60.0

    def sample(self, time_ns: int) -> GpuSample:
        seconds = time_ns / SECOND_NS
        stall = math.sin(seconds / 7 + self.phase) > 0.8
        load = (0.25 if stall else 0.96) + self.rng.gauss(0, 0.02)
        watts = 120 + 560 * max(0.0, load) + self.rng.gauss(0, 6)
        self.energy += round(watts * self.interval * 1000)
        self.tx += self.rng.randrange(200_000, 900_000)
        self.rx += self.rng.randrange(2_000_000, 9_000_000)
        hot = watts > 650
        self.slowed += round(self.interval * SECOND_NS / 4) if hot else 0
        self.temperature += (45 + watts / 25 - self.temperature) * 0.01
        return GpuSample(
            time_ns=time_ns + self.rng.randrange(0, 3_000_000),
            uuid=self.uuid,
            utilization_percent=float(min(100, max(0, round(100 * load)))),
            memory_utilization_percent=float(min(100, max(0, round(55 * load)))),
            power_watts=round(watts, 3),
            power_window_seconds=0.0,
            energy_joules=self.energy / 1000,
            memory_used_bytes=61_000_000_000 + (round(seconds / 600) % 3) * 2_097_152,
            temperature_celsius=float(round(self.temperature)),
            memory_temperature_celsius=float(round(self.temperature + 6)),
            sm_clock_mhz=float(1755 if hot else 1980 - 15 * self.rng.randrange(0, 3)),
            event_reasons=4 if hot else 0,
            throttled_power_ns=self.slowed,
            throttled_sw_thermal_ns=0,
            throttled_hw_thermal_ns=0,
            throttled_power_brake_ns=0,
            pcie_tx_bytes=self.tx,
            pcie_rx_bytes=self.rx,
            sm_activity_percent=82 * load,
            tensor_activity_percent=41 * load + self.rng.gauss(0, 0.5),
            dram_activity_percent=37 * load + self.rng.gauss(0, 0.5),
        )


def machine(minutes: float, interval_seconds: float, *, with_runs: bool) -> Iterator[tuple[int, list[Sample]]]:
    """What arrives, and when."""
    rng = random.Random(7)
    gpus = [Gpu(number, interval_seconds, rng) for number in range(GPUS)]
    facts: list[Sample] = [GpuFacts(START_NS, gpu.uuid, number, "H100") for number, gpu in enumerate(gpus)]
    trainers = [f"{4700 + number}.{8_000_000 + number}" for number in range(GPUS)]
    if with_runs:
        facts += [RunFacts(START_NS, name, int(name[:4]), 8_000_000, ("train.py",)) for name in trainers]
    yield START_NS, facts
    every = round(1 / interval_seconds)
    for tick in range(1, round(minutes * 60 / interval_seconds) + 1):
        time_ns = START_NS + round(tick * interval_seconds * SECOND_NS)
        batch: list[Sample] = [gpu.sample(time_ns) for gpu in gpus]
        if tick % every == 0 and with_runs:
            batch.append(HostSample(time_ns, cpu_percent=rng.random() * 100, load_1m=round(rng.random() * 16, 2)))
        if with_runs:
            for name in trainers:
                parts = max(1, round(5 * interval_seconds)) if tick % 2 == 0 or every == 1 else 0
                for part in range(parts):
                    batch += _step(name, time_ns - (parts - 1 - part) * STEP_NS, tick * 5 + part, rng)
        yield time_ns + 4_000_000, batch


def _step(trainer: str, time_ns: int, number: int, rng: random.Random) -> list[Sample]:
    begin, wait = time_ns - STEP_NS, rng.randrange(1_000_000, 60_000_000)
    return [
        BatchWait(trainer, 1, "train", begin, begin + wait, number % 5000),
        StepEnd(trainer, number, begin, time_ns - rng.randrange(0, 900_000), wait / 1e9, 1, 256, number % 5000),
    ]


def measure(folder: Path, minutes: float, interval_seconds: float, *, with_runs: bool) -> dict[str, float]:
    """One recording, and what it and reading it cost."""
    path = folder / "cost.gpuwatch"
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, RecordingMeta("bench", "0", started_wall=WALL))
    cpu = longest = 0.0
    early_bytes, early_minutes = 0, 0.0
    for time_ns, batch in machine(minutes, interval_seconds, with_runs=with_runs):
        wall_time = WALL + (time_ns - START_NS) / SECOND_NS
        began_cpu, began = time.process_time(), time.perf_counter()
        writer.add(batch, time_ns, wall_time)
        cpu += time.process_time() - began_cpu
        longest = max(longest, time.perf_counter() - began)
        if not early_minutes and time_ns - START_NS >= minutes * 60 * SECOND_NS // 3:
            early_bytes, early_minutes = _file_bytes(path), (time_ns - START_NS) / SECOND_NS / 60
    writer.close()
    # The room of the open minute is in the file once, however long it gets, so it must not be scaled.
    size = path.stat().st_size
    a_minute = (size - early_bytes) / (minutes - early_minutes)
    found = {
        "day_mb": (size + a_minute * (DAY_MINUTES - minutes)) / 1e6,
        "cpu_percent": 100 * cpu / (minutes * 60),
        "longest_ms": 1000 * longest,
    }
    with Recording(path) as recording:
        middle = recording.start_ns + round((recording.end_ns - recording.start_ns) * 0.6)
        began = time.perf_counter()
        count = sum(1 for _ in recording.samples(middle - 300 * SECOND_NS, middle, kinds={GpuSample}))
        found["range_seconds"], found["range_samples"] = time.perf_counter() - began, count
        began = time.perf_counter()
        rows = recording.rollups(recording.start_ns, recording.end_ns)
        found["rollup_seconds"] = (time.perf_counter() - began) * DAY_MINUTES / minutes
        found["rollup_rows"] = len(rows) * DAY_MINUTES / minutes
        began = time.perf_counter()
        recording.rollups(recording.start_ns, recording.end_ns, metrics={"power_watts"})
        found["rollup_one_seconds"] = (time.perf_counter() - began) * DAY_MINUTES / minutes
    path.unlink()
    return found


def _file_bytes(path: Path) -> int:
    """What the file would take with its log brought in."""
    with closing(sqlite3.connect(path)) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--full", action="store_true", help="write the whole day")
    parser.add_argument("--only", type=int, help="one row of the table, by its number")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    minutes = DAY_MINUTES if given.full else given.minutes
    print("| 24 h of 8 GPUs | size MB | CPU % of a core | longest write ms | 5 min of one GPU s | 24 h of minutes s |")
    print("|---|---|---|---|---|---|")
    cases = (
        ("10 Hz, 19 readings", 0.1, False),
        ("10 Hz, and 8 ranks at 5 steps/s", 0.1, True),
        ("1 Hz, and 8 ranks at 5 steps/s", 1.0, True),
    )
    for name, interval_seconds, with_runs in cases if given.only is None else cases[given.only - 1 : given.only]:
        found = measure(given.folder, minutes, interval_seconds, with_runs=with_runs)
        print(
            f"| {name} | {found['day_mb']:.0f} | {found['cpu_percent']:.3f} | {found['longest_ms']:.0f} | "
            f"{found['range_seconds']:.3f} ({found['range_samples']:.0f} samples) | {found['rollup_seconds']:.2f} "
            f"({found['rollup_rows']:.0f} rows; one metric {found['rollup_one_seconds']:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
