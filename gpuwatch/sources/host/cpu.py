"""Use of the machine's cores, from /proc/stat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuwatch.sources.host.procfs import read_all, read_once

_IDLE, _IOWAIT = 3, 4
_COUNTED = 8  # user nice system idle iowait irq softirq steal; guest time is already inside user and nice

CoreTicks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """Shares of all cores' time since the previous read; None and empty at the first."""

    percent: float | None = None
    percent_by_core: tuple[float, ...] = ()
    iowait_percent: float | None = None
    load_1m: float | None = None


def parse_cpu_ticks(raw: bytes) -> dict[str, CoreTicks]:
    """Ticks by kind of time, by line name: "cpu" is the whole machine, "cpu0" a core."""
    lines: dict[str, CoreTicks] = {}
    for line in raw.split(b"\n"):
        if not line.startswith(b"cpu"):
            break  # the cpu lines come first; the interrupt lines behind them are long
        name, *fields = line.split()
        try:
            ticks = tuple(int(field) for field in fields[:_COUNTED])
        except ValueError:
            continue
        if len(ticks) > _IDLE:
            lines[name.decode("ascii", "replace")] = ticks
    return lines


def shares(current: CoreTicks, previous: CoreTicks) -> tuple[float, float] | None:
    """(busy, iowait) percent between two reads, None when no time passed.

    idle and iowait may run backwards (proc(5) calls iowait unreliable), so no difference goes below zero.
    """
    spent = [max(0, now - before) for now, before in zip(current, previous, strict=False)]
    total = sum(spent)
    if total == 0:
        return None
    iowait = spent[_IOWAIT] if len(spent) > _IOWAIT else 0
    return 100.0 * (total - spent[_IDLE] - iowait) / total, 100.0 * iowait / total


class CpuReader:
    """Turns the growing tick counters of /proc/stat into shares."""

    def __init__(self, proc_root: Path) -> None:
        self._stat = f"{proc_root}/stat"
        self._loadavg = f"{proc_root}/loadavg"
        self._previous: dict[str, CoreTicks] = {}

    def read(self) -> CpuUsage:
        """The use of the cores since the previous call."""
        load = self._load()
        raw = read_all(self._stat)
        current = parse_cpu_ticks(raw) if raw else {}
        previous, self._previous = self._previous, current
        if "cpu" not in current or "cpu" not in previous:
            return CpuUsage(load_1m=load)
        whole = shares(current["cpu"], previous["cpu"])
        if whole is None:
            return CpuUsage(load_1m=load)
        return CpuUsage(whole[0], _by_core(current, previous), whole[1], load)

    def _load(self) -> float | None:
        raw = read_once(self._loadavg, 64)
        try:
            return float(raw.split(None, 1)[0]) if raw else None
        except (ValueError, IndexError):
            return None


def _by_core(current: dict[str, CoreTicks], previous: dict[str, CoreTicks]) -> tuple[float, ...]:
    if current.keys() != previous.keys():  # a core came or went: positions would name other cores
        return ()
    busy = []
    for name, ticks in current.items():
        if name != "cpu":
            share = shares(ticks, previous[name])
            busy.append(share[0] if share else 0.0)
    return tuple(busy)
