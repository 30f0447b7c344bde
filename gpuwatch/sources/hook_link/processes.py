"""Who a process is: read from /proc, because what a peer says of itself proves nothing.

A pid alone is reused; with its start time in clock ticks it is an identity. Every function answers None where the
process is gone or may not be looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from gpuwatch.foreign import read_of
from gpuwatch.hook import folder
from gpuwatch.procfs import read_stat, status_fields

_MAX_ANCESTORS: Final = 16
_MAX_ENVIRONMENT: Final = 256 * 1024
_BIRTH_MARGIN_NS: Final = 60_000_000_000
_MAX_FILES: Final = 4096
_MAX_SOCKET_TABLE: Final = 4 << 20
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h


class Processes:
    """The processes under one /proc."""

    def __init__(self, proc_root: Path) -> None:
        self.root = proc_root
        self.pid_namespace = self._inode("self/ns/pid")
        self.sees_all = self.pid_namespace == _FIRST_PID_NAMESPACE
        """Whether a process that is not found here is nowhere, in no container either."""

    def start_ticks(self, pid: int) -> int | None:
        """When the process started, in clock ticks since boot."""
        stat = read_stat(self.root, pid)
        return None if stat is None else stat.start_ticks

    def is_alive(self, pid: int, start_ticks: int) -> bool:
        """Whether this very process still runs; a zombie does not.

        Nor does one that the kernel is taking apart: its socket is closed by then.
        """
        stat = read_stat(self.root, pid)
        return stat is not None and stat.start_ticks == start_ticks and not stat.has_ended

    def parent(self, pid: int) -> int | None:
        """The pid of the parent."""
        stat = read_stat(self.root, pid)
        return None if stat is None else stat.parent

    def is_known_as(self, pid: int, claimed: int) -> bool:
        """Whether a process calls itself `claimed`: in its own pid namespace or one above it."""
        return pid == claimed or claimed in self._namespace_pids(pid)

    def own_number(self, pid: int) -> int:
        """The pid by which the process knows itself, in its innermost namespace."""
        numbers = self._namespace_pids(pid)
        return numbers[-1] if numbers else pid

    def ancestor_known_as(self, pid: int, claimed: int) -> int | None:
        """The ancestor of `pid` that calls itself `claimed`; a forkserver may stand in between."""
        for _ in range(_MAX_ANCESTORS):
            parent = self.parent(pid)
            if not parent:
                return None
            if self.is_known_as(parent, claimed):
                return parent
            pid = parent
        return None

    def pids(self) -> list[int]:
        """All pids there are."""
        try:
            return [int(path.name) for path in self.root.iterdir() if path.name.isdigit()]
        except OSError:
            return []

    def owner(self, pid: int) -> int | None:
        """The user a process belongs to; root's for one that must not be looked at."""
        try:
            return (self.root / str(pid)).stat().st_uid
        except OSError:
            return None

    def user(self, pid: int) -> int | None:
        """The effective user of a process; the /proc entry of one that cannot be dumped belongs to root instead."""
        users = self._status(pid).get("Uid", "").split()
        return int(users[1]) if len(users) > 1 and users[1].isdecimal() else None

    def connected_links(self, pid: int) -> int | None:
        """How many AF_UNIX SOCK_SEQPACKET sockets of the process are connected: its links, for nothing else has any."""
        folder = self.root / str(pid)
        try:
            held = set()
            for path in islice((folder / "fd").iterdir(), _MAX_FILES):
                with suppress(FileNotFoundError):  # closed meanwhile
                    held.add(str(path.readlink()))
            with (folder / "net/unix").open("rb") as file:
                table = file.read(_MAX_SOCKET_TABLE).splitlines()[1:]
        except OSError:
            return None
        rows = (line.split() for line in table)
        return sum(
            row[4:6] == [b"0005", b"03"] and f"socket:[{row[6].decode('ascii', 'replace')}]" in held
            for row in rows
            if len(row) > 6
        )

    def mount_namespace(self, pid: int) -> int | None:
        """The inode number of the process's mount namespace."""
        return self._inode(f"{pid}/ns/mnt")

    def environment(self, pid: int) -> dict[str, str] | None:
        """The environment the process was started with."""
        text = read_of(self.root, pid, "environ", _MAX_ENVIRONMENT)
        if text is None:
            return None
        pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0"))
        return {name: value for name, _, value in pairs if name}

    def user_inside(self, pid: int, user: int) -> int:
        """What number a user of ours has in the process's user namespace."""
        try:
            lines = (self.root / str(pid) / "uid_map").read_text("ascii").splitlines()
        except OSError:
            return user
        for line in lines:
            inside, outside, count = (int(word) for word in line.split())
            if outside <= user < outside + count:
                return inside + user - outside
        return user

    def _inode(self, path: str) -> int | None:
        try:
            return (self.root / path).stat().st_ino
        except OSError:
            return None

    def _status(self, pid: int) -> dict[str, str]:
        try:
            return status_fields((self.root / str(pid) / "status").read_bytes())
        except OSError:
            return {}

    def _namespace_pids(self, pid: int) -> list[int]:
        return [int(word) for word in self._status(pid).get("NSpid", "").split() if word.isdecimal()]


def born_ns(start_ticks: int) -> int:
    """A moment on CLOCK_MONOTONIC before which the process was not there, a minute of margin included.

    Start times count from boot with the time that the machine was suspended, which the monotonic clock leaves out: less
    of it than by now.
    """
    suspended_ns = max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns())
    return max(0, start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - suspended_ns - _BIRTH_MARGIN_NS)


def rendezvous_path(
    environment: Mapping[str, str],
    user: int,
    root: Path = Path("/"),
    mounts: Mapping[str, str] | None = None,
) -> Path:
    """Where a process with this environment and user meets its monitors, by the hook's own rule.

    Args:
        environment: of the process.
        user: its number in the process's own user namespace.
        root: the process's root folder, as this process sees it.
        mounts: the type of what the process sees mounted, by mount point; None reads it.
    """
    mounts = mounts_of(root) if mounts is None else mounts
    return Path(folder.rendezvous_path(environment, user, mounts, "" if root == Path("/") else str(root)))


def folders_elsewhere(environment: Mapping[str, str], mounts: Mapping[str, str] | None = None) -> list[str]:
    """The variables that name a folder which is not used because it may be on another machine."""
    mounts = mounts_of(Path("/")) if mounts is None else mounts
    named = ("GPUWATCH_DIR", "XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP")
    return [name for name in named if environment.get(name) and not folder.is_local(environment[name], mounts)]


def mounts_of(root: Path) -> dict[str, str]:
    """The type of what is mounted, by mount point, of the process with this root folder; empty where it is hidden."""
    return folder.read_mounts(*(() if root == Path("/") else (str(root.parent / "mountinfo"),)))
