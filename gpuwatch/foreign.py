"""What other processes name and what may keep its reader waiting, read without trusting either.

A process chooses its name, its command line, its working folder and the file names in its stacks. A file that it names
is therefore opened inside its own root (`openat2` with RESOLVE_IN_ROOT), with no more rights than its own, only if it
is a regular file on a real file system, up to a bound of bytes, and by a thread that may be abandoned: a link, a pipe,
a device, /proc/self/environ, a file of root's or a file system that never answers gives an error and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Generic, NamedTuple, TypeVar, cast

from gpuwatch.procfs import PROC, is_running, read_all, read_stat, shown, status_fields

_Result = TypeVar("_Result")

_ANSWER_SECONDS: Final = 2.0  # a cold NFS or overlay file takes up to about 0.5 s
_WAITS: Final = 8
_MOST_UNANSWERED: Final = 16
_MOST_IDLE: Final = 4
_MOST_LINKS: Final = 40  # MAXSYMLINKS of the kernel
_OPENAT2: Final = 437  # on every architecture but Alpha
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10  # RESOLVE_ of linux/openat2.h
_SET_GROUPS: Final = {"x86_64": 116}.get(platform.machine(), 159)  # 159 in asm-generic: aarch64, riscv64, loongarch64
_CAPABILITY_VERSION: Final = 0x20080522
_READ_PAST_PERMISSIONS: Final = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_FILE_TYPES_OF_THE_KERNEL: Final = frozenset(
    {
        *(0x9FA0, 0x62656572, 0x64626720, 0x74726163, 0x73636673),  # proc, sysfs, debugfs, tracefs, securityfs
        *(0x27E0EB, 0x63677270, 0xCAFE4A11, 0x62656570, 0x6165676C),  # cgroup, cgroup2, bpf, configfs, pstore
        *(0xDE5E81E4, 0xF97CFF8C, 0x43415D53, 0x6E736673, 0x1CD1),  # efivarfs, selinux, smack, nsfs, devpts
        *(0x42494E4D, 0x65735543, 0x19800202),  # binfmt_misc, fusectl, mqueue
    }
)
"""Their files look regular, act when read, and /proc/self in them is the reader itself."""


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """The content of a file, and when it was last changed in seconds since 1970."""

    content: bytes
    modified_seconds: float


@dataclass(frozen=True, slots=True)
class Rights:
    """With what rights a process opens files. `capabilities` are those that ignore the permissions of files."""

    user: int
    group: int
    groups: tuple[int, ...]
    capabilities: int = 0


def rights_of(pid: int, proc_root: Path = PROC) -> Rights:
    """The rights of a process.

    Raises:
        OSError: it is gone, or hidden.
    """
    folder = proc_root / str(pid)
    fields = status_fields((folder / "status").read_bytes())
    try:
        user, group = (int(fields[name].split()[3]) for name in ("Uid", "Gid"))
        groups = tuple(map(int, fields.get("Groups", "").split()))
        capabilities = int(fields.get("CapEff", "0"), 16) & _READ_PAST_PERMISSIONS
    except (KeyError, IndexError, ValueError):
        raise ProcessLookupError(errno.ESRCH, "it is not known whose process it is") from None
    if user or not _same_file(folder / "ns/user", PROC / "self/ns/user"):
        capabilities = 0
    return Rights(user, group, groups, capabilities)


class Whereabouts(NamedTuple):
    """Whose files a process's names lead to: on which machine since which boot, in which mount namespace, as whom."""

    boot: str | None = None
    mount_namespace: int | None = None
    user: int | None = None


UNKNOWN_WHEREABOUTS: Final = Whereabouts()


def whereabouts(pid: int | None = None, proc_root: Path = PROC) -> Whereabouts:
    """Those of a process, of this one without a pid; None for what the kernel does not say to this user."""
    folder = proc_root / ("self" if pid is None else str(pid))
    try:
        boot: str | None = (proc_root / "sys/kernel/random/boot_id").read_text("ascii").strip()[:64] or None
    except (OSError, ValueError):
        boot = None
    try:
        namespace: int | None = (folder / "ns/mnt").stat().st_ino
    except OSError:
        namespace = None
    try:
        user = os.geteuid() if pid is None else rights_of(pid, proc_root).user
    except OSError:
        return Whereabouts(boot, namespace)
    return Whereabouts(boot, namespace, user)


