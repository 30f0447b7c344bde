"""Installs the hook in a running process, asked for by name only: Python 3.14 and later offer it (PEP 768).

It hands the hook to the interpreter as `sys.remote_exec` does, and is the one place that writes to a target. The few
words are written by this process, so nothing of the target's is executed here: its interpreter may be a file of
another user's, and gpuwatch may run as root.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpuwatch.foreign import Rights, answered, exists_for, rights_of
from gpuwatch.procfs import is_running
from gpuwatch.reader.attach import Interpreter, attach, main_interpreter
from gpuwatch.reader.layout import SIZE, OffsetsError, RemoteControl, remote_control_from
from gpuwatch.reader.memory import UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError, in_time

FIRST_VERSION = (3, 14)
SITE = Path(__file__).resolve().parent / "hook" / "site"

_DISABLED_BY = "PYTHON_DISABLE_REMOTE_DEBUG"
_DISABLED_BY_OPTION = re.compile(r"disable[_-]remote[_-]debug(=.*)?")
_RESTART = "restart it with `gpuwatch run`, or attach without --inject"


class CannotInjectError(Exception):
    """A process in which the hook is not installed; its text is one sentence with the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One installation. `uid` and `gid` are those with which the process opens files."""

    pid: int
    start_ticks: int
    uid: int
    gid: int
    version: tuple[int, int]
    site: Path
    proc_root: Path = Path("/proc")
    restart: ClassVar[str] = _RESTART

    def still_runs(self) -> bool:
        """Whether its pid is still its own: while the user was asked, another process may have got it."""
        return is_running(self.pid, self.start_ticks, self.proc_root)


def plan_for(pid: int, proc_root: Path = Path("/proc"), site: Path = SITE) -> Plan:
    """The plan for a process of this mount namespace.

    Args:
        pid: its process id.
        proc_root: /proc, or another view of it.
        site: the folder with the hook's launcher.

    Raises:
        CannotInjectError: where the hook cannot or must not be installed.
    """
    try:
        target = attach(pid, proc_root=proc_root)
    except CannotReadError as error:
        alternative = f"; or {_RESTART}" if error.cure else f": {_RESTART}"
        raise CannotInjectError(f"{error.with_cure}{alternative}") from error
    try:
        version, start_ticks = target.version, target.start_ticks
    finally:
        target.close()
    if version < FIRST_VERSION:
        raise CannotInjectError(
            f"process {pid} runs Python {version[0]}.{version[1]}, and the hook can be installed while it runs "
            f"only in Python 3.14 and later (PEP 768): {_RESTART}"
        )
    try:
        rights = rights_of(pid, proc_root)
        _check_rights(pid, rights, (os.geteuid(), os.getegid()))
        answered(pid, lambda: _honour_refusal(pid, proc_root / str(pid)))
        _check_sees(pid, site, proc_root)
    except TimeoutError as error:
        raise CannotInjectError(f"process {pid} does not answer reads of its memory: {_RESTART}") from error
    except OSError as error:
        raise CannotInjectError(
            f"process {pid} has ended in the meantime: give the pid of a running process"
        ) from error
    return Plan(pid, start_ticks, rights.user, rights.group, version, site, proc_root)


def _check_rights(pid: int, rights: Rights, me: tuple[int, int]) -> None:
    """Only root may act in the name of another user."""
    if me[0] != 0 and (rights.user, rights.group) != me:
        raise CannotInjectError(
            f"process {pid} runs as user {rights.user} and group {rights.group}, and this gpuwatch as user {me[0]} and "
            f"group {me[1]}: run gpuwatch as that user"
        )


def _honour_refusal(pid: int, folder: Path) -> None:
    """The process may have been started with the wish that it is not to be reached into."""
    settings = dict(entry.partition(b"=")[::2] for entry in (folder / "environ").read_bytes().split(b"\0"))
    if settings.get(_DISABLED_BY.encode()):
        raise CannotInjectError(f"process {pid} was started with {_DISABLED_BY} set, which forbids this: {_RESTART}")
    words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    for option, value in zip(words, [*words[1:], ""], strict=True):
        asked = value if option == "-X" else option.removeprefix("-X") if option.startswith("-X") else ""
        if _DISABLED_BY_OPTION.fullmatch(asked):
            raise CannotInjectError(
                f"process {pid} was started with -X disable_remote_debug, which forbids this: {_RESTART}"
            )


def _check_sees(pid: int, site: Path, proc_root: Path) -> None:
    """Whether the target sees our files, by the same name, and may read them."""
    try:
        seen = proc_root / str(pid) / "root" / site.relative_to("/")
        is_same = answered(pid, lambda: site.samefile(seen))
    except OSError:
        is_same = False
    if not is_same or not exists_for(pid, str(site), proc_root=proc_root):
        raise CannotInjectError(
            f"process {pid} does not see gpuwatch's files in {site}, as in a container or a closed home: run gpuwatch "
            f"where it runs, or {_RESTART}"
        )


_SCRIPT = "install.py"
_PLEASE_STOP = 1 << 5  # _PY_EVAL_PLEASE_STOP_BIT of CPython's pycore_ceval.h
_ADDRESSES = 1 << 63


def script_of(plan: Plan, folder: Path) -> str:
    """What the target runs at its next bytecode, on its main thread.

    It puts sys.path back, is silent whatever happens, and removes itself: removed by us before the target came to it,
    it would print an error there.
    """
    return f"""\
def _install():
    import os, sys
    try:
        sys.path.insert(0, {str(plan.site)!r})
        try:
            import _gpuwatch_hook.imports, _gpuwatch_hook.api
        finally:
            sys.path.remove({str(plan.site)!r})
        _gpuwatch_hook.api.watch()
    except Exception:
        pass
    for remove, path in ((os.unlink, {str(folder / _SCRIPT)!r}), (os.rmdir, {str(folder)!r})):
        try:
            remove(path)
        except OSError:
            pass
