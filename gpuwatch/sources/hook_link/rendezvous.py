"""The folder where monitors listen and trainers leave word, with the checks that make it trustworthy.

Predictable names under /tmp are an old class of holes (Ansible's GHSA-fj24-ghp9-39v3), so the folder is opened once
without following links, checked, and from then on only reached through that descriptor.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from gpuwatch.sources.hook_link.facts import BadFactsError, Fields, parse

_MAX_PRESENCES: Final = 1024
_MAX_PRESENCE_BYTES: Final = 4096
_MAX_ENTRIES: Final = 4096
_DRAFT_SECONDS: Final = 60.0  # a presence file is written in less than a millisecond
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BACKLOG: Final = 128


class RendezvousError(OSError):
    """The folder cannot be used; the message names the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What a trainer's presence file says; nothing in it is proven."""

    name: str
    pid: int
    start_ticks: int
    command: tuple[str, ...]
    cwd: str | None
    pid_namespace: int | None


class Rendezvous:
    """One open folder, owned by `owner`."""

    def __init__(self, path: Path, descriptor: int, owner: int) -> None:
        self.path = path
        self.owner = owner
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self.is_crowded = False
        """Whether it holds more presence files than are read."""
        self._read: dict[str, tuple[tuple[int, int, int], Presence | None]] = {}  # by name: inode, mtime_ns, size

    @classmethod
    def create(cls, path: Path, user: int) -> Rendezvous:
        """Opens the folder of this user, making it if need be.

        Raises:
            RendezvousError: it cannot be made, or it is not a folder of this user that is closed to others.
        """
        with suppress(FileExistsError):
            try:
                path.mkdir(0o700)
                path.chmod(0o700)  # whatever the umask
            except FileExistsError:
                raise
            except OSError as error:
                cure = "set GPUWATCH_DIR to a folder of yours"
                raise RendezvousError(f"cannot make {path}: {error.strerror}; {cure}") from error
        return cls.open(path, user)

    @classmethod
    def open(cls, path: Path, user: int, root: Path | None = None) -> Rendezvous:
        """Opens a folder that is there; with `root`, without following any link below that root.

        Raises:
            RendezvousError: it is not a folder of this user that is closed to others.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | _FOLDER) if root is None else _walk(root, path)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise RendezvousError(f"{path} is no folder (a link is not followed); remove it") from error
            raise RendezvousError(f"cannot open {path}: {error.strerror}") from error
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == user and mode == 0o700:
            return cls(path, descriptor, user)
        os.close(descriptor)
        if status.st_uid != user:
            raise RendezvousError(f"{path} belongs to user {status.st_uid}; set GPUWATCH_DIR to a folder of yours")
        raise RendezvousError(f"{path} has mode {mode:o}, others could reach it; run: chmod 700 {path}")

    def listen(self, name: str, me: int) -> socket.socket:
        """A listening socket under this name, which only the folder's owner can connect to.

        Raises:
            RendezvousError: the name is taken by a monitor that lives, or the folder is read-only or full.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            # The file takes its mode from the socket: no umask, which is the whole process's, and no moment
            # at which it is wider.
            os.fchmod(listener.fileno(), 0o600)
            if not self.has_live_monitor(name):
                self.remove(name)
            listener.bind(self._reach(name))
            if me != self.owner:
                os.chown(self._reach(name), self.owner, -1, follow_symlinks=False)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise RendezvousError(f"cannot listen in {self.path}: {error.strerror}") from error
        return listener

    def names(self, prefix: str, suffix: str) -> list[str]:
        """The names in the folder that begin and end so, of the first 4 096 that the kernel lists."""
        try:
            with os.scandir(self._descriptor) as entries:
                names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
        except OSError:
            return []
        return sorted(name for name in names if name.startswith(prefix) and name.endswith(suffix))

    def has_live_monitor(self, name: str) -> bool:
        """Whether somebody listens there; asked by connecting, which is right in any pid namespace."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(self._reach(name))
            except (ConnectionRefusedError, FileNotFoundError):
                return False
            except OSError:
                return True
        return True

    def presences(self) -> Iterator[Presence]:
        """What trainers left; files that are none are passed over. A file is read again when it has changed."""
        names = self.names("trainer-", ".json")
        self.is_crowded = len(names) > _MAX_PRESENCES
        known, self._read = self._read, {}
        for name in names[:_MAX_PRESENCES]:
            try:
                status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            except OSError:
                continue
            key = (status.st_ino, status.st_mtime_ns, status.st_size)
            before = known.get(name)
            presence = before[1] if before is not None and before[0] == key else self._presence(name)
            self._read[name] = (key, presence)
            if presence is not None:
                yield presence

    def remove_old_drafts(self, now_seconds: float) -> None:
        """Removes what trainers that were killed as they wrote have left; `now_seconds` is the wall time."""
        for name in self.names("trainer-", ".new"):
            with suppress(OSError):
                status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
                if now_seconds - status.st_mtime > _DRAFT_SECONDS:
                    os.unlink(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there and may be removed."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def has(self, name: str) -> bool:
        """Whether this name is there, in a folder that was not removed."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return False
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Closes the folder; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _reach(self, name: str) -> str:
        # sun_path ends at 108 bytes whatever the folder's depth, so sockets are reached through the descriptor.
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def _presence(self, name: str) -> Presence | None:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=self._descriptor), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != self.owner:
                    return None
                fields = Fields(parse(file.read(_MAX_PRESENCE_BYTES)))
        except (OSError, BadFactsError):
            return None
        pid, start_ticks = fields.integer("pid", 1), fields.integer("start_ticks")
        if pid is None or start_ticks is None or name != f"trainer-{pid}.json":
            return None
        return Presence(
            name,
            pid,
            start_ticks,
            fields.texts("command", 256),
            fields.text("cwd"),
            fields.integer("pid_ns"),
        )


def _walk(root: Path, path: Path) -> int:
    """Opens `path` below `root`; a link in it could lead out of the container it belongs to."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.relative_to("/").parts:
        try:
            inner = os.open(part, os.O_RDONLY | _FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
