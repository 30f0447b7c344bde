"""Watches one training with gpuwatch's own monitor and writes what it found: a process of its own, run by the suite.

    python -m benchmarks.gpu.watching --pid 4711 --seconds 20 --result result.json --stream G02.jsonl.gz

It ends early once all rules of `--until` have fired and `--at-least` seconds have passed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import stream
from benchmarks.gpu.processes import ROOT
from benchmarks.gpu.seen import FindingLog
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.wiring import live_monitor
from gpuwatch.timeline.stacks import hot_line
from gpuwatch.timeline.windows import Scene


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--stream", type=Path, required=True)
    parser.add_argument("--about", type=json.loads, default={})
    parser.add_argument("--until", default="")
    parser.add_argument("--at-least", type=float, default=0.0)
    args = parser.parse_args()
    result = watch(args.pid, args.seconds, frozenset(filter(None, args.until.split(","))), args.at_least)
    timeline, pids = result.pop("timeline"), result.pop("pids")
    about = {**args.about, "found": result["found"]}
    folders = {f"{ROOT}/": "", sys.prefix: "python", str(Path.cwd()): "."}
    recorded = stream.nameless(timeline.stream(pids, about), folders)
    result["stream_seconds"] = round(stream.write(args.stream, recorded), 1)
    result["stream_bytes"] = args.stream.stat().st_size
    partial = args.result.with_suffix(".part")
    partial.write_text(json.dumps(result))
    partial.replace(args.result)
    return 0


def watch(pid: int, seconds: float, until: frozenset[str], at_least: float) -> dict[str, Any]:
    """What the monitor said of this process tree, and the timeline it fed."""
    timeline = stream.RecordingTimeline(time.monotonic_ns)
    monitor = live_monitor(attach_pid=pid, timeline=timeline)
    log = FindingLog()
    pids = {pid}
    began_ns = time.monotonic_ns()

    def take(snapshot: Snapshot) -> None:
        log.take(snapshot)
        pids.update(rank.facts.pid for run in snapshot.runs for rank in run.ranks)

    def is_done() -> bool:
        return bool(until) and until <= log.rules() and time.monotonic_ns() - began_ns >= at_least * 1e9

    try:
        monitor.run_until(began_ns + round(seconds * 1e9), on_tick=take, stop=is_done)
        ended_ns = time.monotonic_ns()
        snapshot, scene = monitor.snapshot(), monitor.final_scene((ended_ns - began_ns) / 1e9)
    finally:
        monitor.stop()
    return {
        "began": began_ns / 1e9,
        "ended": ended_ns / 1e9,
        "found": log.plain(),
        "figures": figures(snapshot, scene),
        "notices": list(snapshot.notices),
        "timeline": timeline,
        "pids": pids,
    }


def figures(snapshot: Snapshot, scene: Scene) -> dict[str, Any]:
    """The numbers that say whether the hardware answers as we think."""
    found: dict[str, Any] = {}
    if snapshot.nvml is not None:
        nvml, watched = snapshot.nvml, max(1e-9, (snapshot.time_ns - snapshot.started_ns) / 1e9)
        found |= {
            "nvml": nvml.status,
            "nvml_calls_per_second": nvml.calls / watched,
            "nvml_ms_per_call": 1e3 * nvml.call_seconds / nvml.calls if nvml.calls else None,
            "nvml_missed_polls": nvml.missed_polls,
        }
    found["own_cpu_share"] = scene.quality.own_cpu_share
    for gpu in snapshot.gpus[:1]:
        latest = gpu.latest
        found |= {
            "utilization_percent": gpu.utilization_mean_percent,
            "utilization_sigma": gpu.utilization_sigma_percent,
            "power_watts": latest.power_watts if latest else None,
            "sm_activity_percent": latest.sm_activity_percent if latest else None,
            "tensor_activity_percent": latest.tensor_activity_percent if latest else None,
            "not_available": dict(latest.unavailable) if latest else {},
        }
    for run in snapshot.runs[:1]:
        found |= {
            "visibility": run.visibility,
            "state": run.state,
            "steps": run.steps_total,
            "step_ms": 1e3 * run.step_seconds if run.step_seconds else None,
            "wait_share": run.wait_share,
            "gap_share": run.gap_share,
            "gap_measured": any(rank.facts.gpu_gap_measured for rank in run.ranks),
            "top_line": _line(run.top_line),
        }
    for window in scene.runs[:1]:
        hot, stacks = hot_line(window.critical), window.critical.stacks
        found["hot_line"] = _line(hot.line) if hot is not None else None
        if stacks is not None:
            found["looks"] = stacks.samples
            found["phases"] = {name: share.value for name, share in stacks.phases.items()}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def _line(line: Any) -> str | None:
    return None if line is None else f"{Path(line.file).name}:{line.line}"


if __name__ == "__main__":
    raise SystemExit(main())
