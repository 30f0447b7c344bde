"""The folders where monitors listen and trainers leave word, and who a process is, with the checks that make both sure.

Predictable names under /tmp are an old class of holes (Ansible's GHSA-fj24-ghp9-39v3), so a folder is opened once
without following links, checked, and from then on only reached through that descriptor.

What a peer says of itself proves nothing, so /proc is read. A pid alone is reused; with its start time in clock ticks
it is an identity. A trainer takes its folder from its own environment (a batch system sets TMPDIR, a container has its
own /tmp), so each process's environment says where it would look. A process is examined once, when it is new.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from gpuwatch.foreign import read_of
from gpuwatch.hook import folder as hook_folder
from gpuwatch.procfs import all_pids, effective_user, namespace_pids, owner_of, read_stat
from gpuwatch.samples import LinkLoss, RunFacts, Sample, TrainerEnded
from gpuwatch.sources.hook_link.facts import BadFactsError, Fields, parse

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

    def is_known_as(self, pid: int, claimed: int) -> bool:
        """Whether a process calls itself `claimed`: in its own pid namespace or one above it."""
        return pid == claimed or claimed in namespace_pids(pid, self.root)

    def own_number(self, pid: int) -> int:
        """The pid by which the process knows itself, in its innermost namespace."""
        numbers = namespace_pids(pid, self.root)
        return numbers[-1] if numbers else pid

    def ancestor_known_as(self, pid: int, claimed: int) -> int | None:
        """The ancestor of `pid` that calls itself `claimed`; a forkserver may stand in between."""
        for _ in range(_MAX_ANCESTORS):
            stat = read_stat(self.root, pid)
            if stat is None or not stat.parent:
                return None
            pid = stat.parent
            if self.is_known_as(pid, claimed):
                return pid
        return None

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
    return Path(hook_folder.rendezvous_path(environment, user, mounts, "" if root == Path("/") else str(root)))


def folders_elsewhere(environment: Mapping[str, str], mounts: Mapping[str, str] | None = None) -> list[str]:
    """The variables that name a folder which is not used because it may be on another machine."""
    mounts = mounts_of(Path("/")) if mounts is None else mounts
    named = ("GPUWATCH_DIR", "XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP")
    return [name for name in named if environment.get(name) and not hook_folder.is_local(environment[name], mounts)]


def mounts_of(root: Path) -> dict[str, str]:
    """The type of what is mounted, by mount point, of the process with this root folder; empty where it is hidden."""
    return hook_folder.read_mounts(*(() if root == Path("/") else (str(root.parent / "mountinfo"),)))


_MAX_PRESENCES: Final = 1024
_MAX_PRESENCE_BYTES: Final = 4096
_MAX_ENTRIES: Final = 4096
_DRAFT_SECONDS: Final = 60.0  # a presence file is written in less than a millisecond
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BACKLOG: Final = 128

_PATIENCE_NS: Final = 2_000_000_000
_SILENT: Final = "hooked, but it has done nothing that the hook reports since this gpuwatch started"
_LINKED_ELSEWHERE: Final = (
    "hooked, but already linked to {} other gpuwatch processes, the most that a run serves; close one"
)
_MOST_LINKS: Final = 4
_MAX_SEARCHES: Final = 8  # of all processes, for trainers of other pid namespaces, in one pass
_RECHECK_NS: Final = 5_000_000_000

_NEW_PER_LOOK: Final = 200
_MAX_PLACES: Final = 256
_VISITORS: Final = 8


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
                raise RendezvousError(f"{path} is not a folder (links are not followed); remove it") from error
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
        """The names in the folder that begin and end so, of the first 4,096 that the kernel lists."""
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


@dataclass(slots=True)
class _Silent:
    pid: int
    start_ticks: int
    since_ns: int
    announced: str = ""  # the sentence
    checked_ns: int = 0
    killed: bool = False


class PresenceWatch:
    """Names the silent trainers, and removes the files of dead ones."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._silent: dict[str, _Silent] = {}
        self._foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}
        self._crowded: set[tuple[int, int]] = set()
        self._searches = 0

    def look(self, folders: Iterable[Rendezvous], linked: Container[str], now_ns: int) -> list[Sample]:
        """Looks through the folders; `linked` holds the trainers that speak for themselves."""
        samples: list[Sample] = []
        found: set[str] = set()
        foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}
        self._searches = 0
        for folder in folders:
            folder.remove_old_drafts(time.time())
            for presence in folder.presences():
                pid = self._pid_here(folder, presence, foreign)
                if pid is None:
                    if self._processes.sees_all:
                        folder.remove(presence.name)
                    continue
                if not pid or not names_its_own(self._processes, folder, pid):
                    continue
                trainer = f"{pid}.{presence.start_ticks}"
                if not self._processes.is_alive(pid, presence.start_ticks):
                    folder.remove(presence.name)
                    if trainer in self._silent:
                        self._silent[trainer].killed = True
                elif trainer not in linked:
                    found.add(trainer)
                    samples += self._notice(trainer, pid, presence, now_ns)
            samples += self._crowd(folder, now_ns)
        self._foreign = foreign
        return samples + self._part(found, linked, now_ns)

    def _notice(self, trainer: str, pid: int, presence: Presence, now_ns: int) -> list[Sample]:
        silent = self._silent.setdefault(trainer, _Silent(pid, presence.start_ticks, now_ns))
        if now_ns - silent.since_ns < _PATIENCE_NS or now_ns - silent.checked_ns < _RECHECK_NS:
            return []
        silent.checked_ns = now_ns
        links = self._processes.connected_links(pid) or 0
        why = _LINKED_ELSEWHERE.format(links) if links >= _MOST_LINKS else _SILENT
        if why == silent.announced:
            return []
        silent.announced = why
        return [
            RunFacts(
                time_ns=now_ns,
                trainer=trainer,
                pid=pid,
                start_ticks=presence.start_ticks,
                command=presence.command,
                cwd=presence.cwd,
                visibility="process",
                hooked=True,
                how_to_see_more=why,
                notes=(why,),
            )
        ]

    def _crowd(self, folder: Rendezvous, now_ns: int) -> list[Sample]:
        """Says once of a folder that not all of its files are read."""
        if not folder.is_crowded:
            self._crowded.discard(folder.identity)
            return []
        if folder.identity in self._crowded:
            return []
        self._crowded.add(folder.identity)
        detail = f"{folder.path} holds more presence files than gpuwatch reads: remove those of runs that have ended"
        return [LinkLoss(None, now_ns, detail=detail)]

    def _part(self, found: set[str], linked: Container[str], now_ns: int) -> list[Sample]:
        """Lets go of those that are linked by now, or dead."""
        samples: list[Sample] = []
        for trainer, silent in list(self._silent.items()):
            if trainer in linked:
                del self._silent[trainer]
            elif trainer not in found and not self._processes.is_alive(silent.pid, silent.start_ticks):
                del self._silent[trainer]
                if silent.announced:
                    samples.append(TrainerEnded(trainer, now_ns, "killed" if silent.killed else "exited"))
        return samples

    def _pid_here(
        self,
        folder: Rendezvous,
        presence: Presence,
        foreign: dict[tuple[tuple[int, int], Presence], int | None],
    ) -> int | None:
        """The trainer's pid in this namespace; None for one in another container that is not found, 0 for a later try.

        All containers' trainers may be pid 1, so the number alone would name somebody else, whose life then
        decides over the file.
        """
        if presence.pid_namespace in (None, self._processes.pid_namespace):
            return presence.pid
        key = (folder.identity, presence)
        pid = self._foreign.get(key, 0)
        if pid == 0:
            if self._searches >= _MAX_SEARCHES:
                return 0
            self._searches += 1
            matches = (
                pid
                for pid in all_pids(self._processes.root)
                if self._processes.start_ticks(pid) == presence.start_ticks
                and self._processes.own_number(pid) == presence.pid
            )
            pid = next(matches, None)
        foreign[key] = pid
        return pid


