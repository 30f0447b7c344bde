"""Whose and what a pid is, asked before anything is attached to it, and what it was started with.

Nothing here signals, traces or opens the memory of the process: it reads /proc, as `ps` does.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.foreign import read_arguments, read_of
from gpuwatch.procfs import (
    MAPS_LIMIT,
    PROC,
    TreeWalker,
    link_target,
    mapped_paths,
    read_once,
    read_stat,
    read_status,
    shown,
)

_PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*[a-z]{0,3}(-bin|-dbg)?")
_PYTHON_LIBRARIES = (b"libpython", b"libpypy")
_PYTHON_SYMBOL = b"_PyRuntime\0"  # exported by an interpreter that is linked into the program itself
_PROGRAM_LIMIT = 32 << 20  # the table of exported names is near the start
_COMMAND_SHOWN = 80


class CannotAttachError(Exception):
    """A pid that is no training process of ours; its text is one sentence with the cause and the cure."""

    @property
    def sentence(self) -> str:
        """Its text."""
        return str(self)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that may be watched. (pid, start_ticks) names it for good; the pid alone is reused."""

    pid: int
    start_ticks: int
    uid: int
    arguments: tuple[str, ...]
    executable: str | None

    @property
    def command(self) -> str:
        """The command line as a shell would take it."""
        return shlex.join(self.arguments)


def identify(pid: int, proc_root: Path = PROC, my_uid: int | None = None) -> ProcessIdentity:
    """The identity of a Python process that this user may watch.

    Raises:
        CannotAttachError: for every other pid.
    """
    mine = os.geteuid() if my_uid is None else my_uid
    stat = read_stat(proc_root, pid)
    status = read_status(pid, proc_root)
    if stat is None or not status:
        raise _unreadable(pid, proc_root)
    command = _short_command(pid, proc_root, stat.command_name)
    leader = status.get("Tgid")
    if leader not in (None, str(pid)):
        raise CannotAttachError(f"{pid} is a thread of process {leader} ({command}): use `--attach {leader}`.")
    if stat.state in "ZX":
        raise CannotAttachError(
            f"process {pid} ({stat.command_name}) has ended and only waits for its parent {stat.parent} to collect "
            "its exit code: give the pid of a running process.",
        )
    if pid == os.getpid() and proc_root == PROC:
        raise CannotAttachError(f"process {pid} is this gpuwatch itself: give the pid of the training process.")
    # Real, effective and saved: the kernel lets a process be read only where all three are the reader's.
    uids = [int(word) for word in status.get("Uid", "").split()[:3] if word.isdigit()]
    uid = next((other for other in uids if other != mine), mine)
    if mine != 0 and uid != mine:
        raise CannotAttachError(
            f"process {pid} ({command}) belongs to {user_name(uid)} and gpuwatch runs as {user_name(mine)}: "
            f"run gpuwatch as {f'{user_name(uid)} or as root' if uid else 'root'} (sudo).",
        )
    executable = executable_of(pid, proc_root)
    if not is_python(pid, proc_root):
        raise CannotAttachError(_not_python(pid, proc_root, command, executable))
    return ProcessIdentity(pid, stat.start_ticks, uid, read_arguments(proc_root, pid), executable)


def is_python(pid: int, proc_root: Path = PROC) -> bool:
    """Whether the process runs a Python interpreter: by the program's name, else by what it is linked with.

    The maps and the program, milliseconds to read, are read only where the name does not say so.
    """
    executable = executable_of(pid, proc_root)
    arguments = read_arguments(proc_root, pid)
    names = [executable] if executable else list(arguments[:1])
    if any(map(is_python_program, names)):
        return True
    maps = read_of(proc_root, pid, "maps", MAPS_LIMIT) or b""
    libraries = (path.rpartition(b"/")[2] for path in mapped_paths(maps))
    if any(name.startswith(_PYTHON_LIBRARIES) and b".so" in name for name in libraries):
        return True
    return _PYTHON_SYMBOL in (read_of(proc_root, pid, "exe", _PROGRAM_LIMIT) or b"")


def is_python_program(path: str) -> bool:
    """Whether a program file is named as Python interpreters are."""
    return _PYTHON_NAME.fullmatch(os.path.basename(path)) is not None  # noqa: PTH119 - not a real path


@functools.lru_cache(maxsize=256)
def login_name(uid: int) -> str | None:
    """A user's name; None where none is known, as in containers."""
    import pwd  # not on Windows, where the rest of this module still imports

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def user_name(uid: int) -> str:
    """A user for people: "ada (uid 1000)", or only the number where no name is known."""
    name = login_name(uid)
    return f"uid {uid}" if name is None else f"{name} (uid {uid})"


