"""`gpuwatch --attach` without a pid: which processes of this machine train, and which one is meant."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from gpuwatch.cli.candidate_table import table_lines
from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import is_terminal, say, write_stdout
from gpuwatch.samples import Candidate, GpuFacts, GpuStatus, NvmlState
from gpuwatch.sources.discovery.source import DiscoverySource
from gpuwatch.sources.hook_link.presences import names_its_own
from gpuwatch.sources.hook_link.processes import Processes, rendezvous_path
from gpuwatch.sources.hook_link.rendezvous import Rendezvous, RendezvousError
from gpuwatch.sources.nvml.source import NvmlSource
from gpuwatch.timeline.runs import title_of

_PROC = Path("/proc")
_DRIVER_SECONDS = 2.0
"""A driver that keeps its GPUs loaded answers within 0.3 s; the list is worth having without it."""


@dataclass(slots=True)
class Gpus:
    """What the driver reported of its GPUs."""

    indices: dict[str, int] = field(default_factory=dict)
    processes: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by the host's pid
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The processes that train, and the GPUs of this machine."""

    processes: tuple[Candidate, ...]
    gpus: Gpus


def list_candidates() -> int:
    """Writes them to stdout as a table.

    Raises:
        GpuwatchError: there are none.
    """
    found = find_candidates()
    if not found.processes:
        raise GpuwatchError(_nothing(found))
    lines = table_lines(found.processes, found.gpus.indices, _width(sys.stdout))
    if is_terminal(sys.stdout):
        write_stdout(_coloured(lines), styled=True)
    else:
        write_stdout("".join(f"{line}\n" for _, line in lines))
    say("attach with `gpuwatch --attach PID`, or write a report with `gpuwatch report --attach PID`")
    for climb in dict.fromkeys(each.climb for each in found.processes if each.climb and not each.refusal):
        say(f"to see more of one: {climb}")
    return ExitCode.OK


def pick_candidate(command: str) -> int:
    """The pid of the only process that trains and may be looked at; says which that is.

    Args:
        command: the one that needs a pid: "record", "report", "watch".

    Raises:
        GpuwatchError: there are none, or several to choose from, which are listed.
    """
    found = find_candidates()
    mine = [each for each in found.processes if each.rung != "hardware"]
    if len(mine) == 1:
        say(f"gpuwatch: attaching to {title_of(mine[0].command)} ({mine[0].pid}), which {mine[0].why}")
        return mine[0].pid
    if not found.processes:
        raise GpuwatchError(_nothing(found))
    say("\n".join(line for _, line in table_lines(found.processes, found.gpus.indices, _width(sys.stderr))))
    if not mine:
        raise GpuwatchError("none of these processes may be attached to: run gpuwatch as their user or as root (sudo)")
    raise GpuwatchError(
        f"{len(mine)} processes train here: say which, as in `gpuwatch {command} --attach {mine[0].pid}`"
    )


def find_candidates() -> Found:
    """Looks once: at the driver, at the runs with the hook, and through /proc.

    Raises:
        GpuwatchError: processes cannot be looked at here.
    """
    if sys.platform != "linux":
        raise GpuwatchError("processes are found through /proc, on Linux only: start the training with `gpuwatch run`")
    gpus = _gpus(NvmlSource())
    discovery = DiscoverySource(hooked=_hooked_pids, gpu_processes=lambda: gpus.processes)
    try:
        return Found(discovery.look_now().processes, gpus)
    finally:
        discovery.close()


def _gpus(source: NvmlSource, patience_seconds: float = _DRIVER_SECONDS) -> Gpus:
    """The GPUs and the processes on them, as far as the driver tells in time."""
    gpus = Gpus()
    told: set[str] = set()
    end = time.monotonic() + patience_seconds
    try:
        while (left := end - time.monotonic()) > 0:
            for sample in source.collect(time.monotonic_ns()):
                match sample:
                    case GpuFacts():
                        gpus.indices[sample.uuid] = sample.index
                    case GpuStatus():
                        told.add(sample.uuid)
                        for process in sample.processes or ():
                            before = gpus.processes.get(process.host_pid, ())
                            gpus.processes[process.host_pid] = (*before, sample.uuid)
                    case NvmlState(status="ok", gpu_count=count) if count is not None and count <= len(told):
                        return gpus
                    case NvmlState(status="absent" | "failing"):
                        gpus.problem = sample.reason
                        return gpus
            file = source.fileno()
            select.select([] if file is None else [file], [], [], min(left, 0.1))
    finally:
        source.close()
    gpus.problem = None if gpus.indices else "the driver has not answered"
    return gpus


def _hooked_pids(environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """The trainers that left word in this user's meeting folder and live."""
    processes, me = Processes(_PROC), os.geteuid()
    try:
        folder = Rendezvous.open(rendezvous_path(environment, me), me)
    except RendezvousError:  # no run has left a file there, or it is not to be trusted: `gpuwatch doctor` says so
        return
    try:
        for presence in folder.presences():
            is_here = presence.pid_namespace in (None, processes.pid_namespace)
            is_own = is_here and names_its_own(processes, folder, presence.pid)
            if is_own and processes.is_alive(presence.pid, presence.start_ticks):
                yield presence.pid
    finally:
        folder.close()


def _coloured(lines: Iterable[tuple[bool, str]]) -> str:
    """For people: each process's own line stands out."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, soft_wrap=True, highlight=False)
    for is_process, line in lines:
        console.print(Text(line, style="bold" if is_process else ""))
    return out.getvalue()


def _width(stream: TextIO | None) -> int | None:
    """The columns of a terminal; None where lines are not folded."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def _nothing(found: Found) -> str:
    driver = f" ({found.gpus.problem.rstrip('.')})" if found.gpus.problem else ""
    return (
        f"no process that trains was found: none with the hook, none on a GPU{driver}, no Python process with torch "
        "loaded; start one with `gpuwatch run python train.py`, or look at `gpuwatch demo`"
    )
