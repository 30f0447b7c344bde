"""The real workloads R1 to R20; a sleep stands for the accelerator, for none can be had everywhere.

On such a run the wait for data is exact: work is never queued, so what the training thread waits the device idles.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.scenarios.real.workload import Workload


def _one(*rules: str) -> frozenset[str]:
    return frozenset(rules)


STARVED = _one("data-starvation")
SLOW_LOADING = _one(
    "worker-cpu-bound", "host-cpu-exhausted", "too-many-workers", "workers-too-few", "thread-oversubscription"
)
STEADY = _one("util-fluctuation", "step-time-regression", "noisy-neighbour")
"""What a shared machine may bring about by itself."""


def workers_of(pid: int) -> list[int]:
    """The DataLoader workers of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [
        int(child)
        for child in children
        if Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip() == "pt_data_worker"
    ]


def _stop_workers(pid: int) -> None:
    for worker in workers_of(pid):
        os.kill(worker, signal.SIGSTOP)


def _kill_worker(pid: int) -> None:
    os.kill(workers_of(pid)[0], signal.SIGKILL)


def _stop_trainer(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def _no_mount_namespace() -> str | None:
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    asked = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else "no mount namespace may be made here"


def _no_quota() -> str | None:
    folder = Path("/sys/fs/cgroup")
    if not (folder / "cgroup.subtree_control").exists() or not os.access(folder / "cgroup.procs", os.W_OK):
        return "no cgroup is delegated to this process"
    return "a cgroup may be had here, but its quota is not set by this suite"


SMALL_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=56m tmpfs /dev/shm && exec "$@"', "sh")
LOADING, PAUSING = "loading.py", "pausing.py"

WORKLOADS = {
    each.id: each
    for each in (
        Workload("R1", "no workers, slow reads", LOADING, must=(STARVED, _one("workers-zero")),
                 place=("workers-zero", "the loader")),
        Workload("R2-1", "one worker, slow reads", LOADING, ("--workers", "1"),
                 must=(STARVED, _one("workers-too-few")), place=("workers-too-few", "the loader")),
        Workload("R2-2", "two workers, slow reads", LOADING, ("--workers", "2"),
                 must=(STARVED, _one("workers-too-few")), place=("workers-too-few", "the loader")),
        Workload("R2-8", "eight workers, slow reads: enough", LOADING, ("--workers", "8"),
                 may=_one("too-many-workers")),
        Workload("R3-4", "four workers compute on two cores", LOADING, ("--kind", "compute", "--workers", "4"),
                 must=(STARVED, SLOW_LOADING), may=SLOW_LOADING | STEADY),
        Workload("R3-8", "eight workers compute on two cores", LOADING, ("--kind", "compute", "--workers", "8"),
                 must=(STARVED, SLOW_LOADING), may=SLOW_LOADING | STEADY),
        Workload("R4-0", "trivial dataset, no workers: well", LOADING, ("--kind", "none", "--step-milliseconds", "5")),
        Workload("R4-4", "trivial dataset, four workers: well", LOADING,
                 ("--kind", "none", "--step-milliseconds", "5", "--workers", "4"), may=_one("too-many-workers")),
        Workload("R5", "one item in a hundred is slow", LOADING,
                 ("--kind", "tail", "--milliseconds", "500", "--workers", "4"),
                 must=(_one("slow-samples"),), may=STARVED | STEADY, must_attached=()),
        Workload("R5-unordered", "the same, unordered", LOADING,
                 ("--kind", "tail", "--milliseconds", "500", "--workers", "4", "--unordered"),
                 may=_one("slow-samples") | STARVED | STEADY),
        Workload("R6", "epochs of ten batches, workers started again", LOADING,
                 ("--kind", "none", "--workers", "2", "--length", "80", "--step-milliseconds", "30"),
                 must=(_one("epoch-start-stall", "epoch-too-short"),), may=STARVED | STEADY),
        Workload("R7", "batches of 38 MB", LOADING,
                 ("--kind", "none", "--workers", "1", "--floats", "1200000", "--step-milliseconds", "5"),
                 must=(STARVED, _one("slow-collate-ipc")), may=SLOW_LOADING | STEADY),
        Workload("R8", "100 MB saved every 20 steps", PAUSING, ("--save-every", "20", "--save-megabytes", "100"),
                 must=(_one("checkpoint-stall"),), may=STEADY, place=("checkpoint-stall", "the save")),
        Workload("R9", "full collections over two million objects", PAUSING, ("--garbage", "2000000"),
                 must=(_one("gc-stall"),), may=STEADY, must_attached=()),
        Workload("R10-0", "JPEG and rotation, no workers", "pictures.py", ("--workers", "0"),
                 must=(STARVED, _one("workers-zero")), place=("data-starvation", "the rotation")),
        Workload("R10-2", "JPEG and rotation, two workers", "pictures.py", ("--workers", "2"),
                 must=(STARVED, SLOW_LOADING), may=SLOW_LOADING | STEADY, place=("worker-cpu-bound", "the rotation")),
        Workload("R11", "workers with a pool of threads each", "threads.py",
                 must=(STARVED, _one("thread-oversubscription", "host-cpu-exhausted", "too-many-workers")),
                 may=SLOW_LOADING | STEADY),
        Workload("R12", "56 MB of /dev/shm, 48 in use", LOADING,
                 ("--kind", "none", "--workers", "2", "--floats", "300000", "--step-milliseconds", "100"),
                 must=(_one("shm-pressure"),), may=_one("slow-collate-ipc") | STARVED | STEADY, around=SMALL_SHM,
                 needs=_no_mount_namespace),
        Workload("R13", "a CPU quota", LOADING, ("--kind", "compute", "--workers", "4"),
                 must=(STARVED, _one("cpu-quota-throttled")), needs=_no_quota),
        Workload("R14-stopped", "the workers stop", LOADING, ("--kind", "none", "--workers", "2"),
                 must=(_one("step-stalled"),), seconds=90.0, act=_stop_workers),
        Workload("R14-killed", "a worker is killed: torch ends the training", LOADING,
                 ("--kind", "none", "--workers", "2"), state="ended", act=_kill_worker),
        Workload("R15", "the training is stopped by a signal", PAUSING, state="stopped", seconds=40.0,
                 act=_stop_trainer),
        Workload("R16", "nothing is wrong", PAUSING, seconds=60.0),
        Workload("R19", "a slow validation between steps of a fast loader", PAUSING, ("--evaluate-every", "25"),
                 must=(_one("eval-stall"),), may=STEADY),
        Workload("R20", "two ranks, one 40 ms late", "ranks.py", ("--late-milliseconds", "40", "--meeting", "MEETING"),
                 must=(_one("straggler-rank"),), may=STEADY | _one("comm-bound"), must_attached=()),
        Workload("R20-even", "two ranks, equally fast", "ranks.py", ("--meeting", "MEETING"), may=STEADY),
    )
}  # fmt: skip
"""R17 is each of them attached to without a hook (`--how attached`), R18 each reported on twice (`--twice`)."""
