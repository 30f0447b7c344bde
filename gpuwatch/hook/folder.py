"""The rendezvous folder: where monitors listen and trainers say that they exist. The monitor finds it by the same rule.

Trust ends at one user: the folder must be a real folder, mine and closed to others, or it is refused (predictable
names under /tmp are an old class of holes, such as Ansible's GHSA-fj24-ghp9-39v3). It is on a file system of this
machine, for the training thread asks for its time stamp: a file server that does not answer would hold a step.
"""

from __future__ import annotations

import _io
import os
import stat
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar

from .imports import from_a_signal_handler

posix: Any = sys.modules[os.name]  # the system's own functions, whatever the program has put in their place in `os`

Result = TypeVar("Result")

_MOST_PRESENCE_BYTES = 4096  # a monitor reads no more
_SETTLE_NS = 1_000_000_000
_MOST_LINKS = 40  # of a path, as the kernel counts them
LOCAL_TYPES = (
    "tmpfs ramfs devtmpfs rootfs overlay aufs ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs nilfs2 ntfs3 "
    "vfat exfat squashfs erofs iso9660"
)
"""File systems that no server can keep waiting. Of any other type, FUSE among them, it is not known."""


def rendezvous_path(
    environment: Mapping[str, str], user: int, mounts: Optional[Mapping[str, str]] = None, root: str = ""
) -> str:
    """Where the folder is by docs/protocol.md; it need not exist.

    Args:
        environment: of the process.
        user: its number, in its own user namespace.
        mounts: the type of what it sees mounted, by mount point; None reads what this process sees.
        root: its root folder as this process sees it, where that is another one.
    """
    if mounts is None:
        mounts = read_mounts()
    override = environment.get("GPUWATCH_DIR")
    if override and is_local(override, mounts, root):
        return override
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and is_local(runtime, mounts, root):
        status = attempted(
            posix.stat, _under(root, runtime)
        )  # named but not there, as in many containers: the temp dir it is
        if status is not None and stat.S_ISDIR(status.st_mode) and (root or status.st_uid == user):
            return os.path.join(runtime, "gpuwatch")
    # tempfile.gettempdir's order, without importing tempfile and without its trial file.
    named = [environment.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"]:
        if folder and is_local(folder, mounts, root):
            inside = _under(root, folder)
            status = attempted(posix.stat, inside)
            if status is not None and stat.S_ISDIR(status.st_mode) and posix.access(inside, os.W_OK | os.X_OK):
                return os.path.join(os.path.abspath(folder), f"gpuwatch-{user}")
    return f"/dev/shm/gpuwatch-{user}"


def read_mounts(mountinfo: str = "/proc/self/mountinfo") -> Dict[str, str]:
    """The type of what a process sees mounted, by mount point. Asks no file system for anything."""
    try:
        with _io.open(mountinfo, "rb") as file:
            return mounts_in(file.read())
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        return {}


def mounts_in(mountinfo: bytes) -> Dict[str, str]:
    """The same from the content of a mountinfo file (proc(5)); of two mounts on one point the later one counts."""
    mounts = {}
    for line in mountinfo.split(b"\n"):
        fields, _, after = line.partition(b" - ")
        words, types = fields.split(b" "), after.split(b" ")
        if len(words) > 4 and types[0]:
            point = words[4]
            for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                point = point.replace(code, character)
            mounts[os.fsdecode(point)] = types[0].decode("ascii", "replace")
    return mounts


def is_local(path: str, mounts: Mapping[str, str], root: str = "") -> bool:
    """Whether all that a path leads through is on this machine. Nothing that is elsewhere is touched to find out."""
    reached, links = "/", 0
    remaining = os.path.join(attempted(posix.getcwd) or "/", path).split("/")[::-1]
    while remaining:
        part = remaining.pop()
        if part == "..":
            reached = os.path.dirname(reached)
        elif part not in ("", "."):
            reached = os.path.join(reached, part)
            if not _is_local_type(reached, mounts):
                return False
            target = attempted(posix.readlink, root + reached)
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    return False
                reached = "/" if target.startswith("/") else os.path.dirname(reached)
                remaining += target.split("/")[::-1]
    return _is_local_type(reached, mounts)


def _is_local_type(path: str, mounts: Mapping[str, str]) -> bool:
    while path not in mounts and path != "/":
        path = os.path.dirname(path)
    return path == "/" or mounts[path] in LOCAL_TYPES.split()  # where the root hangs, the program has stopped already


def _under(root: str, path: str) -> str:
    return f"{root}/{path.lstrip('/')}" if root else path


def attempted(call: Callable[..., Result], *arguments: Any) -> Optional[Result]:
    """The result of a system call, None where it fails; what a signal handler raises meanwhile is the program's."""
    try:
        return call(*arguments)
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        return None


class Folder:
    """One process's view of the rendezvous folder."""

    def __init__(self, path: str, user: int) -> None:
        self.path = path
        self._user = user
        self._seen_mtime_ns = -1
        self._presence: Optional[os.stat_result] = None
        self._presence_path = ""

    def is_trusted(self) -> bool:
        """Whether it is a folder, no link, mine, and closed to everybody else."""
        status = attempted(posix.lstat, self.path)
        return (
            status is not None
            and stat.S_ISDIR(status.st_mode)
            and status.st_uid == self._user
            and stat.S_IMODE(status.st_mode) == 0o700
        )

    def has_changed(self) -> bool:
        """Whether something may have changed since the last look: one `stat`."""
        status = attempted(posix.stat, self.path)
        return status is not None and status.st_mtime_ns != self._seen_mtime_ns

    def monitors_if_changed(self) -> Optional[List[str]]:
        """The names of the sockets in it, or None if nothing changed since the last look: one `stat`.

        A change within the last second is looked at again: the time stamp has the kernel's tick, and a
        socket exists a moment before it listens.
        """
        status = attempted(posix.stat, self.path)
        if status is None:
            self._seen_mtime_ns = -1
            return None
        mtime_ns = status.st_mtime_ns
        if mtime_ns == self._seen_mtime_ns:
            return None
        settled = time.time_ns() - mtime_ns > _SETTLE_NS
        self._seen_mtime_ns = mtime_ns if settled else -1
        return self.monitors()

    def monitors(self) -> List[str]:
        """The names of the sockets in it."""
        if not self.is_trusted():
            return []
        names = attempted(posix.listdir, self.path)
        return sorted(name for name in names or () if name.startswith("monitor-") and name.endswith(".sock"))

    def announce(self, presence: Mapping[str, Any]) -> None:
        """Writes this trainer's presence file, making the folder if need be; without permission, does nothing."""
        import json

        attempted(posix.mkdir, self.path, 0o700)  # it exists, or is_trusted says no
        if not self.is_trusted():
            return
        content = dict(presence)
        data = json.dumps(content).encode("ascii")
        while len(data) > _MOST_PRESENCE_BYTES and (content.get("command") or content.get("cwd")):
            content["command"] = content["command"][: len(content["command"]) // 2]
            content["cwd"] = content["cwd"] if content["command"] else None
            data = json.dumps(content).encode("ascii")
        path = os.path.join(self.path, f"trainer-{presence['pid']}.json")
        draft = f"{path}.{presence['start_ticks']}.new"
        # A full or read-only disk: the link works without the file.
        if attempted(_write, draft, data) and attempted(_rename, draft, path):
            self._presence, self._presence_path = attempted(posix.stat, path), path
        else:
            attempted(posix.unlink, draft)

    def withdraw(self) -> None:
        """Removes this trainer's presence file, unless another has taken its name meanwhile."""
        if self._presence is None:
            return
        status = attempted(posix.lstat, self._presence_path)
        if status is not None and status.st_ino == self._presence.st_ino:
            attempted(posix.unlink, self._presence_path)
        self._presence = None


def _write(path: str, content: bytes) -> bool:
    descriptor = posix.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with _io.FileIO(descriptor, "wb") as file:
        return file.write(content) == len(content)


def _rename(draft: str, path: str) -> bool:
    posix.rename(draft, path)
    return True
