"""From the pids that NVML reports, which are the host's, to those of one /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuwatch.sources.host.procfs import read_once

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, a constant of the kernel


class GpuPids:
    """Maps pids through `NSpid:`, which lists a process's pid in each namespace, from the outermost visible inwards.

    On the host they are the same. A container's own /proc lists no host pids; there no process can be mapped, and a
    pid that happens to exist on both sides must not be taken for one.
    """

    def __init__(self, proc_root: Path | str) -> None:
        self._proc_root = proc_root
        self._level = len(self._namespace_pids("self"))
        self.can_map = self._is_on_host() or self._level > 1

    def ours(self, by_host_pid: Mapping[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
        """What is known by host pid, by our pid; without those that are gone or cannot be mapped."""
        if not self.can_map:
            return {}
        mapped = ((self._own_pid(host_pid), value) for host_pid, value in by_host_pid.items())
        return {pid: value for pid, value in mapped if pid is not None}

    def _own_pid(self, host_pid: int) -> int | None:
        pids = self._namespace_pids(str(host_pid))
        return pids[self._level - 1] if len(pids) >= self._level > 0 else None

    def _is_on_host(self) -> bool:
        try:
            return os.readlink(f"{self._proc_root}/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 - names no file
        except OSError:
            return False

    def _namespace_pids(self, name: str) -> list[int]:
        for line in (read_once(f"{self._proc_root}/{name}/status") or b"").split(b"\n"):
            if line.startswith(b"NSpid:"):
                return [int(word) for word in line.split()[1:] if word.isdigit()]
        return []
