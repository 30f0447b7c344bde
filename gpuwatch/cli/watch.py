"""`gpuwatch watch`: one line per second, for logs, pipes and screen readers."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gpuwatch.cli.arguments import add_alerts, add_simulate, add_watching, duration
from gpuwatch.cli.output import ExitCode, say, write_stdout
from gpuwatch.cli.session import NothingSeen, Session, open_session
from gpuwatch.cli.signals import StopSignals
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import STEPLESS, GpuNow, RunNow, Snapshot
from gpuwatch.numbers import duration_words, percent, rate, seconds
from gpuwatch.samples import GpuHealth, GpuSample, GpuStatus
from gpuwatch.text import printable

_PAST_NS = 1_500_000_000
_UNKNOWN = "n/a"
_GIB = 1024**3
_DETAIL = {"sampled": "sampled", "process": "/proc only", "hardware": "hardware only"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "One line per second on stdout; findings go to stderr as they appear."
    parser.add_argument("--duration", type=duration, metavar="S", help="seconds to watch (default: until Ctrl-C)")
    add_watching(parser)
    add_alerts(parser)
    add_simulate(parser)


def watch(arguments: argparse.Namespace) -> int:
    with open_session(arguments) as session:
        return watch_session(session, arguments.duration)


def watch_session(session: Session, duration_seconds: float | None = None) -> int:
    """Writes lines until the time is over, the user stops it, the reader goes, or the attached process ends."""
    lines = _Lines(session)
    nothing = NothingSeen(patient=False)

    def on_tick(snapshot: Snapshot) -> None:
        nothing.see(snapshot)
        lines.take(snapshot)

    with StopSignals(session.monitor.stop) as signals:
        session.monitor.run_until(session.now_ns())  # a simulated past takes seconds of a duration on a busy machine
        deadline_ns = session.now_ns() + round(duration_seconds * 1e9) if duration_seconds else None
        session.monitor.run_until(deadline_ns, on_tick=on_tick, stop=lambda: nothing.is_sure or session.has_ended())
    if nothing.is_sure:
        nothing.refuse(session.monitor.snapshot())
    if signals.received:
        return ExitCode.INTERRUPTED
    if session.has_ended():
        say(f"gpuwatch: {session.narrowed_to} has ended")
    return ExitCode.OK


class _Lines:
    """Writes a line for a snapshot when it is time for one, and reports findings as they come and go."""

    def __init__(self, session: Session) -> None:
        # Polls jitter by 10%, and a new finding brings a snapshot of its own.
        self._pause_ns = round(0.7e9 * max(0.5, session.interval_seconds))
        self._session = session
        self._written_ns: int | None = None
        self._active: dict[tuple[str, str | None, str | None], str] = {}
        """The subject of each finding that is active."""
        self._hints: set[str] = set()
        self._notices: set[str] = set()

    def take(self, snapshot: Snapshot) -> None:
        """Takes a new snapshot. A simulated one may still be living through its past."""
        if self._session.now_ns() - snapshot.time_ns > _PAST_NS:
            return
        for notice in snapshot.notices:
            if notice not in self._notices:
                self._notices.add(notice)
                say(f"gpuwatch: {printable(notice)}")
        self._say_findings(snapshot)
        if self._session.attached is not None:
            self._say_how_to_see_more(snapshot)
        if self._written_ns is not None and snapshot.time_ns - self._written_ns < self._pause_ns:
            return
        self._written_ns = snapshot.time_ns
        write_stdout(f"{printable(watch_line(snapshot))}\n")

    def _say_how_to_see_more(self, snapshot: Snapshot) -> None:
        """How to see more of what was attached to, once per cause."""
        for run in snapshot.runs:
            if run.visibility != "exact" and run.how_to_see_more and run.how_to_see_more not in self._hints:
                self._hints.add(run.how_to_see_more)
                say(f"gpuwatch: {run.title} ({run.pid}): {run.how_to_see_more}")

    def _say_findings(self, snapshot: Snapshot) -> None:
        now = {(found.rule, found.run, found.gpu): found for found in snapshot.findings}
        for key, found in now.items():
            if key not in self._active:
                self._active[key] = subject_of(found, snapshot)
                say(f"{found.severity.value.upper()} {found.rule}: {self._active[key]}{found.summary}")
        for key in sorted(self._active.keys() - now.keys(), key=str):
            say(f"over: {self._active.pop(key)}{key[0]}")


def subject_of(found: Finding, snapshot: Snapshot) -> str:
    """The subject of a finding, to begin its sentence with: "train.py (4711): "; nothing where it says so itself."""
    names = [f"{run.title} ({run.pid})" for run in snapshot.runs if run.id == found.run]
    names += [f"GPU {gpu.facts.label}" for gpu in snapshot.gpus if found.run is None and gpu.facts.uuid == found.gpu]
    return f"{names[0]}: " if names and names[0] not in found.summary else ""


def watch_line(snapshot: Snapshot) -> str:
    """One line: every figure with its unit, in the same order each second; unknown is "n/a".

    Several GPUs share it: power and memory as sums, the rest as the range over them.
    """
    parts = [time.strftime("%H:%M:%S", time.localtime(snapshot.wall_time))]
    if snapshot.origin.kind != "live":
        parts.append(snapshot.origin.label)
    parts += _gpus(snapshot.gpus) if snapshot.gpus else [_without_gpu(snapshot)]
    parts += _runs(snapshot.runs, snapshot.time_ns)
    return " | ".join(parts)


def _without_gpu(snapshot: Snapshot) -> str:
    nvml = snapshot.nvml
    if nvml is None:
        return "waiting for the driver"
    return "no GPU" if nvml.status in ("ok", "absent") else f"GPUs unknown: {nvml.reason or nvml.status}"


def _gpus(gpus: Sequence[GpuNow]) -> list[str]:
    live = [gpu for gpu in gpus if gpu.status == "live" and gpu.latest is not None]
    return [
        f"{_heading(gpus)} {_power(live)}",
        f"util {_range(live, _utilization, '%')}",
        f"mem {_memory(live)}",
        _range(live, lambda gpu: _read(gpu.latest, "temperature_celsius"), " °C"),
        f"SM {_range(live, lambda gpu: _read(gpu.latest, 'sm_clock_mhz'), ' MHz')}",
        f"mem clock {_range(live, lambda gpu: _read(gpu.latest_status, 'memory_clock_mhz'), ' MHz')}",
        *_throttled(live),
    ]


def _heading(gpus: Sequence[GpuNow]) -> str:
    """The GPU, or how many; and which do not answer: "GPU 0 LOST", "8 GPUs (1 LOST)"."""
    if len(gpus) == 1:
        state = "" if gpus[0].status == "live" else f" {gpus[0].status.upper()}"
        return f"GPU {gpus[0].facts.label}{state}"
    silent = Counter(gpu.status.upper() for gpu in gpus if gpu.status != "live")
    marks = ", ".join(f"{count} {status}" for status, count in silent.items())
    return f"{len(gpus)} GPUs{f' ({marks})' if marks else ''}"


def _utilization(gpu: GpuNow) -> float | None:
    """The mean since the last poll where the driver keeps a ring, else its last reading."""
    return _ring_mean(gpu.latest.utilization_ring, gpu.latest.utilization_percent) if gpu.latest else None


def _mean_power(gpu: GpuNow) -> float | None:
    """As the utilization."""
    return _ring_mean(gpu.latest.power_ring, gpu.latest.power_watts) if gpu.latest else None


def _ring_mean(ring: Sequence[tuple[int, float]], reading: float | None) -> float | None:
    return sum(value for _, value in ring) / len(ring) if ring else reading


def _read(sample: GpuSample | GpuStatus | GpuHealth | None, field: str) -> float | None:
    value: float | None = getattr(sample, field, None)
    return value


def _power(gpus: Sequence[GpuNow]) -> str:
    """Watts, of the limit in percent. Where a GPU's limit is not known, only the watts."""
    watts = _known([_mean_power(gpu) for gpu in gpus])
    if watts is None:
        return f"{_UNKNOWN} W"
    limits = _known([_limit(gpu) for gpu in gpus])
    total = sum(watts)
    if not limits or not sum(limits):
        return f"{total:.0f} W"
    return f"{total:.0f}/{sum(limits):.0f} W ({100 * total / sum(limits):.0f}%)"