def rights_of_user(user: int) -> Rights:
    """The rights that a user has after logging in: those of a process that has ended are at most these."""
    if user == os.geteuid():
        return Rights(user, os.getegid(), tuple(os.getgroups()), 0 if user else _READ_PAST_PERMISSIONS)
    import pwd  # not on Windows, where the rest of this module still imports

    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return Rights(user, 65534, ())
    return Rights(user, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def use_foreign(
    pid: int,
    path: str,
    most_bytes: int,
    use: Callable[[BinaryIO], _Result],
    *,
    start_ticks: int | None = None,
    proc_root: Path = PROC,
) -> _Result:
    """What `use` makes of a file by the name that a process has for it, relative to its own root and working folder.

    Args:
        pid: the process.
        path: the name.
        most_bytes: a larger file is refused; it may grow later.
        use: called in a thread that is given up after 2 s: reading the file may block, too.
        start_ticks: if given, the process must be the one that started then.
        proc_root: the /proc to read.

    Raises:
        OSError: it cannot or must not be read; `strerror` says why.
    """

    def work() -> _Result:
        with _seen_by(pid, path, start_ticks, proc_root) as (root, name), _file(root, name, most_bytes) as file:
            return use(file)

    return _apart(pid, work)


def use_mapped(
    pid: int,
    link: str,
    most_bytes: int,
    use: Callable[[BinaryIO], _Result],
    *,
    start_ticks: int,
    proc_root: Path = PROC,
) -> _Result:
    """The same for a file that a process has mapped, by the kernel's own link to it: no name leads elsewhere.

    Args:
        pid: the process.
        link: `exe` or one of `map_files`, below /proc/PID.
        most_bytes: a larger file is refused.
        use: called in a thread that is given up after 2 s.
        start_ticks: when the process started.
        proc_root: the /proc to read.

    Raises:
        OSError: it cannot or must not be read; `strerror` says why.
    """

    def work() -> _Result:
        path_only = os.open(proc_root / str(pid) / link, os.O_PATH | os.O_CLOEXEC)
        try:
            if not is_running(pid, start_ticks, proc_root):  # after opening: one that runs now ran then
                raise ProcessLookupError(errno.ESRCH, "the process has ended")
            with _checked(path_only, most_bytes) as file:
                return use(file)
        finally:
            os.close(path_only)

    return _apart(pid, work)


def read_foreign(
    pid: int, path: str, most_bytes: int, *, start_ticks: int | None = None, proc_root: Path = PROC
) -> ForeignFile:
    """The content of a file by the name that a process has for it, as for `use_foreign`.

    Raises:
        OSError: it cannot or must not be read; `strerror` says why.
    """
    return use_foreign(
        pid,
        path,
        most_bytes,
        lambda file: _content(file, most_bytes),
        start_ticks=start_ticks,
        proc_root=proc_root,
    )


def exists_for(pid: int, path: str, *, proc_root: Path = PROC) -> bool:
    """Whether a process would find a file of that name; False where that cannot be known."""

    def find() -> bool:
        with _seen_by(pid, path, None, proc_root) as (root, name):
            os.close(_opened(root, name))
            return True

    try:
        return _apart(pid, find)
    except OSError:
        return False


def read_named(path: str, most_bytes: int, rights: Rights) -> ForeignFile:
    """A file of this machine by an absolute name that a process gave which has ended.

    Raises:
        OSError: it cannot or must not be read; `strerror` says why.
    """

    def read() -> ForeignFile:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _restrict_thread(rights)
            with _file(root, _encoded(path), most_bytes) as file:
                return _content(file, most_bytes)
        finally:
            os.close(root)

    return _apart(0, read)


def _encoded(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "its name is none that a file can have") from None


@contextmanager
def _seen_by(pid: int, path: str, start_ticks: int | None, proc_root: Path) -> Iterator[tuple[int, bytes]]:
    """The descriptor of a process's root and a name below it, with the rights of that process.

    To be used in a thread that ends afterwards: it keeps those rights.
    """
    folder = proc_root / str(pid)
    root = os.open(folder / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = _encoded(path)
        if not name.startswith(b"/"):
            name = os.fsencode(_working_folder(folder)) + b"/" + name
        rights = rights_of(pid, proc_root)
        # After the root was opened: a process that still has its pid now had it then.
        if start_ticks is not None and not is_running(pid, start_ticks, proc_root):
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        _restrict_thread(rights)
        yield root, name
    finally:
        os.close(root)


def _working_folder(folder: Path) -> str:
    """As a name below the process's root, which /proc shows as a name below ours."""
    root, working = (os.readlink(folder / name) for name in ("root", "cwd"))  # noqa: PTH115 - kept as text
    if root == "/":
        return working
    if not f"{working}/".startswith(f"{root}/"):
        raise FileNotFoundError(errno.ENOENT, "its working folder lies outside of its root")
    return working[len(root) :]


def _file(root: int, name: bytes, most_bytes: int) -> BinaryIO:
    path_only = _opened(root, name)
    try:
        return _checked(path_only, most_bytes)
    finally:
        os.close(path_only)


def _checked(path_only: int, most_bytes: int) -> BinaryIO:
    """The file of a path-only descriptor, opened for reading if opening it does nothing else."""
    status = os.fstat(path_only)
    if not stat.S_ISREG(status.st_mode) or _file_system(path_only) in _FILE_TYPES_OF_THE_KERNEL:
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.fdopen(os.open(f"/proc/self/fd/{path_only}", flags), "rb")  # the very file that was checked


def _content(file: BinaryIO, most_bytes: int) -> ForeignFile:
    modified_seconds = os.fstat(file.fileno()).st_mtime
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB")
    return ForeignFile(content, modified_seconds)


def _opened(root: int, name: bytes) -> int:
    """A path-only descriptor of a file below a root; only links that a file system stores are followed, inside it."""
    if b"\0" in name:
        raise OSError(errno.EINVAL, "its name holds a NUL")
    for _ in range(8):  # EAGAIN: a rename or a mount elsewhere came between
        how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGIC_LINKS)
        descriptor = int(_libc().syscall(_OPENAT2, root, ctypes.c_char_p(name), how, ctypes.c_size_t(len(how))))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM, errno.E2BIG):  # before Linux 5.6, or a container's seccomp filter
            return _walked(root, name)
        if number != errno.EAGAIN:
            raise OSError(number, os.strerror(number))
    return _walked(root, name)


