"""Another process's memory, read with process_vm_readv: it never stops the target and leaves no trace in it.

A pid can be given to another process once its own has ended, and after all the others have been given. A read is
therefore followed by the question whether the process that was opened still lives, unless that was so 50 ms ago.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import cast

from gpuwatch.procfs import MAPS_LIMIT, PROC, Mapping, ProcessStat, mapped_files, parse_stat
from gpuwatch.reader.refusals import Budget, CannotReadError, gone, permission, platform, zombie

IOV_MAX = 1024
"""The kernel refuses more remote pieces in one call (uio.h, UIO_MAXIOV)."""
_LARGEST_READ = 64 << 20
_STAT_LIMIT = 4096
_LIVES_NS = 1_000_000
"""How long a process that lived counts as living: no other program is at work under its pid so soon. Each question is a
system call of up to 17 us with cold caches."""


class UnreadableAddressError(Exception):
    """An address of a living process that is not mapped there: what led to it was torn, or no pointer at all."""

    def __init__(self, address: int) -> None:
        super().__init__(f"{address:#x} is not readable")
        self.address = address


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Gather:
    """Pieces of the target's memory that are read again and again into one buffer, each time by one system call.

    Pieces are copied in their order, so a first and a last piece of the same address enclose those between in time.
    """

    def __init__(self, memory: Memory, pieces: Sequence[tuple[int, int]]) -> None:
        """Takes (address, bytes) of each piece.

        Raises:
            UnreadableAddressError: They are more bytes than are ever read at once.
        """
        if len(pieces) > IOV_MAX:
            raise ValueError(f"{len(pieces)} pieces, the kernel takes {IOV_MAX}")
        self._memory = memory
        self.size = sum(size for _, size in pieces)
        if not 0 <= self.size <= _LARGEST_READ:
            raise UnreadableAddressError(pieces[0][0])
        self._buffer = ctypes.create_string_buffer(max(self.size, 1))
        self.view = memoryview(self._buffer).cast("B")[: self.size]
        remote = (_Piece * len(pieces))(*(_Piece(*piece) for piece in pieces))
        local = _Piece(ctypes.addressof(self._buffer), self.size)
        self._local, self._remote = local, remote
        self._arguments = (memory.pid, ctypes.byref(local), 1, ctypes.byref(remote), len(pieces), 0)

    def move(self, index: int, address: int) -> None:
        """Lets a piece lie elsewhere from now on."""
        self._remote[index].address = address

    def read(self) -> memoryview:
        """The pieces one after the other; the view is overwritten by the next read.

        Raises:
            UnreadableAddressError: A piece is not mapped, or not to its end.
            CannotReadError: The process is gone, or may not be read any more.
        """
        self._memory.budget.charge(self.size)
        count = self._memory.transfer(self._arguments)
        if count == self.size:
            return self.view
        ends = accumulate(piece.size for piece in self._remote)
        failed = next(index for index, end in enumerate(ends) if end > count)
        raise UnreadableAddressError(self._remote[failed].address or 0)


class Memory:
    """The memory of the process that `pid` is now, named by pid and start time and never mistaken for another.

    Raises:
        CannotReadError: There is no such process, it has ended, or this machine has no process_vm_readv.
    """

    def __init__(self, pid: int, proc_root: Path = PROC) -> None:
        self.pid = pid
        self.proc_root = proc_root
        self.directory = proc_root / str(pid)
        self.budget = Budget(before=self._wait_for_lock)
        self._pagemap: int | None = None
        self._process_vm_readv = _process_vm_readv()
        self._alive = _Alive(pid)
        self._asked_ns = 0
        try:
            stat = _stat_of(pid, proc_root)
            self.start_ticks = stat.start_ticks
            if stat.state in "ZX":
                raise zombie(pid)
            self._alive.check()
        except CannotReadError:
            self._alive.close()
            raise

    def _wait_for_lock(self) -> None:
        """Waits for the lock of the process's memory in such a way that this program can be ended meanwhile.

        process_vm_readv waits for it uninterruptibly: a thread left behind there would keep this program from ending.
        A process may hold the lock forever, in a system call that waits for a file system. Where it is free this
        takes 2 us.
        """
        with suppress(OSError):  # another user's, or a kernel without pagemap
            if self._pagemap is None:
                self._pagemap = -1
                self._pagemap = os.open(self.directory / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
            if self._pagemap >= 0:
                os.pread(self._pagemap, 8, 0)

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`.

        Raises:
            UnreadableAddressError: Not all of it is mapped.
            CannotReadError: The process is gone, or may not be read.
        """
        if not 0 < address < 1 << 63:
            raise UnreadableAddressError(address)
        return bytes(Gather(self, ((address, size),)).read())

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """Each (address, size), all by one system call (by several above 1,024 pieces).

        Raises:
            UnreadableAddressError: Not all of one is mapped.
            CannotReadError: The process is gone, or may not be read.
        """
        for address, _ in pieces:
            if not 0 < address < 1 << 63:
                raise UnreadableAddressError(address)
        found: list[bytes] = []
        for start in range(0, len(pieces), IOV_MAX):
            part = pieces[start : start + IOV_MAX]
            data = bytes(Gather(self, part).read())
            position = 0
            for _, size in part:
                found.append(data[position : position + size])
                position += size
        return found

    def pointer(self, address: int) -> int:
        """The pointer at `address`."""
        return int.from_bytes(self.read(address, 8), sys.byteorder)

    def text(self, address: int, limit: int = 4096) -> str:
        """The NUL-terminated string at `address`, which may stand right before the end of a mapping."""
        found = b""
        while len(found) < limit and b"\0" not in found:
            step = 256 - (address + len(found)) % 256
            found += self.read(address + len(found), step)
        return found.split(b"\0", 1)[0].decode(errors="replace")

    def maps(self) -> list[Mapping]:
        """The mappings of files, as far as 16 MiB of the list go.

        Raises:
            CannotReadError: The process is gone, or its map may not be read.
        """
        try:
            with (self.directory / "maps").open("rb") as file:
                raw = file.read(MAPS_LIMIT)
        except PermissionError:
            raise permission(self.pid, self.proc_root) from None
        except (FileNotFoundError, ProcessLookupError):
            raise gone(self.pid) from None
        self._alive.check()
        self.budget.check()
        found: list[Mapping] = []
        for mapping in mapped_files(raw):
            self.budget.charge(0)
            found.append(mapping)
        return found

    def close(self) -> None:
        """Gives the process's file back. Idempotent."""
        self._alive.close()
        self._asked_ns = 0
        pagemap, self._pagemap = self._pagemap, -1
        if pagemap is not None and pagemap >= 0:
            os.close(pagemap)

    def transfer(self, arguments: tuple[object, ...]) -> int:
        """One process_vm_readv: the number of bytes that came, 0 where the first piece is not mapped."""
        count = self._process_vm_readv(*arguments)
        if count >= 0:
            now_ns = time.monotonic_ns()
            if now_ns - self._asked_ns >= _LIVES_NS:
                self._alive.check()
                self._asked_ns = now_ns
            return count
        number = ctypes.get_errno()
        if number == errno.EFAULT:
            self._alive.check()
            return 0
        if number == errno.ESRCH:
            raise gone(self.pid)
        if number == errno.EPERM:
            self._alive.check()
            raise permission(self.pid, self.proc_root)
        if number == errno.ENOSYS:
            raise platform("this kernel has no process_vm_readv")
        raise OSError(number, os.strerror(number))


