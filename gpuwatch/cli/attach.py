"""`--attach` without a pid: which processes of this machine train, and which one is meant. And `--inject` into one."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from gpuwatch.cli.output import ExitCode, GpuwatchError, is_terminal, say, write_styled
from gpuwatch.numbers import duration_words
from gpuwatch.samples import Candidate, GpuFacts, GpuStatus, NvmlState
from gpuwatch.sources.discovery import DiscoverySource
from gpuwatch.sources.hook_link.rendezvous import Processes, Rendezvous, RendezvousError, names_its_own, rendezvous_path
from gpuwatch.sources.nvml.source import NvmlSource
from gpuwatch.text import printable
from gpuwatch.timeline.runs import title_of

if TYPE_CHECKING:
    from gpuwatch.inject import Plan

_PROC = Path("/proc")
_DRIVER_SECONDS = 2.0
"""A driver that keeps its GPUs loaded answers within 0.3 s; the list is worth having without it."""

_HEAD = ("PID", "GPU", "AGE", "VISIBILITY", "USER")
_NUMBERS = ("PID", "AGE")
_DETAIL = {"exact": "exact", "sampled": "sampled", "process": "/proc only", "hardware": "hardware only"}
_INDENT = 8
_LEAST_COMMAND = 20


@dataclass(slots=True)
class Gpus:
    """What the driver reported of its GPUs."""

    indices: dict[str, int] = field(default_factory=dict)
    processes: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by pid
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
    write_styled(Text(line, style="bold" if is_process else "") for is_process, line in lines)
    say("attach with `gpuwatch --attach PID`, or write a report with `gpuwatch report --attach PID`")
    readable = [each for each in found.processes if not each.refusal]
    for hint in dict.fromkeys(each.how_to_see_more for each in readable if each.how_to_see_more):
        say(f"to see more of one: {hint}")
    return ExitCode.OK


def pick_candidate(command: str) -> int:
    """The pid of the only process that trains and may be sampled; says which that is.

    Args:
        command: the one that needs a pid: "record", "report", "watch".

    Raises:
        GpuwatchError: there are none, or several to choose from, which are listed.
    """
    found = find_candidates()
    mine = [each for each in found.processes if each.visibility != "hardware"]
    if len(mine) == 1:
        say(f"gpuwatch: attaching to {title_of(mine[0].command)} ({mine[0].pid}), which {mine[0].why}")
        return mine[0].pid
    if not found.processes:
        raise GpuwatchError(_nothing(found))
    say("\n".join(line for _, line in table_lines(found.processes, found.gpus.indices, _width(sys.stderr))))
    if not mine:
        raise GpuwatchError(
            "gpuwatch may not attach to any of these processes: run gpuwatch as their user or as root (sudo)"
        )
    raise GpuwatchError(
        f"{len(mine)} processes train here: say which, as in `gpuwatch {command} --attach {mine[0].pid}`"
    )


def find_candidates() -> Found:
    """Looks once: at the driver, at the runs with the hook, and through /proc.

    Raises:
        GpuwatchError: processes cannot be listed here.
    """
    if sys.platform != "linux":
        raise GpuwatchError("processes are found through /proc, on Linux only: start the training with `gpuwatch run`")
    gpus = _gpus(NvmlSource())
    discovery = DiscoverySource(hooked=_hooked_pids, gpu_processes=lambda: gpus.processes)
    try:
        return Found(discovery.look_now().processes, gpus)
    finally:
        discovery.close()


def _gpus(source: NvmlSource) -> Gpus:
    """The GPUs and the processes on them, as far as the driver answers in time."""
    gpus = Gpus()
    answered: set[str] = set()
    end = time.monotonic() + _DRIVER_SECONDS
    try:
        while (left := end - time.monotonic()) > 0:
            for sample in source.collect(time.monotonic_ns()):
                match sample:
                    case GpuFacts():
                        gpus.indices[sample.uuid] = sample.index
                    case GpuStatus():
                        answered.add(sample.uuid)
                        for process in sample.processes or ():
                            if process.pid is not None:
                                before = gpus.processes.get(process.pid, ())
                                gpus.processes[process.pid] = (*before, sample.uuid)
                    case NvmlState(status="ok", gpu_count=count) if count is not None and count <= len(answered):
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


def _width(stream: TextIO | None) -> int | None:
    """The columns of a terminal; None where lines are not folded."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def _nothing(found: Found) -> str:
    driver = f" ({found.gpus.problem.rstrip('.')})" if found.gpus.problem else ""
    return (
        f"no process that trains was found: none with the hook, none on a GPU{driver}, no Python process with torch "
        "loaded; start one with `gpuwatch run python train.py`, or look at `gpuwatch demo`"
    )


