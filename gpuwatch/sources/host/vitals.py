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

import psutil

from gpuwatch.procfs import PROC

SHOWN_VARIABLES = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|OMP_NUM_THREADS|MKL_NUM_THREADS"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|(NCCL|PYTORCH|TORCH|TORCHELASTIC|SLURM_JOB|SLURM_PROC|SLURM_LOCAL)_?[A-Z_]*"
)
"""No other variable is shown: the environment holds passwords and tokens."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL")
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
    ancestors: tuple[str, ...] = ()  # "pid name", the nearest first
    children: tuple[str, ...] = ()
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
        ("command", lambda: tuple(process.cmdline())),
        ("cwd", process.cwd),
        ("open_files", process.num_fds),
        ("most_open_files", lambda: process.rlimit(psutil.RLIMIT_NOFILE)[0]),
        ("ancestors", lambda: tuple(f"{each.pid} {each.name()}" for each in process.parents())),
        ("children", lambda: tuple(f"{each.pid} {each.name()}" for each in process.children(recursive=True))),
        ("variables", lambda: shown_variables(process.environ())),
    ):
        with suppress(psutil.Error, OSError, AttributeError):
            found[name] = read()
    with suppress(OSError):
        found |= homes_of((PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace"))
    variables = found.get("variables")
    if isinstance(variables, dict) and "SLURM_JOB_ID" in variables:
        found["slurm_job"] = variables["SLURM_JOB_ID"]
    return Details(pid=pid, vitals=vitals, **found)  # type: ignore[arg-type]


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that tell how a training was launched."""
    return {
        name: value
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