class _Alive:
    """Whether the process that had a pid when this was made still lives.

    A pidfd becomes readable when its process ends, and asking takes half a microsecond. Before Linux 5.3, and
    where a sandbox refuses pidfd_open, an open /proc/PID/stat does it: it fails with ESRCH forever once the
    process is reaped.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._poll: select.poll | None = None
        try:
            self._file = os.pidfd_open(pid)
            self._poll = select.poll()
            self._poll.register(self._file, select.POLLIN)
        except ProcessLookupError:
            raise gone(pid) from None
        except (OSError, AttributeError):
            try:
                self._file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, ProcessLookupError):
                raise gone(pid) from None
            except OSError as error:
                raise platform(f"process {pid} cannot be kept hold of ({error.strerror})") from None

    def check(self) -> None:
        if self._file < 0:
            raise ValueError("the process's memory was closed")
        if self._poll is not None:
            if self._poll.poll(0):
                raise gone(self._pid)
            return
        try:
            os.pread(self._file, 16, 0)
        except ProcessLookupError:
            raise gone(self._pid) from None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _stat_of(pid: int, proc_root: Path) -> ProcessStat:
    """Its state, and when it started, which together with the pid names it.

    Raises:
        CannotReadError: There is no such process.
    """
    try:
        with (proc_root / str(pid) / "stat").open("rb") as file:
            stat = parse_stat(file.read(_STAT_LIMIT))
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        raise gone(pid) from None
    except PermissionError:
        raise permission(pid, proc_root) from None
    if stat is None:
        raise gone(pid)
    return stat


def _process_vm_readv() -> Callable[..., int]:
    if not sys.platform.startswith("linux"):
        raise platform("another process's memory is read with process_vm_readv, which only Linux has")
    try:
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        raise platform("this C library has no process_vm_readv") from None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )
    function.restype = ctypes.c_ssize_t
    return cast("Callable[..., int]", function)
