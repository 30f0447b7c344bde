"""The report's figures as rows of plain words, the same for every renderer; unknown is "n/a", never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwatch.diagnosis import wording
from gpuwatch.monitor.snapshot import ACCUMULATES, ENDS
from gpuwatch.report.observation import Json
from gpuwatch.report.sparkline import sparkline
from gpuwatch.text import numbers
from gpuwatch.text.numbers import grouped

UNKNOWN = "n/a"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Table:
    """A heading row and rows of as many cells; `notes` say why a figure is missing."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def banner(report: Json) -> list[str]:
    """What a reader must know before the first number: that it is made up, or that it was cut short."""
    about = report["gpuwatch"]
    lines = []
    if about["source"] == "simulated":
        lines.append(f"{about['label']}: these numbers are not of this machine")
    elif "SIMULATED" in about["label"]:
        lines.append(f"{about['label']}: these numbers were made up")
    if about["incomplete"]:
        lines.append(
            f"INCOMPLETE: stopped after {number(about['duration_seconds'], 1)} s; this is what was seen so far"
        )
    return lines + list(about["notes"])


def subtitle(report: Json) -> str:
    """Where, how long and when."""
    about = report["gpuwatch"]
    host = report["host"]["hostname"] or "this machine"
    return f"{about['label']} · {host} · {number(about['duration_seconds'])} s until {about['ended_at']}"


def place(fix: Json) -> str:
    """Where the fix goes, as file:line; empty where that is not known."""
    if not fix["file"]:
        return ""
    return fix["file"] if fix["line"] is None else f"{fix['file']}:{fix['line']}"


def verdict_lines(report: Json) -> list[tuple[str, str, str]]:
    """Per sentence of the verdict: its word, itself, and the line to change, as far as there is one."""
    lines = []
    for line in report["verdict"]:
        fix = line["fix"]
        code = "" if fix is None or "\n" in (fix["code"] or "") else fix["code"]  # of several lines the place will do
        change = "" if fix is None else "  ".join(part for part in (place(fix), code) if part)
        lines.append((_severity_word(line), line["sentence"], change))
    return lines


def _severity_word(line: Json) -> str:
    """The word that stands before a sentence; OK only where all was looked at and nothing is wrong."""
    if line["severity"]:
        return str(line["severity"]).upper()
    return "OK" if line["judged"] else "NOT JUDGED"


def checklist_table(report: Json) -> Table:
    """Target, met or not, and the value."""
    rows = []
    for target in report["checklist"]:
        value = UNKNOWN if target["value"] is None else f"{numbers.rate(target['value'])} {target['unit']}"
        rows.append((target["status"], target["target"], value + (f" ({target['where']})" if target["where"] else "")))
    return Table(("", "target", "measured"), tuple(rows))


def gpu_table(report: Json) -> Table:
    """One row per GPU."""
    heading = (
        "GPU",
        "util %",
        "sigma",
        "p5-p95",
        "power W: mean, peak / limit",
        "memory GiB: mean, peak / total",
        "°C: mean, max",
        "SM MHz",
        "energy Wh",
    )
    return Table(heading, tuple(_gpu_row(gpu) for gpu in report["gpus"]), tuple(_gpu_notes(report["gpus"])))


def _gpu_row(gpu: Json) -> tuple[str, ...]:
    use, power, memory = gpu["utilization_percent"], gpu["power_watts"], gpu["memory_bytes"]
    heat, clock, energy = gpu["temperature_celsius"], gpu["sm_clock_mhz"], gpu["energy_joules"]
    lost = f" {gpu['status'].upper()}" if gpu["status"] != "live" else ""
    return (
        f"{gpu['index']} {short_gpu_name(gpu['name'])}{lost}",
        number(use and use["mean"]),
        number(use and use["sigma"]),
        f"{number(use['p5'])}-{number(use['p95'])}" if use else UNKNOWN,
        f"{number(power['mean'])}, {number(power['max'])} / {number(power['limit'])}" if power else UNKNOWN,
        f"{gibibytes(memory['mean'])}, {gibibytes(memory['max'])} / {gibibytes(memory['total'])}"
        if memory
        else UNKNOWN,
        f"{number(heat['mean'])}, {number(heat['max'])}" if heat else UNKNOWN,
        number(clock and clock["mean"]),
        number(energy / 3600, 1) if energy is not None else UNKNOWN,
    )


def short_gpu_name(name: str) -> str:
    """The name without its maker's."""
    return name.removeprefix("NVIDIA ")


def _gpu_notes(gpus: Sequence[Json]) -> list[str]:
    """One line per reason, with the GPUs it is true for."""
    reasons: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu["status"] != "live" and gpu["status_reason"]:
            reasons.setdefault(f"{gpu['status']}: {gpu['status_reason']}", []).append(gpu["index"])
        for metric, reason in gpu["unavailable"].items():
            reasons.setdefault(f"{metric} {UNKNOWN}: {reason}", []).append(gpu["index"])
    return [f"GPU {', '.join(map(str, indices))}: {reason}" for reason, indices in reasons.items()]


