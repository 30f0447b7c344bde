"""Reading of /proc and /sys: small files that may vanish, be forbidden or be missing at any moment, and process trees.

The tree below a process is found through /proc/PID/task/TID/children: 1.7 ms on a machine with 3173 processes, where
psutil's `children(recursive=True)` takes 260 ms because it reads every process there is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from gpuwatch.foreign import answered

_SLOW_SECONDS: Final = 0.25
_REST_PER_WAIT: Final = 50
_LONGEST_REST_SECONDS: Final = 100.0
_MOST_RESTING: Final = 4096
_resting: dict[int, float] = {}
"""By pid, until when a process is left alone: what answers slowly must not hold up the reading of all others."""

_Answer = TypeVar("_Answer")


def read_once(path: str, limit: int = 16384) -> bytes | None:
    """A file that the kernel renders as one record, by a single read; None where it cannot be read.

    `open().read()` costs 13 us and `Path.read_text()` 19 us where this costs 8 us (/proc/PID/stat).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:  # ESRCH: the process ended between open and read; EOPNOTSUPP: PSI is switched off
        return None
    finally:
        os.close(descriptor)


def read_all(path: str, limit: int = 1 << 20) -> bytes | None:
    """A file of many records, which the kernel hands out about 4 KiB at a time; None where unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    chunks: list[bytes] = []
    length = 0
    try:
        while length < limit and (chunk := os.read(descriptor, 65536)):
            chunks.append(chunk)
            length += len(chunk)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def read_of(proc_root: Path | str, pid: int, name: str, limit: int = 1 << 20) -> bytes | None:
    """A file below /proc/PID that takes a lock of the process's memory; None where unreadable, or not in time.

    Those are cmdline, environ, io, maps and smaps_rollup. Another process can keep who reads them waiting.
    """
    return in_time(pid, partial(read_all, f"{proc_root}/{pid}/{name}", limit))


def is_left_alone(pid: int) -> bool:
    """Whether a process has recently answered so slowly that it is not read: None then means nothing."""
    return _resting.get(pid, 0.0) > time.monotonic()


def in_time(pid: int, read: Callable[[], _Answer]) -> _Answer | None:
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


def read_int(path: str) -> int | None:
    """A file that holds one whole number; None for anything else, such as "max"."""
    return to_int(read_once(path, 64))


def to_int(raw: bytes | None) -> int | None:
    """The whole number that `raw` spells, or None."""
    if raw is None:
        return None
    try:
        return int(raw)
    except ValueError:
        return None


def keyed_int(raw: bytes, key: bytes) -> int | None:
    """The number on the line of `raw` that starts with `key`; a unit after it is not interpreted."""
    lines = b"\n" + raw
    start = lines.find(b"\n" + key)
    if start < 0:
        return None
    words = lines[start + 1 + len(key) :].split(None, 1)
    return to_int(words[0]) if words else None


def rate(current: int | None, previous: int | None, seconds: float) -> float | None:
    """Growth per second of a counter; None where a side is unknown or the counter was reset."""
    if current is None or previous is None or current < previous or seconds <= 0.0:
        return None
    return (current - previous) / seconds


def shown(raw: bytes) -> str:
    r"""Bytes of another process as text: what is not UTF-8, or would steer a terminal, becomes \xNN."""
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_COMMAND_LIMIT = 4096
_SPAWNED = "--multiprocessing-fork"
_MOST_THREADS = 4096  # whose children are read: 40 ms
_LAST_CORE = 36  # the field's place behind the name
_EXITING = 0x4  # PF_EXITING of the kernel's sched.h, in the flags


class ProcessStat(NamedTuple):
    """What is used of /proc/PID/stat. CPU times are clock ticks; `reaped_ticks` is that of children waited for.

    `system_ticks` is part of `own_ticks`. `last_core` is where the main thread ran last, None on a stat line cut short.
    """

    command_name: str
    state: str
    parent: int
    own_ticks: int
    reaped_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int
    system_ticks: int = 0
    last_core: int | None = None
    flags: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie, or the kernel takes it apart: 14 GB take 0.5 s, a busy machine takes longer."""
        return self.state in "ZX" or bool(self.flags & _EXITING)


class TreeCpu(NamedTuple):
    """CPU ticks of one process of a tree at one time."""

    own_ticks: int
    reaped_ticks: int


ProcessKey = tuple[int, int]
"""(pid, start_ticks): a pid alone is given to another process once its owner is gone."""


