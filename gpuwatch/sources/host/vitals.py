"""Any process of this machine, on demand: what it uses, where it comes from, how it was launched; signals to it.

For the processes on the GPUs that nobody watches otherwise. All of it may take its time (a process whose memory is
locked, a name service): never called from a thread that draws.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gpuwatch.foreign import read_arguments, read_of
from gpuwatch.procfs import PROC, shown
from gpuwatch.sources.host.machine import Cgroups, CpuLimit, MemoryLimit

CGROUPS = Path("/sys/fs/cgroup")

SHOWN_VARIABLES = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|OMP_NUM_THREADS|MKL_NUM_THREADS"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|(NCCL|PYTORCH|TORCH|TORCHELASTIC|SLURM_JOB|SLURM_PROC|SLURM_LOCAL)_?[A-Z0-9_]*"
)
"""No other variable is shown: the environment holds passwords and tokens."""
_SECRET = re.compile(r"TOKEN|SECRET|PASS|AUTH|KEY|CREDENTIAL")
_LONGEST_VALUE = 256
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_CONTAINER = re.compile(r"(docker|libpod|cri-containerd|crio|containerd)[-/:]+([0-9a-f]{64})")
_SLURM = re.compile(r"/slurm[^/]*/(?:uid_\d+/)?job_(\d+)")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a process uses now. `cpu_percent` is of one core, between this reading and the one before; None at first."""

    started: float  # seconds since the epoch
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    state: str | None = None  # "running", "sleeping", "disk-sleep", "zombie"
    threads: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Details:
    """All that can be known of one process; None, or left out, is what this user may not see."""

    pid: int
    vitals: Vitals
    command: tuple[str, ...] = ()
    cwd: str | None = None
    open_files: int | None = None
    most_open_files: int | None = None
    most_locked_bytes: int | None = None  # what it may pin; pinned batches and RDMA count
    is_locking_unlimited: bool = False
    affinity_cores: int | None = None
    cpu_limit: CpuLimit | None = None
    memory_limit: MemoryLimit | None = None
    ancestors: tuple[str, ...] = ()  # "pid name", the nearest first
    children: tuple[tuple[int, str], ...] = ()  # (depth, "pid name"), each below its parent, from depth 0
    variables: Mapping[str, str] = field(default_factory=dict)
    slurm_job: str | None = None
    pod: str | None = None
    container: str | None = None


