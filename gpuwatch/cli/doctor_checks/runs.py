"""The runs: the folder where they meet a monitor, whose may be watched, and whose stacks can be read."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpuwatch.cli.doctor_checks import Check, Detail, State
from gpuwatch.procfs import read_all
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError, Reason, access_to
from gpuwatch.sources.hook_link.processes import Processes, folders_elsewhere, rendezvous_path
from gpuwatch.sources.hook_link.rendezvous import Rendezvous, RendezvousError, names_its_own
from gpuwatch.sources.host.identify import user_name
from gpuwatch.sources.host.machine import in_container

_RUN = "Start the training with `gpuwatch run`, which measures steps and waits without that right"
_RECORD = "with `gpuwatch record -- COMMAND`, which may read what it starts"
_CAPABILITY = "start the container with `--cap-add SYS_PTRACE`"
_YAMA = "`sudo sysctl kernel.yama.ptrace_scope=0`"


def check_link(
    environment: Mapping[str, str] = os.environ, user: int | None = None, proc_root: Path = Path("/proc")
) -> Check:
    """Can a monitor listen there? It is tried with a socket that is removed at once."""
    me = os.geteuid() if user is None else user
    path = rendezvous_path(environment, me)
    try:
        folder = Rendezvous.create(path, me)
    except RendezvousError as error:
        return _refused(path, str(error))
    try:
        name = f"doctor-{os.getpid()}-{time.monotonic_ns()}.sock"
        try:
            folder.listen(name, me).close()
        except RendezvousError as error:
            return _refused(path, str(error))
        folder.remove(name)
        processes = Processes(proc_root)
        runs = sum(
            processes.is_alive(run.pid, run.start_ticks) and names_its_own(processes, folder, run.pid)
            for run in folder.presences()
        )
    finally:
        folder.close()
    there = {0: "no run with the hook is there now", 1: "1 run with the hook is there"}
    found = there.get(runs, f"{runs} runs with the hook are there")
    sentence = f"Training runs can link themselves in {path}; {found}."
    elsewhere = folders_elsewhere(environment)
    if elsewhere:
        sentence = (
            f"{sentence[:-1]}; the folder of {' and '.join(elsewhere)} is passed over: it is on no local file system, "
            "and a file server that hangs would hold a step."
        )
    return Check(
        "link",
        State.OK,
        sentence,
        None,
        {"folder": str(path), "runs": runs, "passed_over": " ".join(elsewhere) or None},
    )


def _refused(path: Path, why: str) -> Check:
    """The error's own cure stands behind its last semicolon."""
    cause, _, cure = why.rpartition("; ")
    return Check(
        "link",
        State.PROBLEM,
        f"Training runs cannot link themselves: {cause or why}.",
        f"{cure[0].upper()}{cure[1:]}." if cause else "Set GPUWATCH_DIR to a folder of yours, for both sides.",
        {"folder": str(path), "runs": None},
    )


def check_permissions(proc_root: Path = Path("/proc"), my_uid: int | None = None) -> Check:
    """A matter of the user, and of whether /proc shows others' processes; for stacks see `other_processes`."""
    uid = os.geteuid() if my_uid is None else my_uid
    hidden = _hidepid(proc_root)
    result = partial(Check, "permissions", details={"uid": uid, "hidepid": hidden})
    whose = "Runs of all users" if uid == 0 else f"Runs of {user_name(uid)}"
    if hidden and uid != 0:
        return result(
            State.WARNING,
            f"{whose} can be watched; /proc hides other users' processes (hidepid={hidden}), so what they take of "
            "the machine is not known.",
            "Run gpuwatch as root (sudo), or ask for the group named in the mount option gid= of /proc.",
        )
    return result(State.OK, f"{whose} can be watched.")


def _hidepid(proc_root: Path) -> str | None:
    """The mount option, None where processes are not hidden."""
    for line in (read_all(f"{proc_root}/self/mountinfo") or b"").split(b"\n"):
        before, _, after = line.partition(b" - ")
        fields = before.split()
        if len(fields) > 4 and fields[4] == b"/proc" and after.startswith(b"proc "):
            for option in after.rpartition(b" ")[2].split(b","):
                key, _, value = option.partition(b"=")
                if key == b"hidepid" and value not in (b"0", b"off"):
                    return value.decode("ascii", "replace")
    return None


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
    result = partial(Check, "other-processes", details=details)
    as_root = _CAPABILITY if container else "run gpuwatch with sudo"
    if problem is not None:
        sentence, cures = _without_the_call(problem, container)
    elif access.yama == 3:
        sentence = "No process may read another until the next start of the machine (ptrace_scope=3)"
        cures = (_RUN,)
    elif access.capable:
        return result(State.OK, "The stacks of all runs can be read.")
    elif access.yama == 2:
        sentence = "Only processes with CAP_SYS_PTRACE may read the stacks of a run (ptrace_scope=2)"
        cures = (_RUN, as_root, _YAMA)
    elif access.yama == 1:
        sentence = "Only its parent or root may read the stacks of a run (ptrace_scope=1)"
        cures = (_RUN, _RECORD, as_root, _YAMA)
    elif uid == 0:
        sentence = "root has no CAP_SYS_PTRACE here, so only stacks of runs of root itself can be read"
        return result(State.OK, f"{sentence}.", f"For those of others {_CAPABILITY}.")
    else:
        return result(State.OK, "The stacks of your runs can be read.")
    return result(State.WARNING, f"{sentence}.", f"{', or '.join(cures)}.")


def _without_the_call(problem: CannotReadError, container: bool) -> tuple[str, tuple[str, ...]]:
    if problem.reason is not Reason.PERMISSION:
        return f"Stacks of runs cannot be read: {problem.sentence.rstrip('.')}", (_RUN,)
    sentence = "A seccomp filter forbids the system call process_vm_readv here"
    return sentence, (_RUN, _CAPABILITY) if container else (_RUN,)