def parse_stat(raw: bytes | None) -> ProcessStat | None:
    """The stat line of a process; its name is in parentheses and may hold any character but NUL."""
    if raw is None:
        return None
    opening, closing = raw.find(b"("), raw.rfind(b")")
    if not 0 <= opening < closing:
        return None
    fields = raw[closing + 2 :].split(None, _LAST_CORE + 1)
    try:
        return ProcessStat(
            command_name=shown(raw[opening + 1 : closing]),
            state=fields[0].decode("ascii", "replace"),
            parent=int(fields[1]),
            own_ticks=int(fields[11]) + int(fields[12]),
            reaped_ticks=int(fields[13]) + int(fields[14]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            rss_pages=int(fields[21]),
            system_ticks=int(fields[12]),
            last_core=int(fields[_LAST_CORE]) if len(fields) > _LAST_CORE else None,
            flags=int(fields[6]),
        )
    except (ValueError, IndexError):
        return None


def read_stat(proc_root: Path | str, pid: int) -> ProcessStat | None:
    """The stat line of `pid`, None once it is gone."""
    return parse_stat(read_once(f"{proc_root}/{pid}/stat", 1024))


def read_state(proc_root: Path | str, pid: int) -> str | None:
    """Only the state letter: read between two polls."""
    raw = read_once(f"{proc_root}/{pid}/stat", 256)
    closing = raw.rfind(b") ") if raw else -1
    return raw[closing + 2 : closing + 3].decode("ascii", "replace") if raw and closing > 0 else None


def read_arguments(proc_root: Path | str, pid: int) -> tuple[str, ...]:
    """The command line, at most 4 KiB of it, shown so that no byte of it can steer a terminal."""
    raw = (read_of(proc_root, pid, "cmdline", _COMMAND_LIMIT) or b"")[:_COMMAND_LIMIT]
    if not raw:
        return ()
    return tuple(shown(argument) for argument in raw.removesuffix(b"\0").split(b"\0"))


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


def boot_ticks(proc_root: Path | str, ticks_per_second: int) -> int | None:
    """Now, on the axis that `start_ticks` is counted on."""
    raw = read_once(f"{proc_root}/uptime", 64)
    try:
        return int(float(raw.split(None, 1)[0]) * ticks_per_second) if raw else None
    except (ValueError, IndexError):
        return None


class TreeWalker:
    """Finds the descendants of a process, poll after poll.

    A training process easily has 200 threads, of which one or two ever fork. So a walk asks all threads only
    when asked to (`thorough`), when a process is new, or when a child that was there before is not found; and
    `leaves`, which are not expected to have children, only if they had some before.
    """

    def __init__(self, proc_root: Path | str, process_limit: int = 4096) -> None:
        self._proc_root = proc_root
        self._process_limit = process_limit
        self._forkers: dict[int, set[int]] = {}
        self._children: dict[int, set[int]] = {}

    def descendants(
        self, root: int, stop_at: Container[int] = (), leaves: Container[int] = (), thorough: bool = False
    ) -> list[int]:
        """The pids below `root`, parents first, leaving out each pid of `stop_at` with all below it."""
        found: list[int] = []
        waiting, seen = [root], {root}
        forkers, children = self._forkers, self._children
        self._forkers, self._children = {}, {}
        while waiting and len(found) < self._process_limit:
            pid = waiting.pop(0)
            before = children.get(pid)
            if before is not None and not before and pid in leaves and not thorough:
                below = self._children[pid] = before
                self._forkers[pid] = forkers[pid]
            else:
                below = self._read(pid, forkers.get(pid), before or set(), thorough)
            for child in sorted(below - seen):
                if child not in stop_at:
                    seen.add(child)
                    found.append(child)
                    waiting.append(child)
        return found[: self._process_limit]

    def _read(self, pid: int, forkers: set[int] | None, before: set[int], thorough: bool) -> set[int]:
        below: set[int] = set()
        if forkers is not None and not thorough:
            below = self._ask(pid, forkers, forkers)
        if forkers is None or thorough or before - below:
            below = self._ask(pid, self._threads(pid), forkers or set())
        self._children[pid] = below
        return below

    def _ask(self, pid: int, threads: Set[int], forked_before: Set[int]) -> set[int]:
        below: set[int] = set()
        forkers = {pid} | (threads & forked_before)
        for thread in threads:
            raw = read_all(f"{self._proc_root}/{pid}/task/{thread}/children")
            pids = {child for word in raw.split() if (child := to_int(word))} if raw else set()
            if pids:
                forkers.add(thread)
                below |= pids
        self._forkers[pid] = forkers
        return below

    def _threads(self, pid: int) -> set[int]:
        try:
            names = os.listdir(f"{self._proc_root}/{pid}/task")  # noqa: PTH208 - 200 Path objects cost 10 times the listing
        except OSError:
            return set()
        return {int(name) for name in names[:_MOST_THREADS] if name.isdecimal()}


def tree_cpu_ticks(
    current: Mapping[ProcessKey, TreeCpu], previous: Mapping[ProcessKey, TreeCpu], previous_boot_ticks: int | None
) -> int:
    """CPU ticks that a tree spent between two polls, with what processes spent that ended in between.

    A process that ends hands its time to its parent's `reaped_ticks`, so what the survivors reaped, less what
    was counted of the vanished before, is the rest. A process that only appears late (its forking thread was
    not asked) brings ticks from before the previous poll: those started earlier are counted from now on.
    """
    spent = reaped = 0
    for key, cpu in current.items():
        before = previous.get(key)
        if before is not None:
            spent += max(0, cpu.own_ticks - before.own_ticks)
            reaped += max(0, cpu.reaped_ticks - before.reaped_ticks)
        elif previous_boot_ticks is not None and key[1] >= previous_boot_ticks:
            spent += cpu.own_ticks
            reaped += cpu.reaped_ticks
    vanished = sum(sum(cpu) for key, cpu in previous.items() if key not in current)
    return spent + max(0, reaped - vanished)
