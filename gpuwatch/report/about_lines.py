"""How well it was measured, and on what machine, in lines of plain words."""

from __future__ import annotations

from gpuwatch.report.observation import Json
from gpuwatch.report.tables import UNKNOWN, gibibytes, number, seconds, share
from gpuwatch.text.numbers import grouped


def quality_lines(report: Json) -> list[str]:
    """How well this was measured."""
    quality = report["data_quality"]
    lines = [
        *quality["problems"],
        f"window {number(quality['window_seconds'])} s; findings over the last "
        f"{number(quality['findings_window_seconds'])} s",
        f"{grouped(quality['gpu_samples'])} GPU polls, every {seconds(quality['poll_interval_seconds'])} "
        f"(gap p95 {seconds(quality['poll_gap_p95_seconds'])}, longest {seconds(quality['longest_gap_seconds'])})",
        f"{grouped(quality['received_records'])} records of training processes, "
        f"{grouped(quality['dropped_records'])} dropped, {grouped(quality['malformed_packets'])} malformed packets",
    ]
    windows = {gpu["sensor_window_seconds"] for gpu in report["gpus"]} - {None}
    if windows:
        lines.append(f"utilization sensor averages over {' or '.join(seconds(each) for each in sorted(windows))}")
        steps = [run["step_seconds"]["p50"] for run in report["runs"] if run["step_seconds"]]
        if steps and min(steps) < 2 * max(windows):
            lines.append(
                f"a step of {seconds(min(steps))} is shorter than twice that: fluctuation from step to step cannot be "
                "seen in the utilization"
            )
    cost = [] if quality["own_cpu_share"] is None else [f"{share(quality['own_cpu_share'])} of one core"]
    if quality["nvml_calls_per_gpu_second"]:
        cost.append(f"{number(quality['nvml_calls_per_gpu_second'], 1)} NVML calls per GPU and second")
    lines.append(f"own cost: {', '.join(cost) or 'not measured'}")
    lines.append(rules_line(report))
    nvml = quality["nvml"]
    if nvml and (nvml["status"] != "ok" or nvml["restarts"] or nvml["missed_polls"]):
        reason = f" ({nvml['reason'].rstrip('.')})" if nvml["reason"] else ""
        lines.append(f"NVML {nvml['status']}{reason}, {nvml['missed_polls']} missed polls, {nvml['restarts']} restarts")
    return lines


def rules_line(report: Json) -> str:
    """How many rules could judge, and why the others could not."""
    rules = report["rules"]
    reasons: dict[str, int] = {}
    for rule in rules:
        if not rule["judged"]:
            reasons[rule["reason"]] = reasons.get(rule["reason"], 0) + 1
    said = "; ".join(f"{count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda each: -each[1]))
    judged = sum(rule["judged"] for rule in rules)
    return f"{judged} of {len(rules)} rules could judge" + (f"; not {said}" if said else "")


def environment_lines(report: Json) -> list[str]:
    """The machine and the software."""
    host = report["host"]
    quota = f", quota {number(host['cpu_quota_cores'], 1)} cores" if host["cpu_quota_cores"] else ""
    kind = "".join(f", {word}" for word in ("container", "wsl") if host[word])
    lines = [
        f"gpuwatch {report['gpuwatch']['version']}",
        f"host {host['hostname'] or UNKNOWN}, kernel {host['kernel'] or UNKNOWN}{kind}",
        f"CPU {host['cpu_model'] or UNKNOWN}, {host['cpu_count'] or UNKNOWN} cores{quota}, "
        f"{number(host['cpu_percent'])} % busy",
        f"memory {gibibytes(host['memory_available_bytes'])} of {gibibytes(host['memory_total_bytes'])} GiB available",
        f"driver {host['driver_version'] or UNKNOWN}, CUDA {host['cuda_version'] or UNKNOWN}",
    ]
    lines += [
        f"{run['title']} ({run['pid']}): torch {run['torch'] or UNKNOWN}, Python {run['python'] or UNKNOWN}, "
        f"command {run['command']}"
        for run in report["runs"]
    ]
    return lines
