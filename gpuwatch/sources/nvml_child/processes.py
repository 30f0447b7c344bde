"""The processes on a GPU, with the pid that this namespace knows them by."""

from __future__ import annotations

import os
import threading

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, CallError
from gpuwatch.sources.nvml_child.driver import Driver
from gpuwatch.sources.nvml_child.rings import Ring

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, a constant of the kernel
_COMMAND_CHARACTERS = 200
_ANSWER_SECONDS = 0.5
_MOST_WAITING = 8
_STALE_MICROSECONDS = 10_000_000

CANNOT_MAP = "the driver gives host pids, which this container cannot see (docker run --pid=host)"
CANNOT_MAP_WSL = "under WSL the driver gives pids of Windows"


class PidMap:
    """From the host's pids, which NVML reports, to ours.

    On the host they are the same. In a container they only can be mapped where the host's /proc is mounted
    (`proc_root`): there `NSpid:` lists a process's pid in each namespace from the host's inwards.
    """

    def __init__(self, proc_root: str) -> None:
        self._root = proc_root
        self._on_host = _namespace(proc_root) == _FIRST_PID_NAMESPACE
        self._depth = len(self._namespace_pids("self"))
        self._waiting: dict[int, threading.Thread] = {}
        self.known = self._on_host or self._depth > 1
        self.reason = None if self.known else CANNOT_MAP_WSL if reasons.in_wsl() else CANNOT_MAP

    def pid(self, host_pid: int) -> int | None:
        """Our pid of a process, or None where it cannot be mapped or is gone."""
        if not self.known:
            return None
        pids = self._namespace_pids(str(host_pid))
        return pids[self._depth - 1] if len(pids) >= self._depth > 0 else None

    def command(self, host_pid: int) -> str | None:
        """The command line, cut to 200 characters."""
        if not self.known:
            return None
        words = os.fsdecode(self._raw_command(host_pid).rstrip(b"\0").replace(b"\0", b" "))
        return words[:_COMMAND_CHARACTERS] or None

    def _raw_command(self, host_pid: int) -> bytes:
        """Empty where a process keeps who reads it waiting, in a system call that holds the lock of its memory."""
        self._waiting = {pid: reader for pid, reader in self._waiting.items() if reader.is_alive()}
        found: list[bytes] = []

        def read() -> None:
            try:
                with open(f"{self._root}/{host_pid}/cmdline", "rb") as file:
                    found.append(file.read(4 * _COMMAND_CHARACTERS))
            except OSError:
                return

        if host_pid not in self._waiting and len(self._waiting) < _MOST_WAITING:
            reader = threading.Thread(target=read, name="gpuwatch-cmdline", daemon=True)
            reader.start()
            reader.join(_ANSWER_SECONDS)
            if reader.is_alive():
                self._waiting[host_pid] = reader
        return found[0] if found else b""

    def _namespace_pids(self, name: str) -> list[int]:
        try:
            with open(f"{self._root}/{name}/status", "rb") as file:
                for row in file:
                    if row.startswith(b"NSpid:"):
                        return [int(word) for word in row.split()[1:]]
        except (OSError, ValueError):
            return []
        return []


def _namespace(proc_root: str) -> str | None:
    try:
        return os.readlink(f"{proc_root}/self/ns/pid")
    except OSError:
        return None


class Processes:
    """The process list of one GPU or MIG instance, joined with each process's SM share where there is one."""

    def __init__(self, caller: Caller, driver: Driver, pids: PidMap, ring: Ring | None) -> None:
        self._caller = caller
        self._driver = driver
        self._pids = pids
        self._ring = ring
        self._last_stamp = 0
        self.memory_bytes: int | None = None

    def read(self) -> list[dict[str, object]]:
        """One record for each process; `memory_bytes` of this object becomes their sum, if all are known."""
        records = self._caller.call("nvmlDeviceGetComputeRunningProcesses_v3", using=self._driver.processes)
        shares = self._shares() if records and self._ring else {}
        sizes = [record.memory_bytes for record in records]
        self.memory_bytes = sum(size for size in sizes if size is not None) if None not in sizes else None
        return [
            {
                "host_pid": record.pid,
                "pid": self._pids.pid(record.pid),
                "memory_bytes": record.memory_bytes,
                "sm_percent": shares.get(record.pid),
                "command": self._pids.command(record.pid),
            }
            for record in records
        ]

    def _shares(self) -> dict[int, float]:
        """SM percent by host pid: each process's newest row, without stale ones, which drivers also return."""
        try:
            rows = self._caller.call(
                "nvmlDeviceGetProcessUtilization", self._last_stamp, using=self._driver.process_utilization
            )
        except CallError:
            return {}  # the list is worth having without it
        newest = max([stamp for _, stamp, _ in rows] + [self._ring.newest_stamp if self._ring else 0], default=0)
        fresh = [row for row in rows if row[1] > self._last_stamp and newest - row[1] <= _STALE_MICROSECONDS]
        self._last_stamp = max((stamp for _, stamp, _ in fresh), default=self._last_stamp)
        return {pid: float(min(percent, 100)) for pid, _, percent in sorted(fresh, key=lambda row: row[1])}


def unmapped_reason(pids: PidMap, code: int) -> str | None:
    """Why the list, or the pids in it, are missing."""
    if code:
        return reasons.reason_of(code)
    return pids.reason