def _walked(root: int, name: bytes) -> int:
    """The same part by part, where the kernel has no `openat2`: each link is read and followed here."""
    way = [os.dup(root)]
    parts = name.split(b"/")[::-1]
    links = 0
    try:
        while parts:
            part = parts.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            way.append(os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1]))
            if stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                links += 1
                if links > _MOST_LINKS or _file_system(way[-1]) in _FILE_TYPES_OF_THE_KERNEL:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(b"", dir_fd=way[-1])
                for _ in range(len(way) - 1 if target.startswith(b"/") else 1):
                    os.close(way.pop())
                parts += target.split(b"/")[::-1]
        return way.pop()
    finally:
        for descriptor in way:
            os.close(descriptor)


def _file_system(descriptor: int) -> int:
    """The type of the file system that a file is on, as statfs(2) numbers them."""
    buffer = ctypes.create_string_buffer(512)
    if _libc().fstatfs(descriptor, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def _restrict_thread(rights: Rights) -> None:
    """Gives this thread the rights of another process for opening files, for as long as it lives.

    The kernel keeps them by thread; only glibc's own setgroups would change all of them.

    Raises:
        OSError: this process may not take them; nothing must be opened then.
    """
    libc = _libc()
    _keep_capabilities(rights.capabilities)
    if rights.user == os.geteuid() != 0:
        return
    groups = (ctypes.c_uint * max(1, len(rights.groups)))(*rights.groups)
    is_refused = libc.syscall(_SET_GROUPS, ctypes.c_size_t(len(rights.groups)), groups) != 0
    libc.setfsgid(ctypes.c_uint(rights.group))
    libc.setfsuid(ctypes.c_uint(rights.user))
    taken = libc.setfsuid(ctypes.c_uint(0xFFFFFFFF)) & 0xFFFFFFFF, libc.setfsgid(ctypes.c_uint(0xFFFFFFFF)) & 0xFFFFFFFF
    # root of a user namespace may not set groups, and needs not for a process of the same user
    if taken[0] != rights.user or (rights.user != os.geteuid() and (is_refused or taken[1] != rights.group)):
        raise PermissionError(errno.EPERM, "it belongs to a process of another user")


def _keep_capabilities(kept: int) -> None:
    """Leaves this thread at most these of the capabilities that ignore the permissions of files.

    Raises:
        OSError: the kernel refuses, which it never does to one who gives something up.
    """
    libc = _libc()
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, of 32 capabilities each; then the next 32
    if libc.capget(header, sets) == 0:
        effective = sets[0] & ~_READ_PAST_PERMISSIONS | sets[0] & kept
        if effective == sets[0]:
            return
        sets[0] = effective
        if libc.capset(header, sets) == 0:
            return
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


class _Work(Generic[_Result]):
    """Work in another thread, which is given up where it does not end."""

    unanswered: ClassVar[set[_Work[Any]]] = set()
    lock: ClassVar = threading.Lock()

    def __init__(self, pid: int, refusal: str, work: Callable[[], _Result]) -> None:
        self.pid = pid
        self.cpu_ns = 0
        """What it took of its thread."""
        self._refusal = refusal
        self._work = work
        self._result: _Result | None = None
        self._error: BaseException | None = None
        self._has_ended = False
        self._running = threading.Lock()
        self._running.acquire()

    def result(self, start: Callable[[_Work[_Result]], object]) -> _Result:
        with self.lock:
            same = [each for each in self.unanswered if each._refusal == self._refusal]
            if len(same) >= _MOST_UNANSWERED or any(each.pid == self.pid for each in same):
                raise TimeoutError(errno.ETIMEDOUT, self._refusal)
        start(self)
        # The more wait already, the less patience: sixteen processes at once cost 7 s and not 32.
        patience = _ANSWER_SECONDS / (1 + len(same)) / _WAITS
        # Several waits: a time in which this program was stopped itself (Ctrl-Z) uses up one of them only.
        if not any(self._running.acquire(timeout=patience) for _ in range(_WAITS)):
            with self.lock:
                if not self._has_ended:
                    self.unanswered.add(self)
                    raise TimeoutError(errno.ETIMEDOUT, self._refusal)
        if self._error is not None:
            raise self._error
        return cast("_Result", self._result)

    def run(self, end: Callable[[], bool] = lambda: False) -> bool:
        """Does it, calls `end`, and then lets go of who waits; returns what `end` did."""
        began_ns = time.thread_time_ns()
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        self.cpu_ns = time.thread_time_ns() - began_ns
        result = end()
        with self.lock:
            self._has_ended = True
            self.unanswered.discard(self)
        self._running.release()
        return result


class _Reader:
    """A thread that does one piece of work after the other: a new thread for each would cost three times as much."""

    idle: ClassVar[list[_Reader]] = []

    def __init__(self) -> None:
        self._work: _Work[Any] | None = None
        self._wanted = threading.Lock()
        self._wanted.acquire()
        threading.Thread(target=self._run, name="gpuwatch-foreign-read", daemon=True).start()

    @classmethod
    def start(cls, work: _Work[Any]) -> None:
        """Has a piece of work done by an idle thread."""
        try:
            reader = cls.idle.pop()
        except IndexError:
            reader = cls()
        reader._work = work
        reader._wanted.release()

    def _run(self) -> None:
        _asking.is_reader = True
        while True:
            self._wanted.acquire()
            work, self._work = self._work, None
            is_needed = False
            if work is not None:
                is_needed = work.run(self._rest)
            del work
            if not is_needed:
                return

    def _rest(self) -> bool:
        """Waits for more, if few do."""
        is_needed = len(self.idle) < _MOST_IDLE
        if is_needed:
            self.idle.append(self)
        return is_needed


class _Asking(threading.local):
    """What one thread asks of other processes."""

    is_reader = False
    spent_elsewhere_ns = 0


_asking = _Asking()


def cpu_time_ns() -> int:
    """The CPU time of this thread, and of what others read for it."""
    return time.thread_time_ns() + _asking.spent_elsewhere_ns


def answered(pid: int, work: Callable[[], _Result]) -> _Result:
    """What `work` reads of a process's memory, or of a file in /proc for which the kernel takes a lock of that memory.

    A process may keep such a read waiting forever: by userfaultfd(2), by a file system that does not answer, by a
    system call that holds the lock. It is therefore done by another thread, which is given up after 2 s; the process
    gets no other until that one ends. One read costs about 50 us of CPU time more for it.

    Raises:
        TimeoutError: it did not end, or an earlier one has not, or too many of other processes have not.
    """
    if _asking.is_reader:
        return work()
    asked = _Work(pid, "it does not answer reads of its memory", work)
    try:
        return asked.result(_Reader.start)
    finally:
        _asking.spent_elsewhere_ns += asked.cpu_ns


def _apart(pid: int, work: Callable[[], _Result]) -> _Result:
    """The result of work in a thread of its own, given up after 2 s; then its process gets no other until it ends.

    Raises:
        OSError: the work's own, or it did not end: its file system (FUSE, NFS) does not answer.
    """

    def start(asked: _Work[_Result]) -> None:
        # It takes the rights of the process, and keeps them.
        threading.Thread(target=asked.run, name="gpuwatch-foreign-file", daemon=True).start()

    return _Work(pid, "its file system does not answer", work).result(start)


def _forget_threads() -> None:
    """A fork has none of the threads of its parent."""
    _Work.lock = threading.Lock()
    _Work.unanswered.clear()
    _Reader.idle.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_threads)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


