"""Whose runs may be watched, and how deep."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.identify import user_name
from gpuwatch.sources.host.procfs import read_all, read_int

_NAME = "permissions"


def check_permissions(proc_root: Path = Path("/proc"), my_uid: int | None = None) -> Check:
    """Yama's ptrace_scope decides about the stacks of runs that carry no hook; all else is a matter of the user."""
    uid = os.geteuid() if my_uid is None else my_uid
    scope = read_int(f"{proc_root}/sys/kernel/yama/ptrace_scope")
    hidden = _hidepid(proc_root)
    details = {"uid": uid, "ptrace_scope": scope, "hidepid": hidden}
    whose = "Runs of all users" if uid == 0 else f"Runs of {user_name(uid)}"
    if hidden and uid != 0:
        return Check(
            _NAME,
            State.WARNING,
            f"{whose} can be watched; /proc hides other users' processes (hidepid={hidden}), so what they take of "
            "the machine is not told apart.",
            "Run gpuwatch as root (sudo), or ask for the group named in the mount option gid= of /proc.",
            details,
        )
    if scope == 3:
        return _no_stacks(whose, 3, "Nobody may read other processes until the next start of the machine", details)
    if scope and uid != 0:
        who = "Only parents and root" if scope == 1 else "Only root"
        return _no_stacks(whose, scope, f"{who} may read the stacks of a run without the hook", details)
    return Check(_NAME, State.OK, f"{whose} can be watched, their stacks included.", None, details)


def _no_stacks(whose: str, scope: int, who: str, details: dict[str, int | str | None]) -> Check:
    cure = "Start the training with `gpuwatch run`, which needs no such right"
    if scope < 3:
        cure += ", or run gpuwatch with sudo, or `sudo sysctl kernel.yama.ptrace_scope=0`"
    return Check(_NAME, State.WARNING, f"{whose} can be watched. {who} (ptrace_scope={scope}).", f"{cure}.", details)


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
