"""Recordings made for tests: a machine of one or two GPUs whose every sample is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.stretch import SessionSummary, summarize
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuFacts, GpuSample, HostSample, RunFacts, Sample, StepEnd

SECOND_NS = 1_000_000_000
START_NS = 7_200 * SECOND_NS
WALL = 1_700_000_000.0
META = RecordingMeta("node07", "0.1.0", command=("python", "train.py"), started_wall=WALL)
TRAINER = "4711.99"

Batch = tuple[int, list[Sample]]


def of_minutes(recording: Recording) -> SessionSummary:
    """What a recording comes to from its minutes, however short it is."""
    return summarize(recording, recording.start_ns, recording.end_ns, longest_ns=0)


def batches(seconds: float, interval_seconds: float = 1.0, gpus: int = 1) -> Iterator[Batch]:
    """What arrives, and when; values that columns hold exactly."""
    for tick in range(round(seconds / interval_seconds) + 1):
        time_ns = START_NS + round(tick * interval_seconds * SECOND_NS)
        batch: list[Sample] = []
        if tick == 0:
            batch += [GpuFacts(time_ns, f"GPU-{number}", number, "H100") for number in range(gpus)]
            batch.append(RunFacts(time_ns, TRAINER, 4711, 99, ("python", "train.py")))
        batch += [
            GpuSample(
                time_ns - _noise(tick, 10**6) - 1_000 * number,
                f"GPU-{number}",
                utilization_percent=float((tick * 37 + number) % 101),
                power_watts=_noise(tick + 1, 400_000) / 1000,
                energy_joules=tick * 0.5,
            )
            for number in range(gpus)
        ]
        batch.append(HostSample(time_ns, cpu_percent=float(tick % 100)))
        batch.append(StepEnd(TRAINER, tick, time_ns - 10**8, time_ns, 0.025, samples=64))
        yield time_ns, batch


def _noise(tick: int, below: int) -> int:
    """A number that no column can foresee (Knuth's multiplicative hash)."""
    return tick * 2_654_435_761 % 2**32 * below >> 32


def wall_at(time_ns: int) -> float:
    """The wall clock of the made-up machine."""
    return WALL + (time_ns - START_NS) / SECOND_NS


def record(writer: RecordingWriter, given: Iterable[Batch]) -> list[Sample]:
    """Adds what arrives, and returns it."""
    added: list[Sample] = []
    for time_ns, batch in given:
        writer.add(batch, time_ns, wall_at(time_ns))
        added += batch
    return added


def recorded(path: Path, seconds: float, interval_seconds: float = 1.0, gpus: int = 1) -> list[Sample]:
    """Makes a finished recording."""
    writer = RecordingWriter(path, META)
    added = record(writer, batches(seconds, interval_seconds, gpus))
    writer.close()
    return added


def everything(path: Path) -> list[Sample]:
    """All samples of a recording."""
    with Recording(path) as recording:
        return list(recording.samples(recording.start_ns, recording.end_ns))