def _limit(gpu: GpuNow) -> float | None:
    newest = _read(gpu.latest_health, "power_limit_watts")
    return gpu.facts.power_limit_watts if newest is None else newest


def _memory(gpus: Sequence[GpuNow]) -> str:
    used = _known([_read(gpu.latest, "memory_used_bytes") for gpu in gpus])
    if used is None:
        return f"{_UNKNOWN} GiB"
    totals = _known([gpu.facts.memory_total_bytes for gpu in gpus])
    total = f"/{sum(totals) / _GIB:.1f}" if totals else ""
    unified = " (unified)" if any(gpu.facts.memory_unified for gpu in gpus) else ""
    return f"{sum(used) / _GIB:.1f}{total} GiB{unified}"


def _range(gpus: Sequence[GpuNow], read: Callable[[GpuNow], float | None], unit: str) -> str:
    """The value, or the least and the most of several."""
    values = _known([read(gpu) for gpu in gpus])
    if values is None:
        return _UNKNOWN
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{least}{unit}" if least == most else f"{least}-{most}{unit}"


def _known(values: Sequence[float | None]) -> list[float] | None:
    """The values; None where there are none, or where one is missing: a sum without it would be a lie."""
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def _throttled(gpus: Sequence[GpuNow]) -> list[str]:
    words = list(dict.fromkeys(word for gpu in gpus for word in gpu.throttled_by))
    return [f"throttle: {', '.join(words)}"] if words else []


