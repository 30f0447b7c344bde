"""The machine: its system, what it grants to a training here, and the terminal of the dashboard."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from gpuwatch.cli.doctor_checks import Check, Detail, State
from gpuwatch.cli.output import is_terminal
from gpuwatch.procfs import read_once
from gpuwatch.sources.host.cgroup import Cgroups, read_throttling
from gpuwatch.sources.host.machine import in_container, read_pressure, read_shared_memory
from gpuwatch.sources.host.source import affinity_core_count
from gpuwatch.text.numbers import byte_size

_SMALL_SHM_BYTES = 1 << 30
_SHM_CURE = (
    "Start the container with `--shm-size=8g` or `--ipc=host`; in Kubernetes mount an emptyDir of medium Memory "
    "at /dev/shm."
)

_ENOUGH_FILES = 256
_COLUMNS, _ROWS = 80, 24  # the smallest layout of the dashboard


def check_system(proc_root: Path = Path("/proc"), system: str = sys.platform) -> Check:
    """Linux is the platform; elsewhere only what NVML and psutil give is there."""
    about = f"{platform.system()} {platform.release()} on {platform.machine()}, Python {platform.python_version()}"
    result = partial(Check, "system", details={"system": system, "python": sys.executable})
    if system != "linux":
        return result(
            State.WARNING,
            f"{about}: only GPUs and the machine as a whole can be watched, not training runs.",
            "Use Linux, or WSL2 on Windows, for training runs.",
        )
    if read_once(f"{proc_root}/self/stat") is None:
        return result(
            State.PROBLEM,
            f"{about}, but /proc is not mounted, so no process can be watched.",
            "Mount it: `mount -t proc proc /proc`.",
        )
    if read_once(f"{proc_root}/thread-self/children") is None:
        return result(
            State.WARNING,
            f"{about}, but this kernel does not list children (CONFIG_PROC_CHILDREN), so DataLoader workers of "
            "runs are not found.",
            "Use a kernel with CONFIG_PROC_CHILDREN=y, as all large distributions build it.",
        )
    return result(State.OK, f"{about}.")


def check_surroundings(proc_root: Path = Path("/proc")) -> Check:
    """A container hides the pids that the driver reports; WSL hides what each process holds on the GPU."""
    kernel = (read_once(f"{proc_root}/sys/kernel/osrelease") or b"").lower()
    container, wsl = in_container(proc_root), b"microsoft" in kernel
    own_pids = _has_own_pids(proc_root)
    result = partial(Check, "surroundings", details={"container": container, "wsl": wsl, "own_pid_namespace": own_pids})
    if wsl:
        return result(
            State.WARNING,
            "This is WSL: its driver does not report the GPU memory of single processes.",
            "Read the memory of a run from its own allocator, which the hook reports (`gpuwatch run`).",
        )
    if own_pids:
        return result(
            State.WARNING,
            "This container has pids of its own, and the driver reports those of the host: which process uses a "
            "GPU may be unknown.",
            "Start the container with `--pid=host`, or run gpuwatch on the host.",
        )
    if container:
        return result(State.OK, "This is a container that shares the host's pids.")
    return result(State.OK, "This is neither a container nor WSL.")


def _has_own_pids(proc_root: Path) -> bool:
    """The first pid namespace has a fixed inode number, PROC_PID_INIT_INO."""
    try:
        return os.readlink(f"{proc_root}/self/ns/pid") != "pid:[4026531836]"  # noqa: PTH115 - it names no file
    except OSError:
        return False


def check_quota(
    proc_root: Path = Path("/proc"),
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    affinity_cores: Callable[[int], int | None] = affinity_core_count,
    cpu_count: int | None = None,
) -> Check:
    """A quota below the core count makes `num_workers=os.cpu_count()` too many; PyTorch warns by affinity only."""
    cores = cpu_count or os.cpu_count() or 1
    allowed = affinity_cores(0)
    limit = Cgroups(proc_root, cgroup_root).cpu_limit("self")
    throttling = read_throttling(limit)
    details = {
        "cores": cores,
        "affinity_cores": allowed,
        "quota_cores": limit.quota_cores,
        "periods": throttling.periods,
        "throttled_periods": throttling.throttled_periods,
    }
    result = partial(Check, "cpu-quota", details=details)
    usable = cores if allowed is None else min(cores, allowed)
    if limit.quota_cores is not None and limit.quota_cores < usable:
        stopped = ""
        if throttling.periods and throttling.throttled_periods is not None:
            share = 100.0 * throttling.throttled_periods / throttling.periods
            stopped = f", and stopped in {share:.0f} % of its periods so far"
        workers = max(1, int(limit.quota_cores) - 1)
        return result(
            State.WARNING,
            f"A cgroup quota allows {limit.quota_cores:g} of {cores} cores{stopped}.",
            f"Count workers by the quota (at most num_workers={workers} per node), or raise it: `docker --cpus`, "
            "Kubernetes limits.cpu.",
        )
    if not limit.known:
        return result(
            State.UNKNOWN,
            f"{usable} of {cores} cores may be used, unless a cgroup quota holds that cannot be seen from here.",
            "Mount the cgroup hierarchy at /sys/fs/cgroup in this container.",
        )
    if usable < cores:
        sentence = f"{usable} of {cores} cores may be used (CPU affinity or cpuset), without a quota."
    else:
        sentence = f"All {cores} cores may be used, without a quota."
    return result(State.OK, sentence)


def check_shared_memory(proc_root: Path = Path("/proc")) -> Check:
    """Docker gives 64 MB by default; workers that fill it die of a bus error or hang (pytorch#5040, #1355)."""
    shm = read_shared_memory(proc_root, "self")
    result = partial(Check, "shared-memory", details={"total_bytes": shm.total_bytes, "used_bytes": shm.used_bytes})
    if not shm.total_bytes or shm.used_bytes is None:
        sentence = "There is no /dev/shm, so DataLoader workers cannot hand over batches in shared memory."
        return result(State.PROBLEM, sentence, _SHM_CURE)
    used = shm.used_bytes / shm.total_bytes
    sentence = f"/dev/shm is {byte_size(shm.total_bytes)}, {100 * used:.0f} % of it used"
    if used >= 0.95:
        return result(State.PROBLEM, f"{sentence}: workers may crash or hang.", _SHM_CURE)
    if used >= 0.80:
        return result(State.WARNING, f"{sentence}: little is left for workers.", _SHM_CURE)
    if shm.total_bytes < _SMALL_SHM_BYTES:
        return result(State.WARNING, f"{sentence}: too little for several workers.", _SHM_CURE)
    return result(State.OK, f"{sentence}.")


def check_pressure(proc_root: Path = Path("/proc")) -> Check:
    """Pressure stall information distinguishes a full machine from a slow disk."""
    now = read_pressure(proc_root)
    details = {"cpu_percent": now.cpu_percent, "io_percent": now.io_percent, "memory_percent": now.memory_percent}
    result = partial(Check, "pressure", details=details)
    if now.cpu_percent is None and now.io_percent is None and now.memory_percent is None:
        return result(
            State.WARNING,
            "The kernel provides no pressure statistics (PSI), so whether workers wait for CPU or storage is judged "
            "from their states alone.",
            "Boot a kernel of 4.20 or later with `psi=1`.",
        )
    numbers = ", ".join(
        f"{name} {value:.0f} %"
        for name, value in (("CPU", now.cpu_percent), ("storage", now.io_percent), ("memory", now.memory_percent))
        if value is not None
    )
    return result(State.OK, f"The kernel measures pressure (PSI); in the last 10 s: {numbers}.")


def check_open_files(soft_limit: int | None = None) -> Check:
    """`ulimit -n`; each DataLoader worker of a linked run holds a connection of its own."""
    limit = _soft_limit() if soft_limit is None else soft_limit
    if limit is None:
        return Check("open-files", State.UNKNOWN, "This system does not say how many files may be open.")
    result = partial(Check, "open-files", details={"limit": limit})
    if limit < _ENOUGH_FILES:
        return result(
            State.WARNING,
            f"Only {limit} files may be open at once, so runs with many workers may not all be linked.",
            "Raise it in this shell before gpuwatch starts: `ulimit -n 4096`.",
        )
    return result(State.OK, f"{limit} files may be open at once.")


def _soft_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True)
class Terminal:
    """What is known of the terminal."""

    is_terminal: bool
    kind: str
    columns: int
    rows: int
    colors: str | None  # as rich names them: standard, 256, truecolor; None without any
    encoding: str

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Terminal:
        """The one on standard input and output; size and colours are of a stream that is not redirected."""
        both = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        stream = next((s for s in (sys.stdout, sys.stderr, sys.stdin) if is_terminal(s)), None)
        size = os.get_terminal_size(stream.fileno()) if stream else os.terminal_size((0, 0))
        colored = stream is not None and not environment.get("NO_COLOR")
        colors = Console(file=stream, force_terminal=True).color_system if colored else None
        encoding = getattr(sys.stdout, "encoding", None) or ""
        return cls(both, environment.get("TERM", ""), size.columns, size.lines, colors, encoding)


