"""What SIGKILL leaves of a recording: writers killed at random moments, and what their files still say.

    python -m benchmarks.recording_kills [--kills 200] [--seed 1] [--folder /tmp]

A forked writer records a made-up machine, ten batches to the second but as fast as it can, so that minutes are sealed
several times a second and many kills fall into a transaction. It tells each batch that it was done with; the newest one
told, less the newest one found in the file, is what was lost. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import struct
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording_cost import START_NS, WALL, machine
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotOpenError, RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuSample

_TOLD = struct.Struct("<qq")
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Killed:
    """What one kill left. `lost_seconds` is None of a file that does not open although something was told."""

    told_seconds: float
    lost_seconds: float | None
    found: int
    expected: int
    intact: bool


def kill_one(path: Path, after: int) -> Killed:
    """Kills a writer after this many batches were written, and reads its file."""
    told_ns, told_count = _recorded_until_killed(path, after)
    try:
        with Recording(path) as recording:
            found = [
                sample.time_ns
                for sample in recording.samples(recording.start_ns, recording.end_ns)
                if isinstance(sample, GpuSample)
            ]
            lost = max(0.0, (told_ns - recording.end_ns) / SECOND_NS)
    except CannotOpenError:
        return Killed(told_ns / SECOND_NS, None if told_count else 0.0, 0, told_count, False)
    with closing(sqlite3.connect(path)) as connection:
        intact = connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    return Killed((told_ns - START_NS) / SECOND_NS, lost, len(found), told_count, intact)


def _recorded_until_killed(path: Path, after: int) -> tuple[int, int]:
    """The arrival of the last batch that was told, and the samples of GPUs up to it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            _write(path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    told = (START_NS, 0)
    with os.fdopen(reading, "rb") as pipe:
        for _ in range(after):
            data = pipe.read(_TOLD.size)
            if len(data) < _TOLD.size:
                break
            told = _TOLD.unpack(data)
        os.kill(pid, signal.SIGKILL)
        while len(data := pipe.read(_TOLD.size)) == _TOLD.size:
            told = _TOLD.unpack(data)
    os.waitpid(pid, 0)
    return told


def _write(path: Path, pipe: int) -> None:
    writer = RecordingWriter(path, RecordingMeta("bench", "0", started_wall=WALL))
    count = 0
    for time_ns, batch in machine(24 * 60, 0.1, with_runs=False):
        writer.add(batch, time_ns, WALL + (time_ns - START_NS) / SECOND_NS)
        count += sum(isinstance(sample, GpuSample) for sample in batch)
        os.write(pipe, _TOLD.pack(time_ns, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    results = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for number in range(given.kills):
            results.append(kill_one(Path(folder) / f"{number}.gpuwatch", rng.randrange(1, 2_500)))
            for leftover in Path(folder).iterdir():
                leftover.unlink()
    lost = [result.lost_seconds for result in results if result.lost_seconds is not None]
    print("| kills | files that do not open | quick_check not ok | lost s, most | lost s, mean | recorded s, most |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {len(results)} | {len(results) - len(lost)} | {sum(not result.intact for result in results)} | "
        f"{max(lost):.2f} | {sum(lost) / len(lost):.2f} | {max(result.told_seconds for result in results):.0f} |"
    )


if __name__ == "__main__":
    main()
