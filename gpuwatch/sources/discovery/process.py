"""What one Python process is: its role by name and command line, its framework, its owner and its threads.

A few reads of /proc, 30 us without its maps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from gpuwatch.foreign import is_left_alone, read_arguments, read_foreign, read_of
from gpuwatch.procfs import MAPS_LIMIT, ProcessKey, ProcessStat, mapped_paths, read_once, read_stat, read_status
from gpuwatch.sources.host.identify import is_python_program
from gpuwatch.sources.host.run import WORKER_NAME

_LAUNCHER_NAME = "pt_elastic"  # set by torch/distributed/run.py
_LAUNCHER_PROGRAMS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "horovodrun"})
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
    "horovod.runner",
)
_HELPER_CODE = (
    "from multiprocessing.resource_tracker import",
    "from multiprocessing.semaphore_tracker import",
    "from gpuwatch.sources.nvml.child import",
)
_FORKSERVER_CODE = "from multiprocessing.forkserver import"
_SPAWN_CODE = "from multiprocessing.spawn import"
_COMPILE_WORKER = "torch/_inductor/compile_worker"
_NOTEBOOK_MODULES = ("ipykernel", "ipykernel_launcher", "colab_kernel_launcher")
_OPTIONS_WITH_VALUE = frozenset("WX")


class Role(Enum):
    """What a Python process does for others; `PROGRAM` is everything else."""

    PROGRAM = "program"
    NOTEBOOK = "notebook"  # a kernel, which holds what its cells loaded for as long as it lives
    LAUNCHER = "launcher"  # starts ranks and waits for them
    WORKER = "worker"  # of a DataLoader
    FORKSERVER = "forkserver"  # or a child of one: they share the command line
    SPAWNED = "spawned"  # by multiprocessing: a rank, a worker that has no name, or one of a pool
    HELPER = "helper"  # torch's and multiprocessing's own, and gpuwatch


def role_of(name: str, arguments: Sequence[str]) -> Role:
    """The role of a process.

    Args:
        name: its main thread's, /proc/PID/comm.
        arguments: its command line, the interpreter first.
    """
    if name == WORKER_NAME:
        return Role.WORKER
    if name == _LAUNCHER_NAME:
        return Role.LAUNCHER
    code, module, script = _started(arguments)
    if code:
        return _role_of_code(code)
    if module:
        if _is_within(module, _LAUNCHER_MODULES):
            return Role.LAUNCHER
        if _is_within(module, ("gpuwatch",)):
            return Role.HELPER
        return Role.NOTEBOOK if _is_within(module, _NOTEBOOK_MODULES) else Role.PROGRAM
    if _COMPILE_WORKER in script:
        return Role.HELPER
    program = os.path.basename(script)  # noqa: PTH119 - another process's text, not a path of ours
    if program in _LAUNCHER_PROGRAMS:
        return Role.LAUNCHER
    if program == "gpuwatch" or script.endswith("/gpuwatch/__main__.py"):
        return Role.HELPER
    return Role.NOTEBOOK if program.removesuffix(".py") in _NOTEBOOK_MODULES else Role.PROGRAM


def _role_of_code(code: str) -> Role:
    if code.startswith(_HELPER_CODE):
        return Role.HELPER
    if code.startswith(_FORKSERVER_CODE):
        return Role.FORKSERVER
    return Role.SPAWNED if code.startswith(_SPAWN_CODE) else Role.PROGRAM


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _started(arguments: Sequence[str]) -> tuple[str, str, str]:
    """(code of -c, module of -m, script): what the interpreter was given to run; one of them, the others empty."""
    rest = iter(arguments[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            return "", "", argument
        if argument.startswith("--"):
            continue
        for position, letter in enumerate(argument[1:], 2):
            if letter in "cm":
                value = argument[position:] or next(rest, "")
                return (value, "", "") if letter == "c" else ("", value, "")
            if letter in _OPTIONS_WITH_VALUE:
                if not argument[position:]:
                    next(rest, None)
                break
    return "", "", ""


_TORCH: Final = (b"/libtorch_cpu.so", b"/libtorch_python.so")
_TORCH_LIBRARIES: Final = b"/lib/libtorch_python.so"
_OTHERS: Final = (("JAX", b"/jaxlib/"), ("TensorFlow", b"/tensorflow/"))
_LIBRARY_END = re.compile(rb"\.so(?:\.\d{1,4})?\Z")
_VERSION = re.compile(rb"__version__[^\n=]{0,80}=\s*['\"](\d{1,4})\.(\d{1,4})")
_VERSION_LIMIT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Library:
    """A framework that trains: its name, and for torch the folder of its Python package."""

    name: str
    folder: str | None = None

    @property
    def is_torch(self) -> bool:
        """Whether its DataLoader and its workers are what gpuwatch knows."""
        return self.name == "torch"


def mapped_library(proc_root: Path | str, pid: int) -> Library | None:
    """The framework in a process's address space, torch before all others; None where there is none, or unreadable.

    0.4 ms for a CPU trainer's 370 mappings.
    """
    paths = mapped_paths(read_of(proc_root, pid, "maps", MAPS_LIMIT) or b"")
    if any(path.endswith(_TORCH) for path in paths):
        # conda-forge keeps the libraries elsewhere; the extension module always lies in the package.
        folders = sorted(folder for path in paths if (folder := _package_of(path)).endswith(b"/torch"))
        return Library("torch", os.fsdecode(folders[0]) if folders else None)
    return next((Library(name) for name, part in _OTHERS if any(map(partial(_is_library_of, part), paths))), None)


def _package_of(path: bytes) -> bytes:
    """The folder of the package that the extension module `_C`, or torch's own library for Python, lies in."""
    if path.endswith(_TORCH_LIBRARIES):
        return path.removesuffix(_TORCH_LIBRARIES)
    folder, _, name = path.rpartition(b"/")
    return folder if name.startswith(b"_C.") and name.endswith(b".so") else b""


