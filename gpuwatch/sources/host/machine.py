"""What the machine is: name, kernel, processors, memory, and whether we sit in a container or in WSL."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from gpuwatch.samples import MachineFacts
from gpuwatch.sources.host.cgroup import Cgroups
from gpuwatch.sources.host.cpu import parse_cpu_ticks
from gpuwatch.sources.host.memory import meminfo_bytes
from gpuwatch.sources.host.numa import NumaNodes
from gpuwatch.sources.host.procfs import read_all, read_once, shown

_CONTAINER_GROUP = re.compile(rb"/(docker|kubepods|containerd|crio|libpod|lxc|machine\.slice/libpod)\b|docker-")
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")


def read_machine_facts(proc_root: Path, cgroups: Cgroups, now_ns: int, nodes: NumaNodes | None = None) -> MachineFacts:
    """The facts of this machine as `proc_root` shows it."""
    kernel = _line(proc_root, "sys/kernel/osrelease") or platform.release()
    return MachineFacts(
        time_ns=now_ns,
        hostname=_line(proc_root, "sys/kernel/hostname") or platform.node(),
        kernel=kernel,
        cpu_count=_core_count(proc_root),
        cpu_model=_cpu_model(proc_root),
        memory_total_bytes=meminfo_bytes(read_once(f"{proc_root}/meminfo"), b"MemTotal"),
        cpu_quota_cores=cgroups.cpu_limit("self").quota_cores,
        container=in_container(proc_root),
        wsl="microsoft" in kernel.lower(),
        numa_nodes=nodes.count if nodes is not None else None,
        gpu_numa_nodes=nodes.of_gpus() if nodes is not None else (),
    )


def in_container(proc_root: Path) -> bool:
    """Whether the container engines' marks are there: a file in the root folder, or our cgroup's path."""
    if any(os.access(f"{proc_root}/self/root{mark}", os.F_OK) for mark in _CONTAINER_MARKS):
        return True
    return _CONTAINER_GROUP.search(read_all(f"{proc_root}/self/cgroup") or b"") is not None


def _core_count(proc_root: Path) -> int:
    return len(parse_cpu_ticks(read_all(f"{proc_root}/stat") or b"").keys() - {"cpu"}) or os.cpu_count() or 1


def _cpu_model(proc_root: Path) -> str | None:
    """x86 names the model in the first kilobyte; ARM gives none there."""
    for line in (read_once(f"{proc_root}/cpuinfo", 1024) or b"").split(b"\n"):
        key, _, value = line.partition(b":")
        if key.strip() == b"model name":
            return " ".join(shown(value).split()) or None
    return None


def _line(proc_root: Path, name: str) -> str | None:
    raw = read_once(f"{proc_root}/{name}", 256)
    return shown(raw.strip()) or None if raw else None
