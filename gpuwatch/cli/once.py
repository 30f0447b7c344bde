"""`gpuwatch --once`: every GPU and who has it, as text or JSON, from one reading each."""

from __future__ import annotations

import argparse
import select
import shutil
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.cli.output import ExitCode, GpuwatchError, write_stdout
from gpuwatch.sources.nvml.source import NvmlSource

if TYPE_CHECKING:
    from gpuwatch.monitor.snapshot import Snapshot
    from gpuwatch.samples import Sample

_PATIENCE_SECONDS = 5.0
"""A driver that has not answered by then is called silent; the child takes 0.2 s, each GPU some milliseconds."""


def once(arguments: argparse.Namespace) -> int:
    """Prints the table, or the JSON, and ends."""
    source = NvmlSource(arguments.interval)
    try:
        early = list(source.collect(time.monotonic_ns()))  # its child comes up while the rest is imported
        from gpuwatch.dashboard.formatting import fit
        from gpuwatch.dashboard.table import as_json, table

        snapshot = _read(source, early, arguments.interval)
    finally:
        source.close()
    if not snapshot.gpus:
        reason = snapshot.nvml.reason if snapshot.nvml is not None else None
        reason = (reason or "the driver has not answered").rstrip(".")
        raise GpuwatchError(f"no GPU: {reason}; see `gpuwatch doctor`")
    if arguments.json:
        write_stdout(as_json(snapshot) + "\n")
        return ExitCode.OK
    lines = table(snapshot).splitlines()
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lines = [fit(line, width) for line in lines]
    write_stdout("\n".join(lines) + "\n")
    return ExitCode.OK


def _read(source: NvmlSource, early: list[Sample], interval_seconds: float) -> Snapshot:
    """Waits until the driver has said everything once."""
    from gpuwatch.monitor.build import Evaluation, build_snapshot
    from gpuwatch.monitor.snapshot import Origin
    from gpuwatch.timeline.timeline import Timeline

    started_ns = time.monotonic_ns()
    timeline = Timeline(started_ns=started_ns, interval_seconds=interval_seconds)
    timeline.extend(early)
    while True:
        now_ns = time.monotonic_ns()
        timeline.extend(list(source.collect(now_ns)))
        snapshot = build_snapshot(
            timeline,
            now_ns=time.monotonic_ns(),
            wall_time=time.time(),
            origin=Origin("live", "LIVE"),
            evaluation=Evaluation(),
        )
        if _is_complete(snapshot) or now_ns - started_ns > _PATIENCE_SECONDS * 1e9:
            break
        due_ns, file = source.due_ns(), source.fileno()
        wait = 0.05 if due_ns is None else max(0.0, (due_ns - now_ns) / 1e9)
        select.select([file] if file is not None else [], [], [], min(wait, 0.05))
    # The driver's rings hold a past that was not watched: what is shown is one reading, of everything.
    now = (replace(gpu, utilization_mean_percent=None, power_mean_watts=None) for gpu in snapshot.gpus)
    return replace(snapshot, gpus=tuple(now))


def _is_complete(snapshot: Snapshot) -> bool:
    nvml = snapshot.nvml
    if nvml is None or not snapshot.gpus:
        return nvml is not None and nvml.status not in ("ok", "starting")
    whole = sum(1 for gpu in snapshot.gpus if gpu.facts.mig_parent is None)
    heard = all(gpu.status == "lost" or (gpu.latest and gpu.latest_status) for gpu in snapshot.gpus)
    return heard and (nvml.gpu_count is None or whole >= nvml.gpu_count)