_SLOW_SECONDS: Final = 0.25
_REST_PER_WAIT: Final = 50
_LONGEST_REST_SECONDS: Final = 100.0
_MOST_RESTING: Final = 4096
_resting: dict[int, float] = {}
"""By pid, until when a process is left alone: what answers slowly must not hold up the reading of all others."""


def read_of(proc_root: Path | str, pid: int, name: str, limit: int = 1 << 20) -> bytes | None:
    """A file below /proc/PID that takes a lock of the process's memory; None where unreadable, or not in time.

    Those are cmdline, environ, io, maps and smaps_rollup. Another process can keep who reads them waiting.
    """
    return in_time(pid, partial(read_all, f"{proc_root}/{pid}/{name}", limit))


def is_left_alone(pid: int) -> bool:
    """Whether a process has recently answered so slowly that it is not read: None then means nothing."""
    return _resting.get(pid, 0.0) > time.monotonic()


def in_time(pid: int, read: Callable[[], _Result]) -> _Result | None:
    """What `read` finds of a process (see `foreign.answered`); None where it does not answer, or was recently slow."""
    began = time.monotonic()
    if _resting.get(pid, 0.0) > began:
        return None
    try:
        return read() if pid == os.getpid() else answered(pid, read)
    except TimeoutError:
        return None
    finally:
        took = time.monotonic() - began
        if took > _SLOW_SECONDS:
            if len(_resting) >= _MOST_RESTING:
                _resting.clear()
            _resting[pid] = began + min(_REST_PER_WAIT * took, _LONGEST_REST_SECONDS)