def names_its_own(processes: Processes, folder: Rendezvous, pid: int) -> bool:
    """Whether a presence file may speak of this process: a folder's owner could name anybody's.

    True of one that is gone, whose file only remains to be removed.
    """
    return effective_user(processes.root, pid) in (None, folder.owner)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where some processes would look: a path in a mount namespace, of a user."""

    namespace: int
    path: Path
    owner: int


class FolderFinder:
    """Finds folders with trainers' presence files other than the monitor's own."""

    def __init__(self, processes: Processes, user: int) -> None:
        self._processes = processes
        self._user = user
        self._namespace = processes.mount_namespace(os.getpid())
        self._seen: set[int] = set()
        self._places: dict[_Place, list[int]] = {}
        self._mounts: dict[int, dict[str, str]] = {}  # by mount namespace, of one look

    def look(self, known: set[tuple[int, int]]) -> Iterator[Rendezvous]:
        """Opens the folders that hold presence files and are not among the `known` identities."""
        self._mounts.clear()
        self._examine_new()
        for place, visitors in list(self._places.items()):
            folder = self._open(place, visitors)
            if folder is None:
                continue
            if folder.identity not in known and folder.names("trainer-", ".json"):
                known.add(folder.identity)
                yield folder
            else:
                folder.close()

    def _examine_new(self) -> None:
        pids = set(all_pids(self._processes.root))
        self._seen &= pids
        for pid in sorted(pids - self._seen, reverse=True)[:_NEW_PER_LOOK]:
            self._seen.add(pid)
            place = self._place_of(pid)
            if place is None:
                continue
            if place not in self._places and len(self._places) >= _MAX_PLACES:
                self._places.pop(next(iter(self._places)))
            visitors = self._places.setdefault(place, [])
            visitors.append(pid)
            del visitors[:-_VISITORS]

    def _place_of(self, pid: int) -> _Place | None:
        owner = owner_of(self._processes.root, pid)
        if owner is None or (self._user not in (0, owner)):
            return None
        environment = self._processes.environment(pid)
        namespace = self._processes.mount_namespace(pid)
        if not environment or namespace is None:
            return None
        here = namespace == self._namespace
        root = Path("/") if here else self._processes.root / str(pid) / "root"
        if namespace not in self._mounts:
            self._mounts[namespace] = mounts_of(root)
        try:
            inside = self._processes.user_inside(pid, owner)
            path = rendezvous_path(environment, inside, root, self._mounts[namespace])
        except OSError:
            return None
        return _Place(namespace, path, owner) if path.is_absolute() else None

    def _open(self, place: _Place, visitors: list[int]) -> Rendezvous | None:
        if place.namespace == self._namespace:
            return _try_open(place, None)
        for pid in reversed(visitors):
            if self._processes.mount_namespace(pid) == place.namespace:
                return _try_open(place, self._processes.root / str(pid) / "root")
        del self._places[place]
        return None


def _try_open(place: _Place, root: Path | None) -> Rendezvous | None:
    try:
        return Rendezvous.open(place.path, place.owner, root)
    except RendezvousError:
        return None  # not there, or not to be trusted: the hook refuses it as well