def table_lines(
    processes: Sequence[Candidate], gpu_indices: Mapping[str, int], width: int | None
) -> list[tuple[bool, str]]:
    """(whether it is a process's own line, the line), the head first.

    Args:
        processes: in their order.
        gpu_indices: of the GPUs, by UUID.
        width: of the terminal; None where lines are not folded, as in a pipe.
    """
    rows = [_cells(each, gpu_indices) for each in processes]
    columns = [*zip(_HEAD, *rows, strict=True)]
    if len({each.user for each in processes}) < 2:
        del columns[_HEAD.index("USER")]
    widths = [max(map(len, column)) for column in columns]
    lines = [(False, _line(columns, widths, 0, "COMMAND", width))]
    for number, each in enumerate(processes, 1):
        lines.append((True, _line(columns, widths, number, printable(shlex.join(each.command)), width)))
        for note in _notes(each):
            lines += [(False, line) for line in _folded(printable(note), width)]
    return lines


def _cells(each: Candidate, gpu_indices: Mapping[str, int]) -> tuple[str, ...]:
    indices = sorted(gpu_indices[uuid] for uuid in each.gpu_uuids if uuid in gpu_indices)
    gpus = ",".join(map(str, indices)) or "-"
    return str(each.pid), gpus, duration_words(each.age_seconds), _DETAIL[each.visibility], printable(each.user)


def _line(columns: Sequence[Sequence[str]], widths: Sequence[int], row: int, command: str, width: int | None) -> str:
    cells = (
        column[row].rjust(size) if column[0] in _NUMBERS else column[row].ljust(size)
        for column, size in zip(columns, widths, strict=True)
    )
    head = "  ".join(cells) + "  "
    if width is None:
        return head + command
    room = max(_LEAST_COMMAND, width - len(head))
    return head + (command if len(command) <= room else f"{command[: room - 1]}…")


def _notes(each: Candidate) -> list[str]:
    notes = [each.why]
    if each.refusal:
        hint = f"; to see more: {each.how_to_see_more}" if each.how_to_see_more else ""
        notes.append(f"its stacks cannot be read: {each.refusal.rstrip('.')}{hint}")
    return notes


def _folded(note: str, width: int | None) -> list[str]:
    indent = " " * _INDENT
    if width is None:
        return [indent + note]
    return textwrap.wrap(
        note,
        max(_INDENT + _LEAST_COMMAND, width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def inject(pid: int, *, yes: bool) -> None:
    """Installs the hook in a running process, with the user's consent.

    Args:
        pid: the process.
        yes: whether consent was given on the command line.

    Raises:
        GpuwatchError: it cannot be done there, or the user would rather not.
    """
    from gpuwatch.inject import CannotInjectError, perform, plan_for

    try:
        plan = plan_for(pid)
        say(_what_it_does(plan))
        if not yes:
            _ask()
        perform(plan)
    except CannotInjectError as error:
        raise GpuwatchError(f"--inject: {error}") from error
    say(f"The hook takes effect at the next line that process {pid} runs on its main thread.")


def _what_it_does(plan: Plan) -> str:
    return (
        f"--inject writes to process {plan.pid} (Python {plan.version[0]}.{plan.version[1]}): its interpreter runs a "
        f"script, as by sys.remote_exec, that imports the hook from {plan.site} and calls watch(). From then on the "
        "process times its loaders and optimizers, as under `gpuwatch run`, and the hook stays until it ends."
    )


def _ask() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise GpuwatchError("--inject asks before it writes to a process, and stdin is no terminal: add --yes")
    sys.stderr.write("Install it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise GpuwatchError("--inject was not confirmed, and nothing was changed")