def check_terminal(terminal: Terminal) -> Check:
    """Can the dashboard be drawn here, and as it was meant?"""
    details: dict[str, Detail] = {
        "is_terminal": terminal.is_terminal,
        "term": terminal.kind,
        "columns": terminal.columns,
        "rows": terminal.rows,
        "colors": terminal.colors,
        "encoding": terminal.encoding,
    }
    result = partial(Check, "terminal", details=details)
    if not terminal.is_terminal:
        return result(
            State.UNKNOWN,
            "Input or output is not a terminal here, so `gpuwatch` prints a line per second, not the dashboard.",
            "Run `gpuwatch doctor` directly in a terminal to have it checked; over ssh use `ssh -t`.",
        )
    about = f"{terminal.columns}x{terminal.rows}, TERM={terminal.kind}"
    if terminal.kind in ("", "dumb", "unknown"):
        sentence = f"The terminal ({about}) says that it cannot place a cursor, so `gpuwatch` prints lines."
        return result(State.WARNING, sentence, "Set TERM to the terminal's type, such as xterm-256color.")
    if terminal.columns < _COLUMNS or terminal.rows < _ROWS:
        sentence = f"The terminal ({about}) is smaller than {_COLUMNS}x{_ROWS}, so parts of the dashboard are left out."
        return result(State.WARNING, sentence, "Enlarge the window or choose a smaller font.")
    if terminal.encoding.lower().replace("-", "") != "utf8":
        sentence = f"The terminal ({about}) is set to {terminal.encoding or 'no encoding'}: charts are drawn in ASCII."
        return result(State.WARNING, sentence, "Set a UTF-8 locale: `export LC_ALL=C.UTF-8`.")
    if terminal.colors is None:
        sentence = f"The terminal ({about}) shows no colours (NO_COLOR or TERM); every status is also a word."
        return result(State.OK, sentence)
    return result(State.OK, f"The terminal ({about}) has {terminal.colors} colours and UTF-8.")
