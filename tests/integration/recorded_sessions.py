"""Records simulated machines, in a clock that jumps: an hour takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.sources.simulator.source import SimulatorSource

START_NS = 86_400_000_000_000
START_WALL_TIME = 1_795_183_200.0  # 2026-11-20T14:00:00Z
SECOND = 1_000_000_000


def record(
    path: Path,
    scenario: str,
    seconds: float,
    *,
    origin: Origin | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Snapshot:
    """Records so long a session into a file, and returns its last snapshot.

    Args:
        path: of the recording.
        scenario: of the simulator.
        seconds: of simulated time.
        origin: what it says of itself; that it is simulated where None.
        meanwhile: called before the recording is closed.
    """
    clock = VirtualClock(START_NS, START_WALL_TIME)
    source = SimulatorSource(scenario, start_ns=START_NS)
    monitor = Monitor(
        [source],
        origin=origin or Origin("simulated", f"SIMULATED {scenario}"),
        clock=clock,
        engine=Engine(),
        focus=source.focus,
    )
    monitor.record(path)
    monitor.run_until(START_NS + round(seconds * SECOND))
    if meanwhile is not None:
        meanwhile()
    monitor.stop_recording()
    monitor.stop()
    return monitor.snapshot()
