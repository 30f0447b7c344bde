"""What is known of one Python process, and how it is looked at: a few reads of /proc, 30 us without its maps."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwatch.sources.discovery.libraries import Library, mapped_library
from gpuwatch.sources.discovery.roles import Role, role_of
from gpuwatch.sources.host.identify import is_python_program
from gpuwatch.sources.host.process import ProcessKey, ProcessStat, read_arguments, read_stat
from gpuwatch.sources.host.procfs import is_left_alone, read_once, to_int

_IMPORT_TICKS = os.sysconf("SC_CLK_TCK") // 5
"""CPU time below which nothing of torch's size was imported: on the fastest machines that takes over a second."""

_MOST_THREADS = 4096  # 40 ms
_TRAINING_THREADS = (b"pt_gloo_", b"pt_nccl_", b"pt_autograd_")  # named by c10::setThreadName, torch 2.5 and later


@dataclass(frozen=True, slots=True)
class Process:
    """One Python process. `library` is that of the last look into its maps, at `library_ticks` of its CPU time."""

    pid: int
    uid: int
    stat: ProcessStat
    arguments: tuple[str, ...]
    role: Role
    library: Library | None = None
    library_ticks: int = 0

    @property
    def key(self) -> ProcessKey:
        """Its identity: a pid alone is reused."""
        return self.pid, self.stat.start_ticks

    @property
    def has_torch(self) -> bool:
        """Whether torch is in its address space."""
        return self.library is not None and self.library.is_torch


def owner(proc_root: Path | str, pid: int) -> int | None:
    """Whose files a process's are: its user's, root's for one that is not dumpable; None once it is gone."""
    try:
        return os.stat(f"{proc_root}/{pid}").st_uid  # noqa: PTH116 - a Path costs twice the call
    except OSError:
        return None


def runs_python(proc_root: Path | str, pid: int) -> bool:
    """Whether its program is named as interpreters are; also False where the program may not be known."""
    try:
        program = os.readlink(f"{proc_root}/{pid}/exe")  # noqa: PTH115 - kept as text
    except OSError:
        return False
    return is_python_program(program.removesuffix(" (deleted)"))


def look(proc_root: Path | str, pid: int, before: Process | None = None) -> Process | None:
    """A process as it is now; None once it has ended. `before` is what it was where it keeps its reader waiting.

    The maps are read when they may have changed: at the first look, after enough CPU time to import something, and
    after an exec. Workers and helpers are known by their names, so theirs are not.

    Raises:
        TimeoutError: It keeps its reader waiting, and nothing was known of it before.
    """
    stat = read_stat(proc_root, pid)
    if stat is None or stat.has_ended:
        return None
    is_same = before is not None and before.key == (pid, stat.start_ticks)
    uid = before.uid if before is not None and is_same else _user(proc_root, pid)
    if uid is None:
        return None
    if before is not None and is_same and is_left_alone(pid):
        return replace(before, stat=stat)
    arguments = read_arguments(proc_root, pid)
    now = Process(pid, uid, stat, arguments, role_of(stat.command_name, arguments))
    if before is not None and is_same and before.arguments == arguments:
        now = replace(now, library=before.library, library_ticks=before.library_ticks)
        if now.has_torch or stat.own_ticks - before.library_ticks < _IMPORT_TICKS:
            return now
    if now.role in (Role.WORKER, Role.HELPER):
        return now
    library = mapped_library(proc_root, pid)
    if library is None and is_left_alone(pid):
        raise TimeoutError("it does not answer reads of its memory")
    return replace(now, library=library, library_ticks=stat.own_ticks)


def _user(proc_root: Path | str, pid: int) -> int | None:
    """The user it runs as, by its effective uid."""
    for line in (read_once(f"{proc_root}/{pid}/status") or b"").split(b"\n"):
        if line.startswith(b"Uid:"):
            return to_int(line.split()[2])
    return None


def has_training_threads(proc_root: Path | str, pid: int) -> bool:
    """Whether torch itself started threads in it for gradients on a GPU or for talking to other ranks."""
    try:
        threads = os.listdir(f"{proc_root}/{pid}/task")  # noqa: PTH208 - names only
    except OSError:
        return False
    names = (read_once(f"{proc_root}/{pid}/task/{thread}/comm", 64) for thread in threads[:_MOST_THREADS])
    return any(name is not None and name.startswith(_TRAINING_THREADS) for name in names)
