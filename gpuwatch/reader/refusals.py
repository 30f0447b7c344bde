"""Why a process cannot be read, and what reading it may cost: it fails with a refusal of that process and nothing else.

There is one function for each cause, so that it has the same words wherever it is met. Of denied memory the kernel only
says EPERM: for another user's process, for one that is not dumpable, for Yama's level
(Documentation/admin-guide/LSM/Yama.rst) and for a container without CAP_SYS_PTRACE. Which it is, /proc shows.

Everything read from a process may have been made to mislead: sizes, pointers, lists without end, pages that never
come. Each structure has a bound of its own; `Budget` is the bound of all of them together, in CPU time, bytes and
seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from gpuwatch.foreign import answered
from gpuwatch.procfs import read_status
from gpuwatch.text import printable


class Reason(Enum):
    """Why a process cannot be read."""

    GONE = "gone"
    ZOMBIE = "zombie"
    PERMISSION = "permission"  # Yama, another user, not dumpable
    NOT_PYTHON = "not-python"
    NO_SYMBOLS = "no-symbols"  # a stripped or static program that names no interpreter state
    VERSION = "version"
    BUILD = "build"  # free-threaded, debug, 32-bit
    ARCHITECTURE = "architecture"
    PLATFORM = "platform"  # no process_vm_readv here
    NOT_READY = "not-ready"  # the interpreter is still starting: try again
    MALFORMED = "malformed"  # what it holds is not as any Python has it
    SILENT = "silent"  # reads of its memory are not answered
    EXPENSIVE = "expensive"  # reading it takes more CPU time or bytes than one process may cost


class CannotReadError(Exception):
    """A process whose stacks cannot be read: `sentence` is one sentence with the cause, `cure` one with the cure.

    Names that the process chose are made safe to print here, for all who quote them.
    """

    def __init__(self, reason: Reason, sentence: str, cure: str | None = None) -> None:
        self.reason = reason
        self.sentence = printable(sentence)
        self.cure = None if cure is None else printable(cure)
        super().__init__(self.sentence)

    @property
    def with_cure(self) -> str:
        """Both as one sentence, without its full stop."""
        sentence = self.sentence.rstrip(".")
        return f"{sentence}: {self.cure.rstrip('.')}" if self.cure else sentence

    @property
    def is_lasting(self) -> bool:
        """Whether it lies in what the process holds, so that trying again soon costs as much and gives the same."""
        return self.reason in (Reason.MALFORMED, Reason.EXPENSIVE, Reason.SILENT)


_CAUSE_SHOWN = 120


def gone(pid: int) -> CannotReadError:
    """The process has ended, or never was."""
    return CannotReadError(Reason.GONE, f"there is no process {pid} (any more)", "look for it again: gpuwatch --attach")


def replaced(pid: int) -> CannotReadError:
    """The process lives, but its program is another one now (exec)."""
    return CannotReadError(
        Reason.GONE, f"process {pid} has become another program (exec)", f"attach again: gpuwatch --attach {pid}"
    )


def zombie(pid: int) -> CannotReadError:
    """The process has ended and waits for its parent to take note."""
    return CannotReadError(
        Reason.ZOMBIE,
        f"process {pid} has ended and has no memory left; its parent has not waited for it yet",
        "end or fix its parent, which has to wait() for it",
    )


def platform(cause: str) -> CannotReadError:
    """This machine offers no way to read another process."""
    return CannotReadError(
        Reason.PLATFORM, f"stacks cannot be read here: {cause}", "use gpuwatch run, which does not read the process"
    )


def not_ready(pid: int) -> CannotReadError:
    """The process is on its way to be a Python."""
    return CannotReadError(Reason.NOT_READY, f"the Python of process {pid} is still starting", "try again in a moment")


def expensive(pid: int, cause: str) -> CannotReadError:
    """Reading the process takes more than it may, as no Python's memory does that was not made for it."""
    return CannotReadError(
        Reason.EXPENSIVE, f"process {pid} is not read: {cause}", "use gpuwatch run, which reads no memory"
    )


def silent(pid: int) -> CannotReadError:
    """Reads of the process wait for something that does not answer."""
    return CannotReadError(
        Reason.SILENT,
        f"process {pid} does not answer reads of its memory",
        "end what blocks its memory (userfaultfd, a file system that hangs), or use gpuwatch run, which reads no "
        "memory",
    )


def malformed(pid: int, error: Exception) -> CannotReadError:
    """Something in the process's memory is not as any Python has it. `error` may quote that memory."""
    cause = f"{type(error).__name__}: {str(error)[:_CAUSE_SHOWN]}".rstrip(": ").encode("unicode_escape").decode("ascii")
    return CannotReadError(
        Reason.MALFORMED,
        f"reading process {pid} failed ({cause})",
        "use gpuwatch run, which reads no memory",
    )