def _is_library_of(part: bytes, path: bytes) -> bool:
    return part in path and _LIBRARY_END.search(path, max(0, len(path) - 8)) is not None


def torch_version(proc_root: Path | str, pid: int, library: Library) -> tuple[int, int] | None:
    """(2, 4) of the torch that a process has loaded, from its version.py as that process sees it."""
    if library.folder is None:
        return None
    try:
        text = read_foreign(pid, f"{library.folder}/version.py", _VERSION_LIMIT, proc_root=Path(proc_root)).content
    except OSError:
        return None
    found = _VERSION.search(text)
    return (int(found.group(1)), int(found.group(2))) if found else None


_IMPORT_TICKS = os.sysconf("SC_CLK_TCK") // 5
"""CPU time below which nothing of torch's size was imported: on the fastest machines that takes over a second."""

_MOST_THREADS = 4096  # 40 ms
_TRAINING_THREADS = (b"pt_gloo_", b"pt_nccl_", b"pt_autograd_")  # named by c10::setThreadName, torch 2.5 and later


@dataclass(frozen=True, slots=True)
class Process:
    """One Python process. `library` is that of the last read of its maps, at `library_ticks` of its CPU time."""

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


def read_process(proc_root: Path | str, pid: int, before: Process | None = None) -> Process | None:
    """A process as it is now; None once it has ended. `before` is what it was where it keeps its reader waiting.

    The maps are read when they may have changed: at the first read, after enough CPU time to import something, and
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
    uids = read_status(pid, proc_root).get("Uid", "").split()
    return int(uids[1]) if len(uids) > 1 and uids[1].isdecimal() else None


def has_training_threads(proc_root: Path | str, pid: int) -> bool:
    """Whether torch itself started threads in it for gradients on a GPU or for talking to other ranks."""
    try:
        threads = os.listdir(f"{proc_root}/{pid}/task")  # noqa: PTH208 - names only
    except OSError:
        return False
    names = (read_once(f"{proc_root}/{pid}/task/{thread}/comm", 64) for thread in threads[:_MOST_THREADS])
    return any(name is not None and name.startswith(_TRAINING_THREADS) for name in names)
