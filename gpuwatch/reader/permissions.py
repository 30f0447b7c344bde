"""Why the kernel denies a process's memory, and what to do about it, as far as /proc shows it.

The kernel itself only says EPERM: for another user's process, for one that is not dumpable, for Yama's level
(Documentation/admin-guide/LSM/Yama.rst) and for a container without CAP_SYS_PTRACE.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.foreign import status_fields
from gpuwatch.reader.types import CannotReadError, Reason

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
    return f"the kernel denies the memory of process {pid}", f"read it as root: {as_root}"


def access_to(pid: int, proc_root: Path) -> Access:
    """What /proc tells about reading `pid` from here."""
    target = _status(proc_root / str(pid) / "status")
    own = _status(proc_root / "self" / "status")
    target_uid = _first_number(target.get("Uid"))
    return Access(
        own_uid=os.geteuid(),
        target_uid=target_uid,
        capable=bool(int(own.get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1),
        yama=_yama(proc_root),
        dumpable=_dumpable(proc_root / str(pid) / "status", target),
        container=_in_container(proc_root),
    )


def _status(path: Path) -> dict[str, str]:
    try:
        return status_fields(path.read_bytes())
    except OSError:
        return {}


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
