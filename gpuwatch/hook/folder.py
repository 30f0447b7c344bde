"""The rendezvous folder: where monitors listen and trainers say that they exist.

Trust ends at one user: the folder must be a real folder, mine and closed to others, or it is refused (predictable
names under /tmp are an old class of holes, such as Ansible's GHSA-fj24-ghp9-39v3).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Any, List, Mapping, Optional

from .frames import raised_by_the_user

_SETTLE_NS = 1_000_000_000


def rendezvous_path(environment: Mapping[str, str], user: int) -> str:
    """Where the folder is by docs/protocol.md; it need not exist."""
    override = environment.get("GPUWATCH_DIR")
    if override:
        return override
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        try:
            status = os.stat(runtime)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == user:
                return os.path.join(runtime, "gpuwatch")
        except OSError:
            pass  # named but not there, as in many containers: the temp dir it is
    return os.path.join(_temporary_folder(environment), f"gpuwatch-{user}")


def _temporary_folder(environment: Mapping[str, str]) -> str:
    # tempfile.gettempdir's order, without importing tempfile and without its trial file.
    named = [environment.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"]:
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return os.path.abspath(folder)
    return os.getcwd()


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
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == self._user and stat.S_IMODE(status.st_mode) == 0o700

    def monitors_if_changed(self) -> Optional[List[str]]:
        """The names of the sockets in it, or None if nothing changed since the last look: one `stat`.

        A change within the last second is looked at again: the time stamp has the kernel's tick, and a
        socket exists a moment before it listens.
        """
        try:
            mtime_ns = os.stat(self.path).st_mtime_ns
        except OSError as error:
            if raised_by_the_user(error):
                raise
            self._seen_mtime_ns = -1
            return None
        if mtime_ns == self._seen_mtime_ns:
            return None
        settled = time.time_ns() - mtime_ns > _SETTLE_NS
        self._seen_mtime_ns = mtime_ns if settled else -1
        return self.monitors()

    def monitors(self) -> List[str]:
        """The names of the sockets in it."""
        if not self.is_trusted():
            return []
        try:
            names = os.listdir(self.path)
        except OSError:
            return []
        return sorted(name for name in names if name.startswith("monitor-") and name.endswith(".sock"))

    def announce(self, presence: Mapping[str, Any]) -> None:
        """Writes this trainer's presence file, making the folder if need be; without permission, does nothing."""
        import json

        with contextlib.suppress(OSError):  # it exists, or is_trusted says no
            os.mkdir(self.path, 0o700)
        if not self.is_trusted():
            return
        path = os.path.join(self.path, f"trainer-{presence['pid']}.json")
        draft = f"{path}.{presence['start_ticks']}.new"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(json.dumps(presence).encode("ascii"))
            os.rename(draft, path)
            self._presence, self._presence_path = os.stat(path), path
        except OSError:
            self._presence = None  # a full or read-only disk: the link works without the file

    def withdraw(self) -> None:
        """Removes this trainer's presence file, unless another has taken its name meanwhile."""
        if self._presence is None:
            return
        try:
            if os.lstat(self._presence_path).st_ino == self._presence.st_ino:
                os.unlink(self._presence_path)
        except OSError:
            pass  # removed already, by a monitor or with the folder
        self._presence = None
