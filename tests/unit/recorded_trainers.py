"""Recorded processes as torch, its launchers and its workers leave them in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recorded_proc import RecordedHost

PYTHON = "/opt/env/bin/python3.11"
TORCH = "/opt/env/lib/python3.11/site-packages/torch"
TRAIN = (b"python", b"train.py")
SPAWN_CODE = b"from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6, pipe_handle=11)"
SPAWNED = (b"python", b"-c", SPAWN_CODE, b"--multiprocessing-fork")
FORKSERVER = (b"python", b"-c", b"from multiprocessing.forkserver import main; main(8, 9, ['__main__'])")
TRACKER = (b"python", b"-c", b"from multiprocessing.resource_tracker import main;main(5)")
COMPILE_WORKER = (
    b"python",
    f"{TORCH}/_inductor/compile_worker/__main__.py".encode(),
    b"--workers=32",
)
UPTIME_SECONDS = 1000.0
HOST_NAMESPACE = "pid:[4026531836]"

_MAP = "7f12d5000000-7f12d9000000 r-xp 00000000 fd:01 {inode}                     {path}\n"


class RecordedTrainers(RecordedHost):
    """A recorded machine on which Python processes run."""

    def __init__(self, folder: Path, namespace: str = HOST_NAMESPACE) -> None:
        super().__init__(folder)
        self.machine(uptime_seconds=UPTIME_SECONDS)
        self.write("self/status", "Name:\tgpuwatch\nNSpid:\t77\n")
        (self.proc / "self/ns").mkdir()
        (self.proc / "self/ns/pid").symlink_to(namespace)

    def python(
        self,
        pid: int,
        *libraries: str,
        program: str = PYTHON,
        namespace_pids: Iterable[int] = (),
        **stat: Any,
    ) -> None:
        """A process that has these files mapped; it has used half a core for all its life, unless told otherwise."""
        self.process(pid, **{"cpu_seconds": 475.0, "uid": os.getuid(), **stat})
        self.map(pid, *libraries)
        exe = self.proc / str(pid) / "exe"
        exe.unlink(missing_ok=True)
        exe.symlink_to(program)
        with (self.proc / str(pid) / "status").open("a") as status:
            status.write("NSpid:\t" + "\t".join(map(str, namespace_pids or (pid,))) + "\n")

    def map(self, pid: int, *libraries: str) -> None:
        """What is in its address space, beside the usual."""
        paths = ["/usr/lib/x86_64-linux-gnu/libc.so.6", *libraries]
        self.write(f"{pid}/maps", "".join(_MAP.format(inode=7, path=path) for path in paths))

    def torch(self, pid: int, *, version: str = "2.6.0+cu124", **stat: Any) -> None:
        """A process with torch loaded."""
        self.python(pid, f"{TORCH}/lib/libtorch_cpu.so", f"{TORCH}/lib/libtorch_python.so", **stat)
        self.write(f"{pid}/root{TORCH}/version.py", f"__all__ = ['__version__']\n__version__ = '{version}'\n")

    def worker(self, pid: int, parent: int, **stat: Any) -> None:
        """A DataLoader worker of a torch that names them."""
        self.torch(pid, name="pt_data_worker", parent=parent, **stat)

    def thread(self, pid: int, thread: int, name: str) -> None:
        """One more thread of a process."""
        self.write(f"{pid}/task/{thread}/comm", f"{name}\n")
