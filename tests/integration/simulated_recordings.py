"""Recordings of simulated runs: in time that jumps, the same for the same scenario and seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource

_START_NS = 86_400_000_000_000
_START_WALL = 1_800_000_000.0
FIXED = "starved-fixed"
"""The starved run with workers: the same model, batch size and GPU."""


@contextmanager
def fixed_scenario() -> Iterator[None]:
    """Adds the scenario FIXED for a while."""
    starved = SCENARIOS["starved"]
    SCENARIOS[FIXED] = replace(
        starved,
        name=FIXED,
        loader=replace(starved.loader, num_workers=12, persistent_workers=True, prefetch_factor=4),
        must=frozenset(),
    )
    try:
        yield
    finally:
        del SCENARIOS[FIXED]


def record(path: Path, scenario: str, seconds: float, *, seed: int = 0, interval_seconds: float = 1.0) -> Path:
    """A closed recording of this many seconds from the run's first step on."""
    monitor = recording_monitor(path, scenario, seconds, seed=seed, interval_seconds=interval_seconds)
    monitor.stop()
    return path


def record_samples(path: Path, scenario: str, seconds: float, *, seed: int = 0) -> Path:
    """The same without findings: no rule is evaluated, which takes most of the time."""
    source = SimulatorSource(scenario, seed=seed, start_ns=_START_NS)
    writer = RecordingWriter(path, RecordingMeta(hostname="simulated", version="0", label=f"SIMULATED {scenario}"))
    for second in range(1, round(seconds) + 1):
        now_ns = _START_NS + second * 1_000_000_000
        writer.add(list(source.collect(now_ns)), now_ns, _START_WALL + second)
    writer.close()
    return path


def recording_monitor(
    path: Path, scenario: str, seconds: float, *, seed: int = 0, interval_seconds: float = 1.0
) -> Monitor:
    """The monitor after this many seconds, still recording: stop it."""
    monitor = simulated_monitor(scenario, seed=seed, virtual=True, interval_seconds=interval_seconds)
    monitor.record(path)
    monitor.run_until(monitor.snapshot().time_ns + round(seconds * 1e9))
    return monitor