def _unreadable(pid: int, proc_root: Path) -> CannotAttachError:
    if read_once(f"{proc_root}/self/stat") is None:
        return CannotAttachError(
            f"{proc_root} does not list processes here: attaching needs Linux with /proc mounted; "
            "run the training with `gpuwatch run` instead.",
        )
    if proc_root == PROC and pid > 0 and _exists(pid):
        return CannotAttachError(
            f"process {pid} exists but /proc hides it (mount option hidepid), so it belongs to another user: "
            "run gpuwatch as that user or as root (sudo).",
        )
    return CannotAttachError(
        f"there is no process {pid}: it has ended, or it lives in another container; "
        "`gpuwatch --attach` lists the processes that train here.",
    )


def _exists(pid: int) -> bool:
    """Asks by getpgid: it needs no permission and, unlike kill(pid, 0), no signal call."""
    try:
        os.getpgid(pid)
    except (OSError, OverflowError):
        return False
    return True


def _not_python(pid: int, proc_root: Path, command: str, executable: str | None) -> str:
    """Names the Python process below, which is what the user of a launcher script meant."""
    below = [p for p in TreeWalker(proc_root).descendants(pid) if p != os.getpid() and is_python(p, proc_root)]
    what = f"process {pid} ({command}) is not a Python process"
    if not read_arguments(proc_root, pid) and executable is None:
        return f"{what} but a thread of the kernel: give the pid of the training process."
    if not below:
        return f"{what} and has no child that is one: `gpuwatch --attach` lists the processes that train here."
    shown = _short_command(below[0], proc_root, "python")
    return f"{what}: did you mean its child {below[0]} ({shown})? Use `--attach {below[0]}`."


def _short_command(pid: int, proc_root: Path, name: str) -> str:
    command = shlex.join(read_arguments(proc_root, pid)) or name
    return command if len(command) <= _COMMAND_SHOWN else command[: _COMMAND_SHOWN - 1] + "…"


def executable_of(pid: int, proc_root: Path | str) -> str | None:
    """The program file, None where it may not be known; the kernel appends " (deleted)" once an upgrade replaced it."""
    program = link_target(f"{proc_root}/{pid}/exe")
    return None if program is None else program.removesuffix(" (deleted)")


VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_USE_CUDA_DSA",
)
"""All that is ever kept of an environment."""
HOOK_SILENT = "its hook is not reporting yet: steps and waits are measured exactly as soon as it does"
"""What to say, in place of the advice to start it with the hook, of one that carries it and is not linked."""
_HOOK_FOLDER = b"/gpuwatch/hook/site"
_LONGEST_VALUE = 256
_LIBRARIES = (
    ("cv2", re.compile(rb"/(?:cv2[/.]|libopencv_core)")),
    ("openblas", re.compile(rb"/lib(?:scipy_)?openblas")),
    ("mkl", re.compile(rb"/libmkl_")),
    ("openmp", re.compile(rb"/lib(?:gomp|iomp5|omp)[-.]")),
    ("arrow", re.compile(rb"/libarrow[.]")),
    ("polars", re.compile(rb"/polars[/.]")),
    ("torch_cuda", re.compile(rb"/libtorch_cuda[._]")),
)


def read_environment(proc_root: Path | str, pid: int) -> tuple[tuple[str, str], ...] | None:
    """The variables of `VARIABLES` that the process was started with; None where that may not be read."""
    raw = read_of(proc_root, pid, "environ")
    if raw is None:
        return None
    values = ((name, variable(raw, name)) for name in VARIABLES)
    return tuple((name, shown(value[:_LONGEST_VALUE])) for name, value in values if value is not None)


def carries_hook(proc_root: Path | str, pid: int) -> bool:
    """Whether `gpuwatch run` put the hook on its PYTHONPATH and it was not turned off; False where that is unknown."""
    environment = read_of(proc_root, pid, "environ") or b""
    folders = (variable(environment, "PYTHONPATH") or b"").split(b":")
    return any(folder.endswith(_HOOK_FOLDER) for folder in folders) and not variable(environment, "GPUWATCH_DISABLE")


def variable(environment: bytes, name: str) -> bytes | None:
    """The value of a variable in /proc/PID/environ, the first one as for getenv(3); None where it is not set.

    Its entries are searched, not taken apart: a process may have a million of them.
    """
    key = b"\0" + name.encode("ascii") + b"="
    start = (b"\0" + environment).find(key)
    return environment[start + len(key) - 1 :].partition(b"\0")[0] if start >= 0 else None


def read_libraries(proc_root: Path | str, pid: int) -> tuple[str, ...] | None:
    """The libraries of `_LIBRARIES` that are mapped: 0.4 ms for a trainer's 370 mappings; None where unreadable."""
    maps = read_of(proc_root, pid, "maps", MAPS_LIMIT)
    if not maps:
        return None
    return tuple(name for name, pattern in _LIBRARIES if pattern.search(maps))
