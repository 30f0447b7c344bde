"""Expensive reads of workers (their threads' CPU, their private memory), done round-robin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuwatch.sources.host.process import ProcessKey, ProcessStat, parse_stat
from gpuwatch.sources.host.procfs import keyed_int, read_of, read_once

WORKERS_IN_TURN = 8
"""Workers of one loader are alike: of more than these the rest is never asked."""
WORKERS_MEASURED = 2
"""Of their memory only two tell: the kernel walks all pages for it, 14 ms for 1 GB."""
ACTIVE_SHARE = 0.1
"""Of the busiest thread's time: the thread that sends a worker's batches runs as well, and fights for nothing."""
_MOST_THREADS = 512
_MEMORY_NS = 30_000_000_000
_MOST_RESIDENT_BYTES = 4 << 30


class Turns:
    """Takes one worker's turn every few seconds, so that a poll never pays for all of them.

    A turn of a worker with 64 threads costs 0.9 ms in each of two polls, every 5 s. Memory is looked at every 30 s,
    which costs 14 ms for each GB, and not at all above 4 GB.
    """

    def __init__(self, proc_root: Path | str) -> None:
        self._proc_root = proc_root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._place = self._memory_place = 0
        self._memory_due_ns = 0
        self._watched: tuple[ProcessKey, dict[int, int]] | None = None
        self._active: dict[ProcessKey, int] = {}
        self._private: dict[ProcessKey, int] = {}

    def take(self, stats: Mapping[int, ProcessStat], now_ns: int, thorough: bool) -> None:
        """Ends the turn that the previous poll began; a `thorough` poll begins the next worker's."""
        keys = sorted((pid, stat.start_ticks) for pid, stat in stats.items())
        present = set(keys)
        self._active = {key: count for key, count in self._active.items() if key in present}
        self._private = {key: size for key, size in self._private.items() if key in present}
        watched, self._watched = self._watched, None
        if watched is not None and watched[0] in present:
            self._note_active(watched[0], watched[1])
        if not thorough or not keys:
            return
        key = keys[self._place % min(len(keys), WORKERS_IN_TURN)]
        self._place += 1
        self._watched = key, self._threads(key[0])
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_NS
            self._measure(keys[self._memory_place % min(len(keys), WORKERS_MEASURED)], stats)
            self._memory_place += 1

    def _measure(self, key: ProcessKey, stats: Mapping[int, ProcessStat]) -> None:
        private = None
        if stats[key[0]].rss_pages * self._page_bytes <= _MOST_RESIDENT_BYTES:
            private = private_dirty_bytes(self._proc_root, key[0])
        if private is None:
            self._private.pop(key, None)
        else:
            self._private[key] = private

    def active_threads(self, key: ProcessKey) -> int | None:
        """Threads of a worker that were at work in its last turn's second; None before it had one."""
        return self._active.get(key)

    def private_dirty_bytes(self, key: ProcessKey) -> int | None:
        """Its own memory at its last turn."""
        return self._private.get(key)

    def _note_active(self, key: ProcessKey, before: Mapping[int, int]) -> None:
        spent = [ticks - before.get(thread, 0) for thread, ticks in self._threads(key[0]).items()]
        if not before or not spent:
            self._active.pop(key, None)  # its threads could not be listed, which is not that none ran
            return
        least = max(1.0, ACTIVE_SHARE * max(spent))
        self._active[key] = sum(ticks >= least for ticks in spent)

    def _threads(self, pid: int) -> dict[int, int]:
        """CPU ticks by thread."""
        folder = f"{self._proc_root}/{pid}/task"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - 64 Path objects cost ten times the listing
        except OSError:
            return {}
        ticks = {}
        for name in names[:_MOST_THREADS]:
            stat = parse_stat(read_once(f"{folder}/{name}/stat", 1024))
            if stat is not None and name.isdecimal():
                ticks[int(name)] = stat.own_ticks
        return ticks


def private_dirty_bytes(proc_root: Path | str, pid: int) -> int | None:
    """Memory that only this process has and that no file holds: what an object that is touched after a fork costs.

    Resident memory does not show it, because a page counts there before the copy and after. Clean pages are left out:
    those are the page cache of mapped files.
    """
    raw = read_of(proc_root, pid, "smaps_rollup", 4096)
    kibibytes = keyed_int(raw, b"Private_Dirty:") if raw else None
    return None if kibibytes is None else kibibytes * 1024
