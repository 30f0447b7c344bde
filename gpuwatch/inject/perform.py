"""Hands the hook to a running interpreter as `sys.remote_exec` does (PEP 768): the one place that writes to a target.

The few words are written by this process, so nothing of the target's is executed here: its interpreter may be a file
of another user's, and gpuwatch may run as root.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwatch.foreign import answered, exists_for
from gpuwatch.inject.plan import CannotInjectError, Plan
from gpuwatch.reader.attach import Interpreter, attach, main_interpreter
from gpuwatch.reader.containment import in_time
from gpuwatch.reader.layout import SIZE, OffsetsError, RemoteControl, remote_control_from
from gpuwatch.reader.memory import UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError

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
    return CannotInjectError(
        f"process {plan.pid} could not be asked to install the hook ({error.strerror}): {plan.restart}"
    )


@contextmanager
def _memory_of(plan: Plan) -> Iterator[int]:
    """The memory of the very process that was consented for: it stays that one's when its pid is given to another."""
    ended = CannotInjectError(f"process {plan.pid} has ended meanwhile, and nothing was changed: name one that runs")
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
            raise CannotInjectError(f"process {plan.pid} is only starting, or ending: try again")
    except OffsetsError as error:
        raise CannotInjectError(
            f"process {plan.pid} runs an unusual build of Python ({error}): {plan.restart}"
        ) from error
    except CannotReadError as error:
        raise CannotInjectError(error.sentence) from error
    except UnreadableAddressError as error:
        raise CannotInjectError(f"process {plan.pid} is only starting, or ending: try again") from error
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