def run_table(report: Json) -> Table:
    """One row per run."""
    heading = (
        "run",
        "steps",
        "samples/s",
        "step p50, p95",
        "wait for data",
        "GPU idle from waits",
        "phases",
    )
    rows, notes = [], []
    for run in report["runs"]:
        step = run["step_seconds"]
        phases = [
            f"{kind} {share(phase['share'])} ({grouped(phase['count'])}x)" for kind, phase in run["phases"].items()
        ]
        ranks = f", {len(run['ranks'])} ranks" if len(run["ranks"]) > 1 else ""
        rows.append(
            (
                f"{run['title']} ({run['pid']}{ranks}, {run['rung']}{_ended(run)})",
                UNKNOWN if run["steps"] is None else grouped(run["steps"]),
                rate(run["samples_per_second"]),
                f"{seconds(step['p50'])}, {seconds(step['p95'])}{_accumulated(run)}" if step else UNKNOWN,
                share(run["data_wait_share"]) + _wait_error(run),
                share(run["gpu_idle_from_wait_share"]),
                ", ".join(phases) or "none seen",
            )
        )
        notes += [f"{run['title']} ({run['pid']}): {key} {UNKNOWN}: {why}" for key, why in run["unavailable"].items()]
    return Table(heading, tuple(rows), tuple(notes))


def _accumulated(run: Json) -> str:
    """Of how many batches its steps are, where of more than one."""
    batches = run["batches_per_step"]
    return f" (steps of {batches:.3g} batches)" if batches and batches >= ACCUMULATES else ""


def _wait_error(run: Json) -> str:
    """Half the width of the 95 % interval in points, where the wait was sampled."""
    wait = run["stacks"]["train_phases"].get("wait") if run["stacks"] and run["rung"] == "sampled" else None
    return "" if wait is None else f" ±{(wait['high'] - wait['low']) * 50:.1f}"


def _ended(run: Json) -> str:
    how = run["ended"]
    if how is None:
        return ""
    return f", ended ({ENDS[how]})" if how in ENDS else ", ended"


def loader_lines(report: Json) -> list[str]:
    """The loaders of all runs, with the line that built each."""
    lines = []
    for run in report["runs"]:
        for loader in run["loaders"]:
            place = f"{loader['file']}:{loader['line']}" if loader["file"] else "place not known"
            settings = [
                f"{name}={loader[name]}"
                for name in ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor")
                if loader[name] is not None
            ] or ["settings not known"]
            lines.append(f"{run['title']} ({run['pid']}) {loader['role']} loader, {place}: {', '.join(settings)}")
    return lines


@dataclass(frozen=True, slots=True)
class Spark:
    """A labelled line of blocks with its range in words."""

    label: str
    blocks: str
    scale: str


def sparks(report: Json) -> list[Spark]:
    """Utilization and power of each GPU, waits and step time of each run, over the same time."""
    found = []
    for history in report["history"]:
        values = history["mean"]
        known = [value for value in values if value is not None]
        if not known:
            continue
        label, top, unit = _scale(report, history["series"], history["key"], max(known))
        if label:
            found.append(Spark(label, sparkline(values, top), f"0-{unit}, {seconds(history['bucket_seconds'])} each"))
    return found


def _scale(report: Json, series: str, key: str, highest: float) -> tuple[str, float, str]:
    gpu: Json = next((gpu for gpu in report["gpus"] if gpu["uuid"] == key), {})
    run: Json = next((run for run in report["runs"] if run["id"] == key), {})
    if gpu and series == "gpu.utilization_percent":
        return f"GPU {gpu['index']} utilization", 100.0, "100 %"
    if gpu and series == "gpu.power_watts":
        limit = (gpu["power_watts"] or {}).get("limit") or highest
        return f"GPU {gpu['index']} power", limit, f"{number(limit)} W"
    if run and series == "run.wait_share":
        return f"{run['title']} wait for data", 1.0, "100 %"
    if run and series == "run.step_seconds":
        return f"{run['title']} step time", highest, seconds(highest)
    return "", 1.0, ""


def number(value: Any, digits: int = 0) -> str:
    """A number with a fixed count of digits behind the point."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """0.413 -> "41 %"."""
    return UNKNOWN if value is None else wording.percent(value)


def seconds(value: float | None) -> str:
    """A duration with its unit: "312 ms", "4.2 s", "3.5 min"."""
    return UNKNOWN if value is None else wording.seconds(value)


def rate(value: float | None) -> str:
    """A number per second: three digits where it is small, so that little does not read as none."""
    return UNKNOWN if value is None else numbers.rate(value)


def gibibytes(value: float | None) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return UNKNOWN if value is None else f"{value / _GIB:.1f}"
