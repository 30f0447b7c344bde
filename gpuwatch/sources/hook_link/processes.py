"""Who a process is: read from /proc, because what a peer says of itself proves nothing.

A pid alone is reused; with its start time in clock ticks it is an identity. Every function answers None where the
process is gone or may not be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_MAX_ANCESTORS: Final = 16
_MAX_ENVIRONMENT: Final = 256 * 1024
_EXITING: Final = 0x4  # PF_EXITING of the kernel's sched.h, in the flags of /proc/PID/stat


class Processes:
    """The processes under one /proc."""

    def __init__(self, proc_root: Path) -> None:
        self.root = proc_root
        self.pid_namespace = self._inode("self/ns/pid")

    def start_ticks(self, pid: int) -> int | None:
        """When the process started, in clock ticks since boot."""
        stat = self._stat(pid)
        return int(stat[19]) if stat else None

    def is_alive(self, pid: int, start_ticks: int) -> bool:
        """Whether this very process still runs; a zombie does not.

        Nor does one that the kernel is taking apart: its socket is closed by then, and on a busy machine it is seconds
        before it is a zombie.
        """
        stat = self._stat(pid)
        is_same = bool(stat) and int(stat[19]) == start_ticks
        return is_same and stat[0] not in (b"Z", b"X") and not int(stat[6]) & _EXITING

    def parent(self, pid: int) -> int | None:
        """The pid of the parent."""
        stat = self._stat(pid)
        return int(stat[1]) if stat else None

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

    def mount_namespace(self, pid: int) -> int | None:
        """The inode number of the process's mount namespace."""
        return self._inode(f"{pid}/ns/mnt")

    def environment(self, pid: int) -> dict[str, str] | None:
        """The environment the process was started with."""
        try:
            with (self.root / str(pid) / "environ").open("rb") as file:
                text = file.read(_MAX_ENVIRONMENT)
        except OSError:
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

    def _stat(self, pid: int) -> list[bytes]:
        try:
            text = (self.root / str(pid) / "stat").read_bytes()
        except OSError:
            return []
        # The command may hold spaces and brackets; the fields begin after its last bracket.
        words = text.rpartition(b")")[2].split()
        return words if len(words) > 19 else []

    def _namespace_pids(self, pid: int) -> list[int]:
        try:
            status = (self.root / str(pid) / "status").read_bytes()
        except OSError:
            return []
        for line in status.splitlines():
            if line.startswith(b"NSpid:"):
                return [int(word) for word in line.split()[1:]]
        return []


def rendezvous_path(environment: Mapping[str, str], user: int, root: Path = Path("/")) -> Path:
    """Where a process with this environment and user meets its monitors, as docs/protocol.md says.

    Args:
        environment: of the process.
        user: its number in the process's own user namespace.
        root: the process's root folder, as this process sees it.
    """
    override = environment.get("GPUWATCH_DIR")
    if override:
        return Path(override)
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and _is_folder_of(_under(root, runtime), user if root == Path("/") else None):
        return Path(runtime) / "gpuwatch"
    named = [environment.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"]:
        if folder and _under(root, folder).is_dir() and os.access(_under(root, folder), os.W_OK | os.X_OK):
            return Path.cwd() / folder / f"gpuwatch-{user}"
    return Path.cwd() / f"gpuwatch-{user}"


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/") if root != Path("/") else Path(path)


def _is_folder_of(path: Path, user: int | None) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return path.is_dir() and user in (None, status.st_uid)