_install()
del _install
"""


def perform(plan: Plan, temporary: Path | None = None) -> None:
    """Asks the interpreter to install the hook; returns before it has done so.

    Args:
        plan: what was shown to the user.
        temporary: where the script lies until the target has run it, in a folder that only its user can enter.

    Raises:
        CannotInjectError: it cannot be asked, or the process has ended since it was planned.
    """
    with _memory_of(plan) as memory:
        control, interpreter, thread = _where_to_write(plan)
        try:
            enabled = answered(plan.pid, lambda: _int(memory, interpreter + control.enabled))
        except OSError as error:
            raise _not_asked(plan, error) from error
        if enabled != 1:
            raise CannotInjectError(f"process {plan.pid} forbids remote debugging: {plan.restart}")
        folder = _folder_with_script(plan, temporary)
        script = folder / _SCRIPT
        name = os.fsencode(script) + b"\0"
        try:
            if len(name) > control.path_bytes:
                raise CannotInjectError(f"{folder.parent} has too long a name for this: set TMPDIR to a shorter one")
            # Services often have a /tmp of their own, and the target would print that it finds no script.
            if not exists_for(plan.pid, str(script), proc_root=plan.proc_root) or not _is_seen_by(plan, script):
                raise CannotInjectError(
                    f"process {plan.pid} does not see {folder.parent}: set TMPDIR to a folder that it sees"
                )
            os.pwrite(memory, name, thread + control.path)
            os.pwrite(memory, (1).to_bytes(4, "little"), thread + control.pending)
            breaker = _word(memory, thread + control.eval_breaker)
            os.pwrite(memory, (breaker | _PLEASE_STOP).to_bytes(8, "little"), thread + control.eval_breaker)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _not_asked(plan, error) from error
        except CannotInjectError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _not_asked(plan: Plan, error: OSError) -> CannotInjectError:
    return CannotInjectError(f"process {plan.pid} did not accept the hook ({error.strerror}): {plan.restart}")


@contextmanager
def _memory_of(plan: Plan) -> Iterator[int]:
    """The memory of the very process that was consented for: it stays that one's when its pid is given to another."""
    ended = CannotInjectError(
        f"process {plan.pid} has ended in the meantime, and nothing was changed: give the pid of a running process"
    )
    try:
        memory = os.open(plan.proc_root / str(plan.pid) / "mem", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise CannotInjectError(f"the memory of process {plan.pid} may not be written: {plan.restart}") from error
    except OSError as error:
        raise ended from error
    try:
        if not plan.still_runs():
            raise ended
        yield memory
    finally:
        os.close(memory)


def _where_to_write(plan: Plan) -> tuple[RemoteControl, int, int]:
    """The offsets, and the addresses of the main interpreter's state and of its main thread's; read again now.

    A process may have become another program since it was planned, which changes neither its pid nor its start time.
    """
    try:
        target = attach(plan.pid, proc_root=plan.proc_root, start_ticks=plan.start_ticks)
    except CannotReadError as error:
        raise CannotInjectError(error.sentence) from error
    try:
        control, interpreter, thread = in_time(plan.pid, target.budget, lambda: _addresses(target))
        if not 0 < thread < _ADDRESSES or target.version != plan.version:
            raise CannotInjectError(f"process {plan.pid} is starting or ending: try again")
    except OffsetsError as error:
        raise CannotInjectError(
            f"process {plan.pid} runs an unusual build of Python ({error}): {plan.restart}"
        ) from error
    except CannotReadError as error:
        raise CannotInjectError(error.sentence) from error
    except UnreadableAddressError as error:
        raise CannotInjectError(f"process {plan.pid} is starting or ending: try again") from error
    finally:
        target.close()
    return control, interpreter, thread


def _addresses(target: Interpreter) -> tuple[RemoteControl, int, int]:
    control = remote_control_from(target.memory.read(target.program.runtime, SIZE))
    interpreter = main_interpreter(target.memory, target.program, target.layout)
    at = target.layout.threads_main
    return control, interpreter, target.memory.pointer(interpreter + at) if interpreter and at is not None else 0


def _folder_with_script(plan: Plan, temporary: Path | None) -> Path:
    """A new folder that belongs to the target's user, as does the script in it.

    By descriptors: as root, a chown by name would follow a link that took the folder's place.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuwatch-inject-", dir=temporary))
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid != os.geteuid():
            raise CannotInjectError(f"{folder.parent} is changed by another user: set TMPDIR to a folder of yours")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        script = os.open(_SCRIPT, flags, 0o600, dir_fd=directory)
        with os.fdopen(script, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script_of(plan, folder))
            if (plan.uid, plan.gid) != (os.geteuid(), os.getegid()):
                os.fchown(script, plan.uid, plan.gid)
        if (plan.uid, plan.gid) != (os.geteuid(), os.getegid()):
            os.fchown(directory, plan.uid, plan.gid)
    finally:
        os.close(directory)
    return folder


def _is_seen_by(plan: Plan, script: Path) -> bool:
    """Whether the target's file of that name is this one."""
    try:
        seen = plan.proc_root / str(plan.pid) / "root" / script.relative_to("/")
        return answered(plan.pid, lambda: script.samefile(seen))
    except OSError:
        return False


def _int(memory: int, address: int) -> int:
    return int.from_bytes(os.pread(memory, 4, address), "little")


def _word(memory: int, address: int) -> int:
    return int.from_bytes(os.pread(memory, 8, address), "little")
