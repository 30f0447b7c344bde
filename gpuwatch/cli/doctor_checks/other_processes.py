"""Whether the stacks of runs can be read: Yama's level, the capability, and a filtered system call.

The hook changes nothing about that: it measures steps and waits, and the lines of its runs come from their stacks too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, Detail, State
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.permissions import access_to
from gpuwatch.reader.types import CannotReadError, Reason
from gpuwatch.sources.host.machine import in_container

_NAME = "other-processes"
_RUN = "Start the training with `gpuwatch run`, which measures steps and waits without that right"
_RECORD = "with `gpuwatch record -- COMMAND`, which may read what it starts"
_CAPABILITY = "start the container with `--cap-add SYS_PTRACE`"
_YAMA = "`sudo sysctl kernel.yama.ptrace_scope=0`"


def own_memory_problem() -> CannotReadError | None:
    """Reads this process itself, which every kernel allows: what fails then is the system call."""
    word = ctypes.create_string_buffer(b"gpuwatch")
    try:
        memory = Memory(os.getpid())
    except CannotReadError as error:
        return error
    try:
        memory.read(ctypes.addressof(word), len(word))
    except CannotReadError as error:
        return error
    except UnreadableAddressError:
        return CannotReadError(Reason.PLATFORM, "process_vm_readv does not read what is there")
    finally:
        memory.close()
    return None


def check_other_processes(
    proc_root: Path = Path("/proc"),
    my_uid: int | None = None,
    try_own_memory: Callable[[], CannotReadError | None] = own_memory_problem,
) -> Check:
    """May gpuwatch read the stacks of a training that it did not start?"""
    uid = os.geteuid() if my_uid is None else my_uid
    access = access_to(os.getpid(), proc_root)
    container = in_container(proc_root)
    problem = try_own_memory()
    details: dict[str, Detail] = {
        "ptrace_scope": access.yama,
        "cap_sys_ptrace": access.capable,
        "process_vm_readv": problem is None,
    }
    as_root = _CAPABILITY if container else "run gpuwatch with sudo"
    if problem is not None:
        sentence, cures = _without_the_call(problem, container)
    elif access.yama == 3:
        sentence = "No process may read another until the next start of the machine (ptrace_scope=3)"
        cures = (_RUN,)
    elif access.capable:
        return Check(_NAME, State.OK, "The stacks of all runs can be read.", None, details)
    elif access.yama == 2:
        sentence = "Only processes with CAP_SYS_PTRACE may read the stacks of a run (ptrace_scope=2)"
        cures = (_RUN, as_root, _YAMA)
    elif access.yama == 1:
        sentence = "Only its parent or root may read the stacks of a run (ptrace_scope=1)"
        cures = (_RUN, _RECORD, as_root, _YAMA)
    elif uid == 0:
        sentence = "root has no CAP_SYS_PTRACE here, so only stacks of runs of root itself can be read"
        return Check(_NAME, State.OK, f"{sentence}.", f"For those of others {_CAPABILITY}.", details)
    else:
        return Check(_NAME, State.OK, "The stacks of your runs can be read.", None, details)
    return Check(_NAME, State.WARNING, f"{sentence}.", f"{', or '.join(cures)}.", details)


def _without_the_call(problem: CannotReadError, container: bool) -> tuple[str, tuple[str, ...]]:
    if problem.reason is not Reason.PERMISSION:
        return f"Stacks of runs cannot be read: {problem.sentence.rstrip('.')}", (_RUN,)
    sentence = "The system call process_vm_readv is forbidden here even on gpuwatch itself (a seccomp filter)"
    return sentence, (_RUN, _CAPABILITY) if container else (_RUN,)
