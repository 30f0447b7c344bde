"""The GPUs and who has them as a table of text and as data, without a screen."""

from __future__ import annotations

import json
import platform
import time

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.panels.gpu_rows import power_limit, total_of
from gpuwatch.dashboard.words import USE_WORDS, process_words
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.samples import GpuProcess
from gpuwatch.text import aligned


def table(snapshot: Snapshot) -> str:
    """One line per GPU, one for all of them, then one per process that is not in its GPU's line."""
    heads = ("GPU", "NAME", "UTIL", "POWER", "MEMORY", "TEMP", "THROTTLE", "PID", "USER", "TIME", "COMMAND")
    rows = [list(heads), *(_row(gpu, snapshot) for gpu in snapshot.gpus)]
    total = total_of(snapshot.gpus)
    uses = ", ".join(f"{total.uses[use]} {words}" for use, words in USE_WORDS.items() if total.uses[use])
    lines = aligned(rows, right={2, 3, 4, 5, 7, 9})
    if len(snapshot.gpus) > 1:
        power = say.kilowatts(total.power_watts, total.power_limit_watts)[0]
        memory = say.memory_of_total(total.memory_used_bytes, total.memory_total_bytes, 0)
        mean = say.percent(total.utilization_percent)
        lines.append(f"{total.gpus} GPUs: {uses}; utilization {mean}, power {power}, memory {memory}")
    more = [(gpu, process) for gpu in snapshot.gpus for process in (gpu.processes or ())[1:]]
    if more:
        lines.append("")
        others = [["GPU", "PID", "USER", "MEMORY", "TIME", "COMMAND"]]
        others += [[gpu.facts.label, *_process(process, gpu, snapshot, held=True)] for gpu, process in more]
        lines += aligned(others, right={1, 3, 4})
    return "\n".join(lines)


def _row(gpu: GpuNow, snapshot: Snapshot) -> list[str]:
    latest = gpu.latest
    name = gpu.facts.mig_profile or say.gpu_name(gpu.facts.name)
    if latest is None or gpu.status != "live":
        return [gpu.facts.label, name, gpu.status.upper(), *[say.UNKNOWN] * 8]
    utilization = latest.utilization_percent
    if utilization is None and gpu.facts.mig_parent is not None:
        utilization = latest.sm_activity_percent
    known = latest.event_reasons is not None
    processes = gpu.processes
    owner = [say.UNKNOWN if processes is None else "free", "", "", ""]
    if processes:
        owner = _process(processes[0], gpu, snapshot)
        owner[-1] += f" +{len(processes) - 1}" if len(processes) > 1 else ""
    return [
        gpu.facts.label,
        say.escape(name),
        say.percent(utilization),
        say.of_limit(latest.power_watts, power_limit(gpu), "W"),
        say.memory_of_total(latest.memory_used_bytes, gpu.facts.memory_total_bytes),
        say.celsius(latest.temperature_celsius),
        ", ".join(gpu.throttled_by) or ("none" if known else say.UNKNOWN),
        *owner,
    ]


def _process(process: GpuProcess, gpu: GpuNow, snapshot: Snapshot, *, held: bool = False) -> list[str]:
    said = process_words(process, gpu, snapshot)
    names = ("pid", "user", "holds", "time", "command") if held else ("pid", "user", "time", "command")
    return [said[name] for name in names]


def as_json(snapshot: Snapshot) -> str:
    """The same as data; what is unknown is null."""
    total = total_of(snapshot.gpus)
    gpus = []
    for gpu in snapshot.gpus:
        latest, facts = gpu.latest, gpu.facts
        gpus.append(
            {
                "gpu": facts.label,
                "uuid": facts.uuid,
                "name": facts.name,
                "mig_parent": facts.mig_parent,
                "status": gpu.status,
                "status_reason": gpu.status_reason,
                "utilization_percent": latest.utilization_percent if latest else None,
                "sm_activity_percent": latest.sm_activity_percent if latest else None,
                "power_watts": latest.power_watts if latest else None,
                "power_limit_watts": power_limit(gpu),
                "memory_used_bytes": latest.memory_used_bytes if latest else None,
                "memory_total_bytes": facts.memory_total_bytes,
                "temperature_celsius": latest.temperature_celsius if latest else None,
                "sm_clock_mhz": latest.sm_clock_mhz if latest else None,
                "throttled_by": list(gpu.throttled_by),
                "processes": None if gpu.processes is None else [_as_data(each) for each in gpu.processes],
            }
        )
    data = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(snapshot.wall_time)),
        "host": platform.node(),
        "driver_version": snapshot.nvml.driver_version if snapshot.nvml else None,
        "gpus": gpus,
        "total": {
            "gpus": total.gpus,
            "utilization_percent": total.utilization_percent,
            "power_watts": total.power_watts,
            "power_limit_watts": total.power_limit_watts,
            "memory_used_bytes": total.memory_used_bytes,
            "memory_total_bytes": total.memory_total_bytes,
            **{f"gpus_{use}": total.uses[use] for use in USE_WORDS},
        },
    }
    return json.dumps(data, indent=2)


def _as_data(process: GpuProcess) -> dict[str, object]:
    return {
        "pid": process.pid,
        "host_pid": process.host_pid,
        "user": process.user,
        "memory_bytes": process.memory_bytes,
        "sm_percent": process.sm_percent,
        "age_seconds": process.age_seconds,
        "command": process.command,
    }
