"""Whose runs may be watched."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.identify import user_name
from gpuwatch.sources.host.procfs import read_all

_NAME = "permissions"


def check_permissions(proc_root: Path = Path("/proc"), my_uid: int | None = None) -> Check:
    """A matter of the user, and of whether /proc shows others' processes; for stacks see `other_processes`."""
    uid = os.geteuid() if my_uid is None else my_uid
    hidden = _hidepid(proc_root)
    details = {"uid": uid, "hidepid": hidden}
    whose = "Runs of all users" if uid == 0 else f"Runs of {user_name(uid)}"
    if hidden and uid != 0:
        return Check(
            _NAME,
            State.WARNING,
            f"{whose} can be watched; /proc hides other users' processes (hidepid={hidden}), so what they take of "
            "the machine is not known.",
            "Run gpuwatch as root (sudo), or ask for the group named in the mount option gid= of /proc.",
            details,
        )
    return Check(_NAME, State.OK, f"{whose} can be watched.", None, details)


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
