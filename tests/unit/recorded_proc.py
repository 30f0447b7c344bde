"""Builds small /proc and /sys/fs/cgroup trees with the kernel's own layouts, and changes them between polls."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuwatch import foreign

TICKS = os.sysconf("SC_CLK_TCK")

_V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
_V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {shows} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {shows} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
)
_HYBRID_MOUNTS = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


class Clock:
    """A clock that stands still until told otherwise."""

    def __init__(self, now_ns: int = 1_000_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> int:
        self.now_ns += int(seconds * 1e9)
        return self.now_ns


class RecordedHost:
    """A /proc and a /sys/fs/cgroup under one folder."""

    def __init__(self, folder: Path) -> None:
        # A loaded machine may have been slow to read a process of another test, which had the same number.
        foreign._resting.clear()
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"
        self.proc.mkdir()
        self.cgroup.mkdir()
        self.sys = folder / "sys"

    def write(self, name: str, text: str | bytes) -> None:
        """Writes one file below /proc."""
        _write(self.proc / name, text)

    def group(self, name: str, **files: str) -> None:
        """Writes files of one cgroup; `cpu__max` is the file `cpu.max`."""
        (self.cgroup / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            _write(self.cgroup / name / file.replace("__", "."), text)

    def mount_v2(self) -> None:
        self.write("self/mountinfo", _V2_MOUNTS)

    def mount_v1(self, shows: str = "/") -> None:
        self.write("self/mountinfo", _V1_MOUNTS.format(shows=shows))

    def mount_hybrid(self) -> None:
        self.write("self/mountinfo", _V1_MOUNTS.format(shows="/") + _HYBRID_MOUNTS)

    def machine(
        self,
        cores: Iterable[tuple[int, ...]] = ((0, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 0)),
        swapped_in_pages: int = 0,
        major_faults: int = 0,
        uptime_seconds: float = 1000.0,
        pressure: Mapping[str, float] | None = None,
    ) -> None:
        """The machine-wide files; a core is (user nice system idle iowait irq softirq steal) ticks."""
        rows = list(cores)
        whole = [sum(column) for column in zip(*rows, strict=True)]
        lines = ["cpu  " + " ".join(map(str, [*whole, 0, 0]))]
        lines += [f"cpu{i} " + " ".join(map(str, [*row, 0, 0])) for i, row in enumerate(rows)]
        self.write("stat", "\n".join([*lines, "intr 123 0 9", "ctxt 1"]) + "\n")
        self.write("loadavg", "1.50 0.80 0.40 2/345 6789\n")
        self.write("meminfo", "MemTotal:       16000 kB\nMemFree:         2000 kB\nMemAvailable:    8000 kB\n")
        self.write("vmstat", f"nr_free_pages 5\npswpin {swapped_in_pages}\npswpout 9\npgmajfault {major_faults}\n")
        self.write("uptime", f"{uptime_seconds:.2f} 99.00\n")
        self.write("sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.write("sys/kernel/hostname", "node07\n")
        for name, some in (pressure or {}).items():
            self.write(
                f"pressure/{name}",
                f"some avg10={some:.2f} avg60=99.00 avg300=99.00 total=5\n"
                "full avg10=77.00 avg60=77.00 avg300=77.00 total=5\n",
            )

    def process(
        self,
        pid: int,
        *,
        name: str = "python",
        state: str = "S",
        parent: int = 1,
        cpu_seconds: float = 0.0,
        system_seconds: float = 0.0,
        reaped_seconds: float = 0.0,
        start_ticks: int = 5000,
        threads: int = 1,
        rss_pages: int = 10,
        arguments: Iterable[bytes] = (b"python", b"train.py"),
        uid: int = 1000,
        tgid: int | None = None,
        involuntary_switches: int = 0,
        read_bytes: int = 0,
        schedstat: tuple[int, int, int] | None = None,
        children: Mapping[int, Iterable[int]] | None = None,
        cgroup: str = "0::/\n",
        last_core: int = 0,
        thread_seconds: Mapping[int, float] | None = None,
        private_dirty_kb: int | None = None,
        environment: Iterable[bytes] = (),
        maps: str | None = None,
    ) -> None:
        """One process; `children` maps the thread that forked to the pids that it forked.

        `cpu_seconds` holds `system_seconds`; `thread_seconds` are those of its further threads.
        """
        after_name = [state, parent, pid, pid, 0, -1, 0, 0, 0, 0, 0]
        times = [int((cpu_seconds - system_seconds) * TICKS), int(system_seconds * TICKS)]
        after_name += [*times, int(reaped_seconds * TICKS), 0]
        after_name += [20, 0, threads, 0, start_ticks, 9999, rss_pages] + [0] * 14 + [last_core] + [0] * 15
        stat = f"{pid} ({name}) " + " ".join(map(str, after_name)) + "\n"
        self.write(f"{pid}/stat", stat)
        self.write(f"{pid}/task/{pid}/stat", stat)
        for thread, seconds in (thread_seconds or {}).items():
            after_name[11] = int(seconds * TICKS)
            self.write(f"{pid}/task/{thread}/stat", f"{thread} ({name}) " + " ".join(map(str, after_name)) + "\n")
        self.write(f"{pid}/environ", b"".join(entry + b"\0" for entry in environment))
        if private_dirty_kb is not None:
            self.write(
                f"{pid}/smaps_rollup", f"Rss: 900 kB\nPrivate_Clean: 7 kB\nPrivate_Dirty: {private_dirty_kb} kB\n"
            )
        if maps is not None:
            self.write(f"{pid}/maps", maps)
        self.write(
            f"{pid}/status",
            f"Name:\t{name}\nState:\t{state}\nTgid:\t{tgid or pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"Gid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"Threads:\t{threads}\nvoluntary_ctxt_switches:\t7\n"
            f"nonvoluntary_ctxt_switches:\t{involuntary_switches}\n",
        )
        self.write(f"{pid}/io", f"rchar: 1\nwchar: 2\nread_bytes: {read_bytes}\nwrite_bytes: 0\n")
        self.write(f"{pid}/cmdline", b"".join(argument + b"\0" for argument in arguments))
        self.write(f"{pid}/cgroup", cgroup)
        if schedstat is not None:
            self.write(f"{pid}/schedstat", " ".join(map(str, schedstat)) + "\n")
        for thread, pids in ({pid: ()} | dict(children or {})).items():
            self.write(f"{pid}/task/{thread}/children", "".join(f"{child} " for child in pids))

    def nodes(self, *cores: str, gpus: Mapping[str, int] | None = None) -> None:
        """NUMA nodes by their cores ("0-3"), and the node of each GPU by its PCI address."""
        for node, cpulist in enumerate(cores):
            _write(self.sys / f"devices/system/node/node{node}/cpulist", cpulist + "\n")
        for address, node in (gpus or {}).items():
            _write(self.sys / f"bus/pci/drivers/nvidia/{address}/numa_node", f"{node}\n")

    def end(self, pid: int) -> None:
        """Takes a process away."""
        folder = self.proc / str(pid)
        folder.rename(folder.with_name(f"ended-{pid}"))


def _write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
