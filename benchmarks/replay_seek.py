"""What a seek in a recorded day costs: time to the first snapshot there, and memory. Prints a Markdown table.

    python -m benchmarks.replay_seek [--minutes 1440] [--seeks 20] [--folder /tmp]

The machine is that of `recording_cost` at 1 Hz: 8 GPUs, without runs and with 8 ranks that make 5 steps a second. A
seek is what the player does: facts in force, 150 s of samples (75 s of a run with many steps), three evaluations, one
snapshot; then the charts' past is filled in from the minutes. Memory is the peak of a process that only replays.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.recording_cost import START_NS, WALL, machine
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter

SECOND_NS = 1_000_000_000


def write(path: Path, minutes: float, *, with_runs: bool) -> None:
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, RecordingMeta("bench", "0", started_wall=WALL))
    for time_ns, batch in machine(minutes, 1.0, with_runs=with_runs):
        writer.add(batch, time_ns, WALL + (time_ns - START_NS) / SECOND_NS)
    writer.close()


def replay(path: Path, seeks: int) -> dict[str, float]:
    """In a process of its own, so that memory is the replay's alone."""
    from gpuwatch.monitor.recorded_findings import RecordedFindings
    from gpuwatch.monitor.replay import Stage, origin_of
    from gpuwatch.monitor.snapshot import Snapshot
    from gpuwatch.recording.reader import Recording

    rng = random.Random(7)
    wall, cpu, past = [], [], []
    with Recording(path) as recording:
        recorded, origin = RecordedFindings(recording), origin_of(recording)
        for number in range(seeks + 1):
            at_ns = rng.randrange(recording.start_ns, recording.end_ns)
            seen: list[Snapshot] = []
            began, began_cpu = time.perf_counter(), time.process_time()
            stage = Stage(recording, recorded, at_ns, origin, 1.0, seen.append, with_past=False)
            stage.monitor.run_until(at_ns, stop=lambda seen=seen: bool(seen))
            if number:  # the first one imports the rules
                wall.append(time.perf_counter() - began)
                cpu.append(time.process_time() - began_cpu)
            began = time.perf_counter()
            stage.fill_past()
            past.append(time.perf_counter() - began)
            stage.close()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "wall": statistics.median(wall),
        "longest": max(wall),
        "cpu": statistics.median(cpu),
        "past": statistics.median(past),
        "peak_mb": peak * 1024 / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--seeks", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay is not None:
        print(json.dumps(replay(given.replay, given.seeks)))
        return
    head = f"{given.minutes / 60:.0f} h of 8 GPUs at 1 Hz"
    print(f"| {head} | file MB | seek ms | longest ms | CPU ms | charts' past ms | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for name, with_runs in (("GPUs alone", False), ("with 8 ranks at 5 steps/s", True)):
        path = given.folder / "seek.gpuwatch"
        write(path, given.minutes, with_runs=with_runs)
        command = [sys.executable, "-m", "benchmarks.replay_seek", "--replay", str(path), "--seeks", str(given.seeks)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"| {name} | {path.stat().st_size / 1e6:.0f} | {1000 * found['wall']:.0f} | {1000 * found['longest']:.0f} "
            f"| {1000 * found['cpu']:.0f} | {1000 * found['past']:.0f} | {found['peak_mb']:.0f} |",
            flush=True,
        )
        path.unlink()


if __name__ == "__main__":
    main()
