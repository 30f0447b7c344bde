"""Reading of /proc and /sys: small files that may vanish, be forbidden or be missing at any moment, and process trees.

The kernel escapes the line feed in the names of processes and files, and nothing else: any other character at which
`splitlines` cuts, and every byte that is no UTF-8, may stand in them.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")


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


def listed(folder: str) -> list[str]:
    """The names in a folder, empty where it cannot be listed. Path objects of 200 names cost 10 times the listing."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def link_target(path: str) -> str | None:
    """Where a link leads, as text, which need be no file's name; None where that cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


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


MOST_THREADS = 4096  # whose children are read: 40 ms
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


def is_running(pid: int, start_ticks: int, proc_root: Path = PROC) -> bool:
    """Whether a pid is still that of the process that started then."""
    stat = read_stat(proc_root, pid)
    return stat is not None and stat.start_ticks == start_ticks


def status_fields(raw: bytes) -> dict[str, str]:
    r"""The fields of /proc/PID/status by name.

    The kernel escapes the line feed in the process's name and nothing else: `\r` and the other characters at which
    `splitlines` cuts would let a name forge a line.
    """
    pairs = (line.partition(b":") for line in raw.split(b"\n"))
    found: dict[str, str] = {}
    for name, _, value in pairs:
        found.setdefault(name.decode("ascii", "replace"), value.strip(b" \t").decode("utf-8", "replace"))
    return found


def read_status(pid: int | str, proc_root: Path | str = PROC) -> dict[str, str]:
    """The fields of /proc/PID/status by name, empty once it is gone."""
    return status_fields(read_all(f"{proc_root}/{pid}/status") or b"")


def namespace_pids(pid: int | str, proc_root: Path | str = PROC) -> list[int]:
    """A process's pid in each pid namespace, from the outermost visible inwards; empty where that is not known."""
    return [int(word) for word in read_status(pid, proc_root).get("NSpid", "").split() if word.isdecimal()]


def effective_user(proc_root: Path | str, pid: int) -> int | None:
    """The user that a process runs as, by its effective uid; its folder belongs to root where it is not dumpable."""
    uids = read_status(pid, proc_root).get("Uid", "").split()
    return int(uids[1]) if len(uids) > 1 and uids[1].isdecimal() else None


def owner_of(proc_root: Path | str, pid: int) -> int | None:
    """Whose files a process's are: its user's, root's for one that is not dumpable; None once it is gone."""
    try:
        return os.stat(f"{proc_root}/{pid}").st_uid  # noqa: PTH116 - a Path costs twice the call
    except OSError:
        return None


def all_pids(proc_root: Path | str = PROC) -> set[int]:
    """The pids of all processes there are."""
    return {int(name) for name in listed(str(proc_root)) if name.isdecimal() and name.isascii()}


def boot_ticks(proc_root: Path | str, ticks_per_second: int) -> int | None:
    """Now, on the axis that `start_ticks` is counted on."""
    raw = read_once(f"{proc_root}/uptime", 64)
    try:
        return int(float(raw.split(None, 1)[0]) * ticks_per_second) if raw else None
    except (ValueError, IndexError):
        return None


def children_of(proc_root: Path | str, pid: int, thread: int | str) -> set[int]:
    """The children that a thread of a process forked."""
    raw = read_all(f"{proc_root}/{pid}/task/{thread}/children") or b""
    return {child for word in raw.split() if (child := to_int(word))}


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
            pids = children_of(self._proc_root, pid, thread)
            if pids:
                forkers.add(thread)
                below |= pids
        self._forkers[pid] = forkers
        return below

    def _threads(self, pid: int) -> set[int]:
        names = listed(f"{self._proc_root}/{pid}/task")[:MOST_THREADS]
        return {int(name) for name in names if name.isdecimal()}


MAPS_LIMIT = 16 << 20
"""vm.max_map_count lines of 130 characters are half of it; names of 4 KiB would make 270 MB of them."""
DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps. `name` is how /proc/PID/map_files calls it."""

    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    path: str
    name: str


def mapped_files(raw: bytes) -> Iterator[Mapping]:
    """The mappings of files; a line that the limit of reading has cut is left out."""
    for line in raw.split(b"\n")[:-1]:
        head, slash, path = line.partition(b"/")
        fields = head.split() if slash else ()
        if len(fields) != 5:
            continue
        name, permissions, offset, _, inode = fields
        start, _, end = name.partition(b"-")
        try:
            numbers = int(start, 16), int(end, 16), int(offset, 16), int(inode)
        except ValueError:
            continue
        yield Mapping(
            numbers[0],
            numbers[1],
            permissions.decode("ascii", "replace"),
            numbers[2],
            numbers[3],
            os.fsdecode(slash + path),
            name.decode("ascii", "replace"),
        )


def mapped_paths(raw: bytes) -> set[bytes]:
    """The names of the mapped files, without the mark of those that were deleted.

    Searching in names is left to string methods: a pattern with two open ends takes hours for names made for it.
    """
    found = {line[line.find(b"/") :] for line in raw.split(b"\n")[:-1] if b"/" in line}
    return {path.removesuffix(DELETED) for path in found}
