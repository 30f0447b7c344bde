"""The processes: ranks of the runs, and everybody else with a context on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import Key, bottom_line
from gpuwatch.dashboard.lines import Line, LineWriter, Page
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import OLD_STATUS_NS, View
from gpuwatch.dashboard.words import VISIBILITIES, gpu_indices
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.monitor.verdict import unhooked
from gpuwatch.samples import GpuProcess, RunFacts

_CAN_ATTACH = {
    "exact": "no hook (a: attach)",
    "sampled": "no hook (a: attach)",
    "process": "no hook, a: /proc only",
    "hardware": "NVML",
}
"""What the key does for a process without a hook, by how well it can be seen at best."""


@dataclass(frozen=True, slots=True)
class _Row:
    pid: str
    gpu: str
    memory: str
    sm: str
    kind: str
    command: str


def process_page(view: View, width: int, look: Look) -> list[Line]:
    """The table, and where the lists are unknown, why."""
    snapshot = view.snapshot
    page = Page(width, look)
    page.heading(
        "Processes on GPUs, and trainings on the CPU", right=f"filter: {say.escape(view.filter)}" if view.filter else ""
    )
    page.lines.append(_line(_Row("PID", "GPU", "memory", "SM", "seen by", "command"), width, look, head=True))
    if snapshot is None:
        return page.lines
    wanted = view.filter.casefold()
    rows = [row for row in _rows(snapshot) if wanted in f"{row.pid} {row.command} {row.kind}".casefold()]
    page.add([_line(row, width, look) for row in rows])
    if not rows:
        page.gap()
        page.prose("No process matches the filter." if view.filter else "No process has a context on a GPU.", look.dim)
    _reasons(page, snapshot)
    return page.lines


def _rows(snapshot: Snapshot) -> list[_Row]:
    """By GPU; a trainer that no GPU lists (it trains on the CPU, or the list is unknown) comes last."""
    trainers = {rank.facts.pid: rank.facts for run in snapshot.runs for rank in run.ranks if run.state != "ended"}
    marked = {candidate.pid: _CAN_ATTACH[candidate.visibility] for candidate in unhooked(snapshot)}
    rows, seen = [], set()
    for gpu in snapshot.gpus:
        for process in _processes(gpu):
            if process.pid is not None:
                seen.add(process.pid)
            rows.append(_of_gpu(process, gpu, trainers, marked))
    for pid, facts in trainers.items():
        if pid not in seen:
            where, kind = facts.device or say.UNKNOWN, marked.get(pid) or _seen_by(facts)
            rows.append(_Row(str(pid), where, say.UNKNOWN, say.UNKNOWN, kind, say.short_command(facts.command)))
    for candidate in unhooked(snapshot):
        if candidate.pid not in seen and candidate.pid not in trainers:
            command, kind = say.short_command(candidate.command), marked[candidate.pid]
            where = gpu_indices(candidate, snapshot)
            rows.append(_Row(str(candidate.pid), where, say.UNKNOWN, say.UNKNOWN, kind, command))
    return rows


def _processes(gpu: GpuNow) -> tuple[GpuProcess, ...]:
    return (gpu.latest_status.processes or ()) if gpu.latest_status else ()


def _of_gpu(process: GpuProcess, gpu: GpuNow, trainers: dict[int, RunFacts], marked: dict[int, str]) -> _Row:
    facts = trainers.get(process.pid) if process.pid is not None else None
    mark = marked.get(process.pid) if process.pid is not None else None
    pid = str(process.pid) if process.pid is not None else f"host {process.host_pid}"
    command = say.short_command(facts.command) if facts else say.escape(process.command or "")
    if not command:
        command = "not visible from this pid namespace" if process.pid is None else say.UNKNOWN
    return _Row(
        pid,
        gpu.facts.label,
        say.byte_size(process.memory_bytes),
        say.percent(process.sm_percent),
        mark or (_seen_by(facts) if facts else "NVML"),
        command,
    )


def _seen_by(facts: RunFacts) -> str:
    rank = f"rank {facts.rank}, " if facts.rank is not None else ""
    return rank + VISIBILITIES.get(facts.visibility, facts.visibility)


def _line(row: _Row, width: int, look: Look, *, head: bool = False) -> Line:
    style = look.heading if head else look.text
    fill = look.heading if head else look.text
    writer = LineWriter(width, look).to(1, fill)
    writer.right(row.pid, 12, look.heading if head else look.accent).to(writer.cells + 2, fill)
    writer.left(row.gpu, 4, style).right(row.memory, 11, style).right(row.sm, 7, style).to(writer.cells + 2, fill)
    writer.left(row.kind, 22, look.heading if head else look.dim).to(writer.cells + 1, fill)
    return writer.put(row.command, style).line(fill)


def _reasons(page: Page, snapshot: Snapshot) -> None:
    """Why lists or columns are missing."""
    for gpu in snapshot.gpus:
        status = gpu.latest_status
        if status is None:
            page.prose(f"GPU {gpu.facts.label}: its processes have not been read yet.", page.look.dim)
        elif status.processes is None:
            reason = status.unavailable.get("processes", "the driver does not say")
            page.prose(f"GPU {gpu.facts.label}: process list unknown: {reason}", page.look.dim)
        elif snapshot.time_ns - status.time_ns > OLD_STATUS_NS:
            age = say.age(snapshot.time_ns - status.time_ns)
            page.prose(f"GPU {gpu.facts.label}: its processes were read {age} ago.", page.look.warning)


class ProcessesScreen(PageScreen):
    """Who uses the GPUs."""

    CAN_FILTER = True
    PLACE = "processes"

    def keys(self, view: View) -> list[Key]:
        """Less attaching, where there is nothing to attach to."""
        replays = view.snapshot is not None and view.snapshot.replay is not None
        return bottom_line(self.PLACE, frozenset() if replays else frozenset({"live"}))

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        return process_page(view, width, look)