COMMAND_LIMIT_BYTES = 4096
_SPAWNED = "--multiprocessing-fork"
NOTEBOOK_MODULES = ("ipykernel", "ipykernel_launcher", "colab_kernel_launcher")
"""What starts a notebook's kernel."""


def read_arguments(proc_root: Path | str, pid: int) -> tuple[str, ...]:
    """The command line, at most 4 KiB of it, shown so that no byte of it can steer a terminal.

    A program that writes a shorter one over its own (setproctitle) leaves zeros behind it.
    """
    raw = (read_of(proc_root, pid, "cmdline", COMMAND_LIMIT_BYTES) or b"")[:COMMAND_LIMIT_BYTES].rstrip(b"\0")
    return tuple(shown(argument) for argument in raw.split(b"\0")) if raw else ()


def read_program(proc_root: Path | str, pid: int) -> tuple[str, ...]:
    """The command line of the program that the process is part of.

    A process that multiprocessing spawned has only `-c` and a call of multiprocessing's in its own.
    """
    arguments = read_arguments(proc_root, pid)
    if _SPAWNED not in arguments:
        return arguments
    stat = read_stat(proc_root, pid)
    if stat is None or not _same_program(proc_root, pid, stat.parent):
        return arguments
    return read_program(proc_root, stat.parent)


def _same_program(proc_root: Path | str, pid: int, other: int) -> bool:
    """Whether both run one interpreter: an orphan's new parent is something else."""
    try:
        return bool(in_time(pid, lambda: Path(f"{proc_root}/{pid}/exe").samefile(f"{proc_root}/{other}/exe")))
    except OSError:
        return False
