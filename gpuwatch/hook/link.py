"""The rendezvous folder, where trainers meet monitors, and one connection to each: it only sends, and never waits.

Trust ends at one user: the folder must be a real folder, mine and closed to others, or it is refused (predictable
names under /tmp are an old class of holes, such as Ansible's GHSA-fj24-ghp9-39v3). It is on a file system of this
machine, for the training thread asks for its time stamp: a file server that does not answer would hold a step.
"""

from __future__ import annotations

import _io
import _socket
import os
import posix
import stat
import struct
import time
from itertools import islice
from select import POLLOUT, poll
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, TypeVar

from . import wire
from .imports import from_a_signal_handler

_MOST_PRESENCE_BYTES = 4096  # a monitor reads no more

Result = TypeVar("Result")

_SETTLE_NS = 1_000_000_000
_MOST_LINKS = 40  # of a path, as the kernel counts them
LOCAL_TYPES = (
    "tmpfs ramfs devtmpfs rootfs overlay aufs ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs nilfs2 ntfs3 "
    "vfat exfat squashfs erofs iso9660"
)
"""File systems that no server can keep waiting. Of any other type, FUSE among them, it is not known."""


def rendezvous_path(environment: Mapping[str, str], user: int, mounts: Optional[Mapping[str, str]] = None) -> str:
    """Where the folder is by docs/protocol.md; it need not exist.

    Args:
        environment: of the process.
        user: its number.
        mounts: the type of what is mounted, by mount point; None reads what this process sees.
    """
    if mounts is None:
        mounts = read_mounts()
    override = environment.get("GPUWATCH_DIR")
    if override and is_local(override, mounts):
        return override
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and is_local(runtime, mounts):
        status = attempted(posix.stat, runtime)  # named but not there, as in many containers: the temp dir it is
        if status is not None and stat.S_ISDIR(status.st_mode) and status.st_uid == user:
            return os.path.join(runtime, "gpuwatch")
    # tempfile.gettempdir's order, without importing tempfile and without its trial file.
    named = [environment.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"]:
        if folder and is_local(folder, mounts):
            status = attempted(posix.stat, folder)
            if status is not None and stat.S_ISDIR(status.st_mode) and posix.access(folder, os.W_OK | os.X_OK):
                return os.path.join(os.path.abspath(folder), f"gpuwatch-{user}")
    return f"/dev/shm/gpuwatch-{user}"


def read_mounts() -> Dict[str, str]:
    """The type of what is mounted, by mount point, as this process sees it. Asks no file system for anything."""
    try:
        with _io.open("/proc/self/mountinfo", "rb") as file:
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


def is_local(path: str, mounts: Mapping[str, str]) -> bool:
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
            target = attempted(posix.readlink, reached)
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


_SEND_FLAGS = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL  # a user may have given SIGPIPE its deadly default back
_PATH_LIMIT = 107
_LONG_FACTS = ("command", "loaders", "phases", "save_places", "unhooked")


class Link:
    """A connected monitor. `alive` turns false once it is gone; it is then forgotten."""

    def __init__(self, connection: _socket.socket, monitor_pid: int, recorded: int, history_length: int) -> None:
        self._connection = connection
        self._inode = posix.fstat(connection.fileno()).st_ino
        self._sent = recorded - history_length
        self._blocked = False
        self._facts: Dict[str, Any] = {}
        self.dropped = 0
        self.alive = True
        self.monitor_pid = monitor_pid

    def greet(self, kind: int, content: Mapping[str, Any]) -> None:
        """Sends the first packet: HELLO or WORKER."""
        sent = dict(content)
        packet = wire.json_packet(kind, sent, 0)
        if not packet:  # the long ones follow as FACTS
            sent = {key: value for key, value in content.items() if key not in _LONG_FACTS}
            packet = wire.json_packet(kind, sent, 0)
        if self._send(packet):
            self._facts = sent
        else:
            self.close()

    def is_writable(self) -> bool:
        """Whether a packet would find room, as far as is known.

        Asked of the kernel only after a refusal. It says yes once three quarters of the buffer are free, so a stopped
        monitor costs one system call per flush, no facts and no packets.
        """
        if self._blocked and self.alive:
            poller = poll()
            poller.register(self._connection, POLLOUT)
            self._blocked = not poller.poll(0)
        return self.alive and not self._blocked

    def send_facts(self, facts: Mapping[str, Any]) -> bool:
        """Sends the facts that differ from what this monitor has; whether it now has them."""
        missing = object()
        changed = {key: value for key, value in facts.items() if self._facts.get(key, missing) != value}
        if not changed:
            return True
        packet = wire.json_packet(wire.FACTS, changed, self.dropped)
        if packet:
            return self._tell(changed, packet)
        parts = [{key: value} for key, value in changed.items()]  # together they do not fit into one packet
        return all(self._tell(part, wire.json_packet(wire.FACTS, part, self.dropped)) for part in parts)

    def _tell(self, facts: Mapping[str, Any], packet: bytes) -> bool:
        """Sends facts; those that no packet can hold are let go."""
        if packet and not self._send(packet):
            return False
        self._facts.update(facts)
        return True

    def send_records(self, history: Deque[bytes], recorded: int) -> None:
        """Sends what this monitor has not had yet; what the ring has lost meanwhile is counted."""
        fresh = recorded - self._sent
        if fresh <= 0 or self._blocked:
            return
        lost = max(0, fresh - len(history))
        count = fresh - lost
        records = list(islice(reversed(history), count))  # from the new end: the older ones have left the caches
        records.reverse()
        if self._send(wire.records_packet(records, count, self.dropped + lost)):
            self.dropped += lost
            self._sent = recorded

    def send_bye(self, reason: str) -> None:
        """Says that the end of the connection is not a death."""
        self._send(wire.json_packet(wire.BYE, {"reason": reason}, self.dropped))

    def close(self) -> None:
        """Closes the connection; idempotent. After a fork this closes the child's copy only."""
        if self.alive:
            self.alive = False
            if self._is_mine():
                self._connection.close()
            else:
                self._connection.detach()

    def _is_mine(self) -> bool:
        # A daemonising program closes all descriptors; the number may by now be a file or socket of the user's.
        try:
            return posix.fstat(self._connection.fileno()).st_ino == self._inode
        except OSError as error:
            if from_a_signal_handler(error):
                raise
            return False

    def _send(self, packet: bytes) -> bool:
        if not packet or not self.alive:
            return False
        if not self._is_mine():
            self.close()
            return False
        try:
            self._connection.send(packet, _SEND_FLAGS)
        except BlockingIOError:
            self._blocked = True
            return False
        except OSError as error:
            if from_a_signal_handler(error):
                raise
            self.close()
            return False
        return True


def connect(folder: str, name: str, user: int, recorded: int, history_length: int) -> Optional[Link]:
    """A link to the monitor that listens under that name, or None: not there, busy, or not to be trusted."""
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    except OSError:
        return None  # no descriptors left: the run needs them more than we do
    try:
        connection.setblocking(False)
        _connect(connection, folder, name)
        pid, peer_user, _ = struct.unpack("3i", connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))
        if peer_user in (user, 0):
            return Link(connection, pid, recorded, history_length)
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        # Else a dead monitor's socket, or a full backlog: tried again later.
    connection.close()
    return None


def _connect(connection: _socket.socket, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        connection.connect(path)
        return
    directory = posix.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        posix.close(directory)