CAP_SYS_PTRACE = 19
_DEFAULT_USER_NAMESPACE_SIZE = 4294967295


@dataclass(frozen=True, slots=True)
class Access:
    """What decides whether one process may read another. None: /proc does not say."""

    own_uid: int
    target_uid: int | None
    capable: bool  # CAP_SYS_PTRACE
    yama: int | None  # None: a kernel without Yama
    dumpable: bool | None
    container: bool


def permission(pid: int, proc_root: Path) -> CannotReadError:
    """The refusal of a process that may not be read, with its likeliest cause."""
    sentence, cure = explain(pid, access_to(pid, proc_root))
    return CannotReadError(Reason.PERMISSION, sentence, cure)


def explain(pid: int, access: Access, *, hooked: bool = False) -> tuple[str, str]:
    """One sentence with the cause and one with the cure; of a hooked process only its lines are missing."""
    sudo = "sudo gpuwatch" if hooked else f"sudo gpuwatch --attach {pid}"
    add = "start the container with --cap-add SYS_PTRACE"
    if access.yama == 3:
        with_hook = "" if hooked else "start the training with gpuwatch run, which needs no permission, or "
        return (
            "this machine forbids reading other processes until it is rebooted (kernel.yama.ptrace_scope=3)",
            f"{with_hook}reboot with kernel.yama.ptrace_scope=1",
        )
    if access.capable:
        return (
            f"process {pid} may not be read even with CAP_SYS_PTRACE: it belongs to another user namespace, or a "
            "security module (SELinux, AppArmor, seccomp) forbids it",
            "run gpuwatch on the host, outside of any container",
        )
    as_root = add if access.container and access.own_uid == 0 else sudo
    if access.target_uid is not None and access.target_uid != access.own_uid:
        owner = "root" if access.target_uid == 0 else f"user {access.target_uid}"
        return f"process {pid} belongs to {owner}", f"run gpuwatch as that user, or as root: {as_root}"
    if access.yama == 2:
        return (
            "only root may read other processes on this machine (kernel.yama.ptrace_scope=2)",
            f"{as_root}, or sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if access.dumpable is False:
        return (
            f"process {pid} is marked not dumpable (it changed its user, or its program may not be read)",
            f"read it as root: {as_root}",
        )
    if access.yama == 1:
        with_hook = "" if hooked else "gpuwatch run, which measures steps without reading the process, or with "
        return (
            f"process {pid} was not started by this gpuwatch, and this machine lets only a parent read its children "
            "(kernel.yama.ptrace_scope=1)",
            f"start the training with {with_hook}gpuwatch record -- COMMAND, which may read its child, or {as_root}, "
            "or sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if access.container:
        return f"process {pid} may not be read from inside this container", add
    return f"the kernel denies access to the memory of process {pid}", f"read it as root: {as_root}"


def access_to(pid: int, proc_root: Path) -> Access:
    """What /proc says about reading `pid` from here."""
    target = read_status(pid, proc_root)
    own = read_status("self", proc_root)
    target_uid = _first_number(target.get("Uid"))
    return Access(
        own_uid=os.geteuid(),
        target_uid=target_uid,
        capable=bool(int(own.get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1),
        yama=_yama(proc_root),
        dumpable=_dumpable(proc_root / str(pid) / "status", target),
        container=_in_container(proc_root),
    )


def _first_number(text: str | None) -> int | None:
    return int(text.split()[0]) if text else None


def _yama(proc_root: Path) -> int | None:
    try:
        return int((proc_root / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def _dumpable(file: Path, status: dict[str, str]) -> bool | None:
    """The kernel gives the files of a process that is not dumpable, though not its folder, to root (proc(5))."""
    effective = status.get("Uid", "").split()[1:2]
    try:
        owner = file.stat().st_uid
    except OSError:
        return None
    if not effective or effective == ["0"]:
        return None
    return owner == int(effective[0])


def _in_container(proc_root: Path) -> bool:
    """Whether this process's users are not those of the host, or its root is a container's."""
    if any(Path(name).exists() for name in ("/.dockerenv", "/run/.containerenv")):
        return True
    try:
        fields = (proc_root / "self/uid_map").read_text().split()
    except OSError:
        return False
    return len(fields) >= 3 and int(fields[2]) != _DEFAULT_USER_NAMESPACE_SIZE


OPERATION_SECONDS = 0.5
"""CPU time of attaching, or of one sample. Attaching takes 2 to 30 ms, a sample of 60 threads 2 ms; reading the maps of
a process with 65,530 of them takes 60 ms."""
_OPERATION_BYTES = 512 << 20
_CHARGE_EVERY = 64
"""Reads between two looks at the clock, which takes 0.3 us. Reading one page of a file takes up to 20 us."""


class BudgetExceededError(Exception):
    """Reading a process took more than it may. Only the boundary around all reading of a process catches it."""


class Budget:
    """CPU time and bytes of one operation on one process, counted by the thread that does it.

    Args:
        cpu_clock: CPU time of the calling thread in seconds.
        before: called as each operation begins.
    """

    def __init__(
        self, cpu_clock: Callable[[], float] = time.thread_time, before: Callable[[], object] = lambda: None
    ) -> None:
        self._cpu_clock = cpu_clock
        self._before = before
        self._seconds = OPERATION_SECONDS
        self._calls_left = _CHARGE_EVERY
        self._bytes_left = _OPERATION_BYTES
        self._end: float | None = None
        self._is_given_up = False

    def give_up(self) -> None:
        """The operation is no longer waited for: it ends at its next read, and so does every later one."""
        self._is_given_up = True
        self._calls_left = 0

    def begin(self, seconds: float = OPERATION_SECONDS) -> None:
        """A new operation begins, in the calling thread."""
        self._seconds = seconds
        self._calls_left = 0 if self._is_given_up else _CHARGE_EVERY
        self._bytes_left = _OPERATION_BYTES
        self._end = None
        self._before()

    def charge(self, size: int) -> None:
        """Counts one read of this many bytes, or one step of as much work as a read.

        Raises:
            BudgetExceededError: The operation has used up its CPU time or its bytes.
        """
        self._calls_left -= 1
        self._bytes_left -= size
        if self._calls_left <= 0 or self._bytes_left < 0 or size > 1 << 20:
            self.check()

    def check(self) -> None:
        """Compares with the limits now.

        Raises:
            BudgetExceededError: The operation has used up its CPU time or its bytes.
        """
        if self._is_given_up:
            raise BudgetExceededError("it did not answer in time")
        self._calls_left = _CHARGE_EVERY
        if self._bytes_left < 0:
            raise BudgetExceededError(f"it takes more than {_OPERATION_BYTES >> 20} MiB of its memory")
        now = self._cpu_clock()
        if self._end is None:
            # Most operations end before the first check: they never ask for the time.
            self._end = now + self._seconds
        elif now > self._end:
            raise BudgetExceededError(f"it takes more than {self._seconds:g} s of CPU time")


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Cache(dict[_Key, _Value]):
    """What was learned of a process, all of it dropped once it is more than any Python needs: it can be read again."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, value)


class HasBudget(Protocol):
    """What is known of a process that is read."""

    pid: int
    budget: Budget


class Watch:
    """What a thread reads now, for another thread to notice that it waits: `pid` is None while it reads nothing."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.operations = 0

    def begin(self, pid: int) -> None:
        """Notes that an operation on a process begins."""
        self.operations += 1
        self.pid = pid


class _Thread(threading.local):
    watch: Watch | None = None


_thread = _Thread()


def read_here(watch: Watch) -> None:
    """Has the calling thread do its operations itself from now on, however long a process keeps it waiting.

    To hand one over to another thread takes 50 us of CPU time, half as much again as an operation; a hundred samples a
    second are spared it. The holder of the watch has to do without the thread while it waits.
    """
    _thread.watch = watch


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Reader = TypeVar("_Reader", bound=HasBudget)


def contained(
    method: Callable[Concatenate[_Reader, _Parameters], _Result],
) -> Callable[Concatenate[_Reader, _Parameters], _Result]:
    """Makes a method one operation on a process: it has a budget, and raises `CannotReadError` or nothing."""

    def within_budget(reader: _Reader, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        reader.budget.begin()
        try:
            return method(reader, *arguments, **keywords)
        except CannotReadError:
            raise
        except Exception as error:
            raise refusal_of(reader.pid, error) from error

    @wraps(method)
    def operation(reader: _Reader, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        return in_time(reader.pid, reader.budget, lambda: within_budget(reader, *arguments, **keywords))

    return operation


def in_time(pid: int, budget: Budget, operation: Callable[[], _Result]) -> _Result:
    """What an operation on a process gives, unless the process keeps it waiting (see `foreign.answered`).

    Raises:
        CannotReadError: The operation's own, or it was not answered in time.
    """
    watch = _thread.watch
    if watch is not None:
        watch.begin(pid)
        try:
            return operation()
        finally:
            watch.pid = None
    try:
        return answered(pid, operation)
    except TimeoutError:
        budget.give_up()
        raise silent(pid) from None


def refusal_of(pid: int, error: Exception) -> CannotReadError:
    """The refusal of a process at whose memory reading failed."""
    if isinstance(error, BudgetExceededError):
        return expensive(pid, str(error))
    return malformed(pid, error)