def _runs(runs: Sequence[RunNow], now_ns: int) -> list[str]:
    """The run that waits most, by its name where there are others, which are counted.

    Of one that makes no steps, how long ago the last one was: its figures are of before that.
    """
    living = [run for run in runs if run.state != "ended"]
    if not living:
        return ["no run"]
    run = max(living, key=lambda each: (each.wait_share is not None, each.wait_share or 0.0))
    step_seconds = run.step_seconds_p50 or run.step_seconds
    step = f"step {_UNKNOWN if step_seconds is None else seconds(step_seconds)}"
    wait = f"wait {_UNKNOWN if run.wait_share is None else percent(run.wait_share)}"
    visibility = [] if run.visibility == "exact" else [_DETAIL.get(run.visibility, run.visibility)]
    more = len(living) - 1
    others = [f"+{more} run{'' if more == 1 else 's'}"] if more else []
    name = [f"{printable(run.title)} ({run.pid})"] if others else []
    state = [] if run.state in ("training", "not hooked") else [run.state_words + _age(run, now_ns)]
    return [*name, step, *_rate(run), wait, *visibility, *state, *others]


def _age(run: RunNow, now_ns: int) -> str:
    if run.state not in STEPLESS | {"stopped"} or run.last_step_ns is None:
        return ""
    return f", last {run.step_names[0]} {duration_words(max(0, now_ns - run.last_step_ns) / 1e9)} ago"


def _rate(run: RunNow) -> list[str]:
    """Batches or iterations counted from outside, where steps are not seen one by one."""
    if run.batches_per_second is None:
        return []
    least = "" if run.batches_exact else "at least "
    return [f"{least}{rate(run.batches_per_second)} {run.step_names[1]}/s"]