class VitalsReader:
    """Reads several processes again and again; shares of CPU are between two readings."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def read(self, pids: Iterable[int]) -> dict[int, Vitals]:
        """Those that are there, by pid."""
        found = {}
        for pid in set(pids):
            with suppress(psutil.Error, OSError):
                process, is_new = self._known.get(pid), False
                if process is None or not process.is_running():
                    process, is_new = psutil.Process(pid), True
                    self._known[pid] = process
                found[pid] = _vitals(process, process.cpu_percent(None), is_new=is_new)
        self._known = {pid: process for pid, process in self._known.items() if pid in found}
        return found


def _vitals(process: psutil.Process, cpu_percent: float | None, *, is_new: bool) -> Vitals:
    with process.oneshot():
        memory = user = None
        with suppress(psutil.Error):
            memory = process.memory_info().rss
        with suppress(psutil.Error, KeyError):
            user = process.username()
        return Vitals(
            started=process.create_time(),
            cpu_percent=None if is_new else cpu_percent,
            rss_bytes=memory,
            state=process.status(),
            threads=process.num_threads(),
            user=user,
        )


def details_of(pid: int) -> Details | None:
    """Everything of one process; None once it is gone."""
    try:
        process = psutil.Process(pid)
        vitals = _vitals(process, None, is_new=True)
    except (psutil.Error, OSError):
        return None
    found: dict[str, object] = {}
    for name, read in (
        ("command", lambda: read_arguments(PROC, pid)),
        ("cwd", process.cwd),
        ("open_files", process.num_fds),
        ("most_open_files", lambda: process.rlimit(psutil.RLIMIT_NOFILE)[0]),
        ("affinity_cores", lambda: len(process.cpu_affinity())),
        ("ancestors", lambda: tuple(f"{each.pid} {each.name()}" for each in process.parents())),
        ("children", lambda: _below(process)),
    ):
        with suppress(psutil.Error, OSError, AttributeError):
            found[name] = read()
    with suppress(psutil.Error, OSError, AttributeError):
        locked = process.rlimit(psutil.RLIMIT_MEMLOCK)[0]
        found |= {"is_locking_unlimited": True} if locked == psutil.RLIM_INFINITY else {"most_locked_bytes": locked}
    with suppress(OSError):
        cgroups = Cgroups(PROC, CGROUPS)
        found |= {"cpu_limit": cgroups.cpu_limit(pid), "memory_limit": cgroups.memory_limit(pid)}
        found |= homes_of((PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace"))
    environment = read_of(PROC, pid, "environ")  # given up after 2 s where the memory is locked
    if environment is not None:
        pairs = (entry.partition(b"=") for entry in environment.split(b"\0") if b"=" in entry)
        found |= launch_of({shown(name): shown(value) for name, _, value in pairs}, found.get("pod"))
    return Details(pid=pid, vitals=vitals, **found)  # type: ignore[arg-type]


def _below(process: psutil.Process) -> tuple[tuple[int, str], ...]:
    """The descendants, each below its parent; who ends meanwhile is left out."""
    by_parent: dict[int, list[psutil.Process]] = {}
    for each in process.children(recursive=True):
        with suppress(psutil.Error):
            by_parent.setdefault(each.ppid(), []).append(each)
    found: list[tuple[int, str]] = []
    waiting = [(0, each) for each in reversed(by_parent.get(process.pid, []))]
    while waiting:
        depth, each = waiting.pop()
        with suppress(psutil.Error):
            found.append((depth, f"{each.pid} {each.name()}"))
        waiting += [(depth + 1, child) for child in reversed(by_parent.pop(each.pid, []))]
    return tuple(found)


def launch_of(environment: Mapping[str, str], pod_uid: object = None) -> dict[str, object]:
    """The variables that may be shown, and of them the Slurm job and the pod's name, which is its host name."""
    variables = shown_variables(environment)
    found: dict[str, object] = {"variables": variables}
    if job := variables.get("SLURM_JOB_ID"):
        found["slurm_job"] = job
    if "KUBERNETES_SERVICE_HOST" in environment and (name := environment.get("HOSTNAME")):
        found["pod"] = f"{name[:_LONGEST_VALUE]} ({pod_uid})" if pod_uid else name[:_LONGEST_VALUE]
    return found


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that tell how a training was launched."""
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(environment.items())
        if SHOWN_VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def homes_of(cgroup: str) -> dict[str, str]:
    """The Slurm job, the pod and the container that a process's control groups are of."""
    found = {}
    if match := _SLURM.search(cgroup):
        found["slurm_job"] = match[1]
    if match := _POD.search(cgroup):
        found["pod"] = match[1].replace("_", "-")
    if match := _CONTAINER.search(cgroup):
        found["container"] = f"{match[1]} {match[2][:12]}"
    return found


def send(pid: int, started: float, number: signal.Signals) -> str | None:
    """Sends a signal to the process that started then; returns why not, in one sentence, or None.

    The pid is held by a descriptor before it is compared, so that no other process can get it in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"Process {pid} is gone."
    except (AttributeError, OSError) as error:
        return f"Process {pid} cannot be held ({error}): use `kill -{number.name.removeprefix('SIG')} {pid}`."
    try:
        if abs(psutil.Process(pid).create_time() - started) > 1.0:
            return f"Process {pid} is gone: the number belongs to another one now."
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return f"Process {pid} is gone."
    except PermissionError:
        return f"Process {pid} belongs to another user: only that user and root may send it a signal."
    finally:
        os.close(descriptor)
    return None
