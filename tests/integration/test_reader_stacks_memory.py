"""Reading memory, on this very process and on one with a page at whose end nothing follows."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.procfs import read_stat
from gpuwatch.reader.memory import IOV_MAX, Gather, Memory, UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.interpreters import require_reading

PAGE = mmap.PAGESIZE


@pytest.fixture
def memory() -> Iterator[Memory]:
    require_reading()
    opened = Memory(os.getpid())
    yield opened
    opened.close()


@pytest.fixture
def last_page() -> Iterator[int]:
    """The address of a page behind which nothing is mapped."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.munmap(address + PAGE, PAGE)
    yield address
    libc.munmap(address, PAGE)


def test_what_is_read_is_what_lies_there(memory: Memory) -> None:
    text = ctypes.create_string_buffer(b"some bytes\0and more")
    address = ctypes.addressof(text)
    assert memory.read(address, 19) == b"some bytes\0and more"
    assert memory.text(address) == "some bytes"
    assert memory.read_many([(address + 5, 5), (address, 4)]) == [b"bytes", b"some"]


def test_more_pieces_than_the_kernel_takes_at_once_are_read(memory: Memory) -> None:
    numbers = (ctypes.c_uint64 * (2 * IOV_MAX + 7))(*range(2 * IOV_MAX + 7))
    address = ctypes.addressof(numbers)
    pieces = [(address + 8 * index, 8) for index in range(len(numbers))]
    assert [int.from_bytes(piece, "little") for piece in memory.read_many(pieces)] == list(numbers)


def test_read_that_reaches_beyond_a_mapping_is_refused_whole(memory: Memory, last_page: int) -> None:
    ctypes.memset(last_page, 65, PAGE)
    assert memory.read(last_page + PAGE - 4, 4) == b"AAAA"
    with pytest.raises(UnreadableAddressError):
        memory.read(last_page + PAGE - 4, 5)


def test_text_that_ends_with_its_mapping_is_read(memory: Memory, last_page: int) -> None:
    ctypes.memmove(last_page + PAGE - 4, b"end\0", 4)
    assert memory.text(last_page + PAGE - 4) == "end"


def test_piece_that_is_not_mapped_is_named(memory: Memory, last_page: int) -> None:
    with pytest.raises(UnreadableAddressError) as refused:
        memory.read_many([(last_page, 8), (last_page + PAGE, 8), (last_page, 8)])
    assert refused.value.address == last_page + PAGE


@pytest.mark.parametrize("address", [0, 8, -8, 1 << 63, (1 << 64) - 8])
def test_address_that_is_none_is_unreadable(memory: Memory, address: int) -> None:
    with pytest.raises(UnreadableAddressError):
        memory.read(address, 8)


def test_gathering_sees_changes_and_follows_moved_pieces(memory: Memory) -> None:
    first, second = ctypes.c_uint64(1), ctypes.c_uint64(2)
    gather = Gather(memory, [(ctypes.addressof(first), 8)])
    assert int.from_bytes(gather.read(), "little") == 1
    first.value = 3
    assert int.from_bytes(gather.read(), "little") == 3
    gather.move(0, ctypes.addressof(second))
    assert int.from_bytes(gather.read(), "little") == 2


def test_maps_show_this_interpreter(memory: Memory) -> None:
    maps = memory.maps()
    assert all(mapping.start < mapping.end for mapping in maps)
    assert any("python" in mapping.path and "x" in mapping.permissions for mapping in maps)
    stat = read_stat("/proc", os.getpid())
    assert stat is not None
    assert memory.start_ticks == stat.start_ticks


@contextmanager
def forked() -> Iterator[tuple[Memory, Callable[[], None]]]:
    """The memory of a fork of this process, and what ends it."""
    require_reading()
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended = True

    try:
        memory = Memory(pid)
        yield memory, end
        memory.close()
    finally:
        end()


def test_process_that_ended_is_gone_for_reads_and_maps() -> None:
    value = ctypes.c_uint64(5)
    with forked() as (memory, end):
        assert memory.pointer(ctypes.addressof(value)) == 5
        end()
        refused_all(memory, ctypes.addressof(value))


def refused_all(memory: Memory, address: int) -> None:
    for ask in (lambda: memory.read(address, 8), memory.maps):
        with pytest.raises(CannotReadError) as refused:
            ask()
        assert refused.value.reason is Reason.GONE


def test_closed_memory_is_not_read(memory: Memory) -> None:
    value = ctypes.c_uint64(5)
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.read(ctypes.addressof(value), 8)


def test_process_that_proc_does_not_show_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CannotReadError) as refused:
        Memory(os.getpid(), tmp_path)
    assert refused.value.reason is Reason.GONE


def test_a_process_that_cannot_be_kept_hold_of_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", none_left)
    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(CannotReadError) as refused:
        Memory(os.getpid())
    assert refused.value.reason is Reason.PLATFORM
    assert "Too many open files" in refused.value.sentence


def test_without_pidfd_the_end_of_a_process_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    value = ctypes.c_uint64(5)
    with forked() as (memory, end):
        assert memory.pointer(ctypes.addressof(value)) == 5
        end()
        refused_all(memory, ctypes.addressof(value))


def test_the_map_of_a_process_that_was_given_the_pid_since_is_not_taken(tmp_path: Path) -> None:
    with forked() as (memory, end):
        memory.directory = tmp_path
        (tmp_path / "maps").write_bytes(Path(f"/proc/{memory.pid}/maps").read_bytes())
        assert memory.maps()
        end()
        with pytest.raises(CannotReadError) as refused:
            memory.maps()
    assert refused.value.reason is Reason.GONE
