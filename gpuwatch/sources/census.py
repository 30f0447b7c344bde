"""All Python processes of this machine, and those of one tree: what each is, and which of them train.

Most never change what they are, so they are read rarely: a new process once, and again after 2, 10 and 60 s, because a
script first imports and a shell first execs; then every minute. What is no Python costs one readlink, 5 us, at each
reading. Which of them train is judged without any file or clock.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gpuwatch.foreign import NOTEBOOK_MODULES, cpu_time_ns, is_left_alone, read_arguments, read_foreign, read_of
from gpuwatch.procfs import (
    MAPS_LIMIT,
    PROC,
    ProcessKey,
    ProcessStat,
    boot_ticks,
    effective_user,
    listed,
    mapped_paths,
    owner_of,
    read_once,
    read_stat,
    shown,
)
from gpuwatch.sources.host.identify import executable_of, is_python, is_python_program
from gpuwatch.sources.host.source import WORKER_NAME

_LAUNCHER_NAME = "pt_elastic"  # set by torch/distributed/run.py
_LAUNCHER_PROGRAMS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "horovodrun"})
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
    "horovod.runner",
)
_HELPER_CODE = (
    "from multiprocessing.resource_tracker import",
    "from multiprocessing.semaphore_tracker import",
    "from gpuwatch.sources.nvml.child import",
)
_FORKSERVER_CODE = "from multiprocessing.forkserver import"
_SPAWN_CODE = "from multiprocessing.spawn import"
_COMPILE_WORKER = "torch/_inductor/compile_worker"
_OPTIONS_WITH_VALUE = frozenset("WX")


class Role(Enum):
    """What a Python process does for others; `PROGRAM` is everything else."""

    PROGRAM = "program"
    NOTEBOOK = "notebook"  # a kernel, which holds what its cells loaded for as long as it lives
    LAUNCHER = "launcher"  # starts ranks and waits for them
    WORKER = "worker"  # of a DataLoader
    FORKSERVER = "forkserver"  # or a child of one: they share the command line
    SPAWNED = "spawned"  # by multiprocessing: a rank, a worker that has no name, or one of a pool
    HELPER = "helper"  # torch's and multiprocessing's own, and gpuwatch


def role_of(name: str, arguments: Sequence[str]) -> Role:
    """The role of a process.

    Args:
        name: its main thread's, /proc/PID/comm.
        arguments: its command line, the interpreter first.
    """
    if name == WORKER_NAME:
        return Role.WORKER
    if name == _LAUNCHER_NAME:
        return Role.LAUNCHER
    code, module, script = _started(arguments)
    if code:
        return _role_of_code(code)
    if module:
        if _is_within(module, _LAUNCHER_MODULES):
            return Role.LAUNCHER
        if _is_within(module, ("gpuwatch",)):
            return Role.HELPER
        return Role.NOTEBOOK if _is_within(module, NOTEBOOK_MODULES) else Role.PROGRAM
    if _COMPILE_WORKER in script:
        return Role.HELPER
    program = os.path.basename(script)  # noqa: PTH119 - another process's text, not a path of ours
    if program in _LAUNCHER_PROGRAMS:
        return Role.LAUNCHER
    if program == "gpuwatch" or script.endswith("/gpuwatch/__main__.py"):
        return Role.HELPER
    return Role.NOTEBOOK if program.removesuffix(".py") in NOTEBOOK_MODULES else Role.PROGRAM


def _role_of_code(code: str) -> Role:
    if code.startswith(_HELPER_CODE):
        return Role.HELPER
    if code.startswith(_FORKSERVER_CODE):
        return Role.FORKSERVER
    return Role.SPAWNED if code.startswith(_SPAWN_CODE) else Role.PROGRAM


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _started(arguments: Sequence[str]) -> tuple[str, str, str]:
    """(code of -c, module of -m, script): what the interpreter was given to run; one of them, the others empty."""
    rest = iter(arguments[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            return "", "", argument
        if argument.startswith("--"):
            continue
        for position, letter in enumerate(argument[1:], 2):
            if letter in "cm":
                value = argument[position:] or next(rest, "")
                return (value, "", "") if letter == "c" else ("", value, "")
            if letter in _OPTIONS_WITH_VALUE:
                if not argument[position:]:
                    next(rest, None)
                break
    return "", "", ""


_TORCH: Final = (b"/libtorch_cpu.so", b"/libtorch_python.so")
_TORCH_LIBRARIES: Final = b"/lib/libtorch_python.so"
_OTHERS: Final = (("JAX", b"/jaxlib/"), ("TensorFlow", b"/tensorflow/"))
_LIBRARY_END = re.compile(rb"\.so(?:\.\d{1,4})?\Z")
_VERSION = re.compile(rb"__version__[^\n=]{0,80}=\s*['\"]([^'\"\n]{1,200})")
_MINOR = re.compile(r"(\d{1,4})\.(\d{1,4})")
_VERSION_LIMIT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Library:
    """A framework that trains: its name, and for torch the folder of its Python package."""

    name: str
    folder: str | None = None

    @property
    def is_torch(self) -> bool:
        """Whether its DataLoader and its workers are what gpuwatch knows."""
        return self.name == "torch"


def mapped_library(proc_root: Path | str, pid: int) -> Library | None:
    """The framework in a process's address space, torch before all others; None where there is none, or unreadable.

    0.4 ms for a CPU trainer's 370 mappings.
    """
    paths = mapped_paths(read_of(proc_root, pid, "maps", MAPS_LIMIT) or b"")
    if any(path.endswith(_TORCH) for path in paths):
        # conda-forge keeps the libraries elsewhere; the extension module always lies in the package.
        folders = sorted(folder for path in paths if (folder := _package_of(path)).endswith(b"/torch"))
        return Library("torch", os.fsdecode(folders[0]) if folders else None)
    return next((Library(name) for name, part in _OTHERS if any(map(partial(_is_library_of, part), paths))), None)


def _package_of(path: bytes) -> bytes:
    """The folder of the package that the extension module `_C`, or torch's own library for Python, lies in."""
    if path.endswith(_TORCH_LIBRARIES):
        return path.removesuffix(_TORCH_LIBRARIES)
    folder, _, name = path.rpartition(b"/")
    return folder if name.startswith(b"_C.") and name.endswith(b".so") else b""


def _is_library_of(part: bytes, path: bytes) -> bool:
    return part in path and _LIBRARY_END.search(path, max(0, len(path) - 8)) is not None


def torch_version(proc_root: Path | str, pid: int, library: Library) -> str | None:
    """The version of the torch in a process ("2.4.1+cu121"), from its version.py as that process sees it."""
    if library.folder is None:
        return None
    try:
        text = read_foreign(pid, f"{library.folder}/version.py", _VERSION_LIMIT, proc_root=Path(proc_root)).content
    except OSError:
        return None
    found = _VERSION.search(text)
    return found[1].decode("utf-8", "replace") if found else None


_IMPORT_TICKS = os.sysconf("SC_CLK_TCK") // 5
"""CPU time below which nothing of torch's size was imported: on the fastest machines that takes over a second."""

_MOST_THREADS = 4096  # 40 ms
_TRAINING_THREADS = (b"pt_gloo_", b"pt_nccl_", b"pt_autograd_")  # named by c10::setThreadName, torch 2.5 and later


@dataclass(frozen=True, slots=True)
class Process:
    """One Python process. `library` is that of the last read of its maps, at `library_ticks` of its CPU time."""

    pid: int
    uid: int
    stat: ProcessStat
    arguments: tuple[str, ...]
    role: Role
    library: Library | None = None
    library_ticks: int = 0

    @property
    def key(self) -> ProcessKey:
        """Its identity: a pid alone is reused."""
        return self.pid, self.stat.start_ticks

    @property
    def has_torch(self) -> bool:
        """Whether torch is in its address space."""
        return self.library is not None and self.library.is_torch


def runs_python(proc_root: Path | str, pid: int) -> bool:
    """Whether its program is named as interpreters are; also False where the program may not be known."""
    program = executable_of(pid, proc_root)
    return program is not None and is_python_program(program)


def read_process(proc_root: Path | str, pid: int, before: Process | None = None) -> Process | None:
    """A process as it is now; None once it has ended. `before` is what it was where it keeps its reader waiting.

    The maps are read when they may have changed: at the first read, after enough CPU time to import something, and
    after an exec. Workers and helpers are known by their names, so theirs are not.

    Raises:
        TimeoutError: It keeps its reader waiting, and nothing was known of it before.
    """
    stat = read_stat(proc_root, pid)
    if stat is None or stat.has_ended:
        return None
    is_same = before is not None and before.key == (pid, stat.start_ticks)
    uid = before.uid if before is not None and is_same else effective_user(proc_root, pid)
    if uid is None:
        return None
    if before is not None and is_same and is_left_alone(pid):
        return replace(before, stat=stat)
    arguments = read_arguments(proc_root, pid)
    now = Process(pid, uid, stat, arguments, role_of(stat.command_name, arguments))
    if before is not None and is_same and before.arguments == arguments:
        now = replace(now, library=before.library, library_ticks=before.library_ticks)
        if now.has_torch or stat.own_ticks - before.library_ticks < _IMPORT_TICKS:
            return now
    if now.role in (Role.WORKER, Role.HELPER):
        return now
    library = mapped_library(proc_root, pid)
    if library is None and is_left_alone(pid):
        raise TimeoutError("it does not answer reads of its memory")
    return replace(now, library=library, library_ticks=stat.own_ticks)


def has_training_threads(proc_root: Path | str, pid: int) -> bool:
    """Whether torch itself started threads in it for gradients on a GPU or for talking to other ranks."""
    threads = listed(f"{proc_root}/{pid}/task")
    names = (read_once(f"{proc_root}/{pid}/task/{thread}/comm", 64) for thread in threads[:_MOST_THREADS])
    return any(name is not None and name.startswith(_TRAINING_THREADS) for name in names)


_IDLE_CORES = 0.02
"""A process at rest uses none; a training of 16 batches a second that waits 98% of its time still uses 0.04."""

_NAMES_ITS_WORKERS = (2, 5)  # the first torch that does
_MOST_ANCESTORS = 8


class Certainty(IntEnum):
    """How sure it is that a process trains; the order of the list."""

    HOOKED = 0
    SIGNS = 1  # a GPU, workers, other ranks
    BUSY = 2  # torch is loaded, and it computes
    LOADED = 3


class CpuUse(NamedTuple):
    """The cores a process uses: over its whole life where it was read only once, else recently."""

    cores: float
    is_recent: bool

    @property
    def is_idle(self) -> bool:
        """Whether that is too little for a training."""
        return self.cores < _IDLE_CORES

    def __str__(self) -> str:
        cores = f"{self.cores:.{1 if self.cores >= 0.1 else 2}f} cores"
        return f"uses {cores}" if self.is_recent else f"used {cores} on average since its start"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A process that trains, or seems to."""

    process: Process
    why: str
    certainty: Certainty
    workers: int = 0
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of processes beyond /proc's names; the callables are asked only where the rest leaves doubt."""

    hooked: Collection[int] = ()
    gpus: Mapping[int, tuple[str, ...]] | None = None
    cpu_use: Callable[[Process], CpuUse | None] = lambda process: None
    has_training_threads: Callable[[Process], bool] = lambda process: False
    torch_version: Callable[[Process], tuple[int, int] | None] = lambda process: None
    carries_hook: Callable[[Process], bool] = lambda process: False


def judge(processes: Mapping[int, Process], signs: Signs) -> list[Verdict]:
    """Those of the processes that train, surest first, then oldest first."""
    verdicts = _Judge(processes, signs).verdicts()
    return sorted(verdicts, key=lambda each: (each.certainty, each.process.stat.start_ticks, each.process.pid))


class _Judge:
    """One judgement over all processes: whether one trains depends on its parent and its children."""

    def __init__(self, processes: Mapping[int, Process], signs: Signs) -> None:
        self._processes = processes
        self._signs = signs
        self._gpus = signs.gpus or {}
        self._workers: Counter[int] = Counter()
        self._by_threads: set[int] = set()
        self._children: list[tuple[Process, Process]] = []
        self._alone: list[Process] = []
        for process in processes.values():
            self._sort_in(process)

    def verdicts(self) -> list[Verdict]:
        """Children that multiprocessing made are workers, ranks or helpers; who only started ranks is a launcher."""
        undecided = []
        ranks: list[Process] = []
        launchers: set[int] = set()
        for child, master in self._children:
            if self._has_signs(child) or self._trains_by_threads(child):
                ranks.append(child)
                launchers.add(master.pid)
            elif self._leaves_workers_unnamed(master):
                self._workers[master.pid] += 1
            else:
                undecided.append((child, master))
        for child, master in undecided:
            if not self._has_signs(master) and self._is_idle(master) and not self._is_idle(child):
                ranks.append(child)
                launchers.add(master.pid)
        alone = [each for each in self._alone if each.pid not in launchers or self._has_signs(each)]
        return [verdict for each in [*alone, *ranks] if (verdict := self._verdict(each))]

    def _sort_in(self, process: Process) -> None:
        parent = self._processes.get(process.stat.parent)
        if process.role is Role.WORKER:
            master = self._past_forkservers(parent)
            if master is not None:
                self._workers[master.pid] += 1
        elif process.role is Role.FORKSERVER:
            # The server and its children share one command line: a child is who has such a parent.
            if parent is not None and parent.role is Role.FORKSERVER:
                self._add_child(process, self._past_forkservers(parent))
        elif process.role is Role.SPAWNED:
            self._add_child(process, parent)
        elif process.role is not Role.HELPER:
            is_forked = parent is not None and parent.has_torch and parent.arguments == process.arguments
            self._add_child(process, parent if is_forked else None)

    def _add_child(self, process: Process, master: Process | None) -> None:
        if master is not None and master.has_torch and process.has_torch and master.role is not Role.LAUNCHER:
            self._children.append((process, master))
        else:
            self._alone.append(process)

    def _past_forkservers(self, process: Process | None) -> Process | None:
        for _ in range(_MOST_ANCESTORS):
            if process is None or process.role is not Role.FORKSERVER:
                return process
            process = self._processes.get(process.stat.parent)
        return None

    def _has_signs(self, process: Process) -> bool:
        pid = process.pid
        return pid in self._signs.hooked or pid in self._gpus or self._workers[pid] > 0

    def _trains_by_threads(self, process: Process) -> bool:
        """A forked child has only threads that were started in it."""
        if self._signs.has_training_threads(process):
            self._by_threads.add(process.pid)
            return True
        return False

    def _leaves_workers_unnamed(self, process: Process) -> bool:
        """Of a torch whose version cannot be read, too: a worker less in the list beats a worker as a trainer."""
        version = self._signs.torch_version(process)
        return version is None or version < _NAMES_ITS_WORKERS

    def _is_idle(self, process: Process) -> bool:
        use = self._signs.cpu_use(process)
        return use is not None and use.is_idle

    def _verdict(self, process: Process) -> Verdict | None:
        pid, workers = process.pid, self._workers[process.pid]
        gpus = self._gpus.get(pid, ())
        hooked = pid in self._signs.hooked
        if process.role is Role.LAUNCHER and not (gpus or workers):
            return None
        parts = ["runs with gpuwatch's hook"] if hooked else []
        if gpus:
            using = f" with {process.library.name}" if process.library else ""
            parts.append(f"holds memory on {_many(len(gpus), 'GPU')}{using}")
        if workers:
            parts.append(f"has {_many(workers, 'DataLoader worker')}")
        if pid in self._by_threads and not parts:
            parts.append("is one of the processes of a torch job")
        if parts:
            certainty = Certainty.HOOKED if hooked else Certainty.SIGNS
            return Verdict(process, ", ".join(parts), certainty, workers, gpus)
        return self._of_loaded(process)

    def _of_loaded(self, process: Process) -> Verdict | None:
        if not process.has_torch or self._signs.carries_hook(process):
            return None  # a hook says so itself once there is a DataLoader or an optimizer
        loaded = "has torch loaded"
        if process.role is Role.NOTEBOOK:
            loaded = f"is a notebook kernel that {loaded}"
        use = self._signs.cpu_use(process)
        if use is None or use.is_idle:
            return Verdict(process, loaded, Certainty.LOADED)
        return Verdict(process, f"{loaded} and {use}", Certainty.BUSY)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_SECOND_NS: Final = 1_000_000_000
_PAUSES_NS: Final = (2 * _SECOND_NS, 10 * _SECOND_NS, 60 * _SECOND_NS)
_REST_PER_COST: Final = 1000
"""A process that is expensive to examine, as one with 65,530 names of files is, takes no more than 0.1% of a core."""
_CAUSE_SHOWN: Final = 120
_LEAST_CPU_NS: Final = _SECOND_NS
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_Answer = TypeVar("_Answer")


class _Turn(NamedTuple):
    """When a process is read next, after how many reads."""

    due_ns: int
    reads: int


class _Cpu(NamedTuple):
    """A process's CPU time at one moment, and what it used up to then."""

    time_ns: int
    ticks: int
    use: CpuUse | None


class Census:
    """The Python processes under one /proc, as of the last reads.

    Args:
        proc_root: /proc, or a recorded one.
        user: whose processes are read; root reads all.
    """

    def __init__(
        self,
        proc_root: Path | str = "/proc",
        user: int | None = None,
    ) -> None:
        self._proc_root = str(proc_root)
        self._user = os.geteuid() if user is None else user
        self.processes: dict[int, Process] = {}
        self._turns: dict[int, _Turn] = {}
        self._queue: list[tuple[int, int]] = []  # (due, pid); one that its pid's turn does not know is void
        self._cpu: dict[ProcessKey, _Cpu] = {}
        self._threads: dict[ProcessKey, tuple[int, bool]] = {}
        self._versions: dict[ProcessKey, tuple[int, int] | None] = {}
        self._are_python: dict[ProcessKey, bool] = {}
        self._uptime_ticks: int | None = None
        self._silent: set[int] = set()  # that failed because they did not answer, which may pass
        self.failures: dict[int, str] = {}
        """Why processes could not be examined, by pid: one of them must not hide the others."""

    def update(self, pids: Set[int], now_ns: int) -> None:
        """Takes the pids there are now: forgets those that are gone, and reads again what has torch loaded."""
        for pid in self._turns.keys() - pids:
            del self._turns[pid]
            self.failures.pop(pid, None)
            self._silent.discard(pid)
            self.processes.pop(pid, None)
        for pid in pids - self._turns.keys():
            self._turns[pid] = _Turn(now_ns, 0)
            heapq.heappush(self._queue, (now_ns, pid))
        for pid, process in list(self.processes.items()):
            if process.has_torch:
                self._keep(pid, self._examine(pid, process))

    def insist(self, pids: Iterable[int]) -> None:
        """Looks at processes that other sources know of, whatever their owner and the name of their program."""
        for pid in pids:
            before = self.processes.get(pid)
            process = self._examine(pid, before)
            if process is None or before is not None or self._is_python(process):
                self._keep(pid, process)

    def inspect(self, now_ns: int, is_spent: Callable[[], bool] = lambda: False) -> bool:
        """Looks at those whose turn has come by `now_ns`; False where the time was spent before all were."""
        while self._queue and self._queue[0][0] <= now_ns:
            if is_spent():
                return False
            due_ns, pid = heapq.heappop(self._queue)
            turn = self._turns.get(pid)
            if turn is None or turn.due_ns != due_ns:
                continue
            began_ns = cpu_time_ns()
            self._look(pid)
            spent_ns = cpu_time_ns() - began_ns
            pause_ns = max(_PAUSES_NS[min(turn.reads, len(_PAUSES_NS) - 1)], _REST_PER_COST * spent_ns)
            self._turns[pid] = _Turn(now_ns + pause_ns, turn.reads + 1)
            heapq.heappush(self._queue, (now_ns + pause_ns, pid))
        return True

    def settle(self, now_ns: int) -> None:
        """Counts what each uses of the processors, and forgets what is known of those that are gone."""
        keys = {process.key for process in self.processes.values()}
        known: tuple[dict[ProcessKey, Any], ...] = (self._cpu, self._threads, self._versions, self._are_python)
        for remembered in known:
            for key in remembered.keys() - keys:
                del remembered[key]
        self._uptime_ticks = boot_ticks(self._proc_root, _TICKS_PER_SECOND)
        for process in self.processes.values():
            if process.has_torch:
                self._count_cpu(process, now_ns)

    def age_seconds(self, process: Process) -> float:
        """How long it has been running, as of the last `settle`."""
        return max(0, (self._uptime_ticks or 0) - process.stat.start_ticks) / _TICKS_PER_SECOND

    def cpu_use(self, process: Process) -> CpuUse | None:
        """The cores it uses, as of the last `settle`; None for one that has just started."""
        cpu = self._cpu.get(process.key)
        return cpu.use if cpu else None

    def has_training_threads(self, process: Process) -> bool:
        """Whether torch's own threads train in it; asked again only once it has computed for another second."""
        ticks, found = self._threads.get(process.key, (-_TICKS_PER_SECOND, False))
        if not found and process.stat.own_ticks - ticks >= _TICKS_PER_SECOND:
            found = self.asked(process.pid, lambda: has_training_threads(self._proc_root, process.pid), False)
            self._threads[process.key] = process.stat.own_ticks, found
        return found

    def torch_version(self, process: Process) -> tuple[int, int] | None:
        """The version of its torch, where that can be read."""
        if process.key not in self._versions and process.library is not None:
            library = process.library
            text = self.asked(process.pid, lambda: torch_version(self._proc_root, process.pid, library), None)
            found = _MINOR.match(text or "")
            self._versions[process.key] = (int(found[1]), int(found[2])) if found else None
        return self._versions.get(process.key)

    def _look(self, pid: int) -> None:
        before = self.processes.get(pid)
        uid = owner_of(self._proc_root, pid)
        if before is not None and self._are_python.get(before.key):
            return  # known by others, and read whenever they say so
        is_ours = uid is not None and self._user in (0, uid)
        if uid is None or not is_ours or not runs_python(self._proc_root, pid):
            self._keep(pid, None)
        else:
            self._keep(pid, self._examine(pid, before))

    def asked(self, pid: int, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """The answer to a question about one process, and `otherwise` where it cannot be had, which is noted."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever one process's files bring about ends here
            cause = f"{type(error).__name__}: {error}"[:_CAUSE_SHOWN]
            self.failures[pid] = f"examining process {pid} failed ({shown(os.fsencode(cause))})"
            return otherwise

    def _examine(self, pid: int, before: Process | None) -> Process | None:
        if pid in self._silent:
            self._silent.remove(pid)
            self.failures.pop(pid, None)

        def question() -> Process | None:
            try:
                return read_process(self._proc_root, pid, before)
            except TimeoutError:
                self._silent.add(pid)
                raise

        return self.asked(pid, question, None)

    def _keep(self, pid: int, process: Process | None) -> None:
        if process is None:
            self.processes.pop(pid, None)
        else:
            self.processes[pid] = process

    def _is_python(self, process: Process) -> bool:
        """The answer for a program whose name does not say so costs a read of 32 MB of it."""
        if process.key not in self._are_python:
            pid = process.pid
            self._are_python[process.key] = self.asked(pid, lambda: is_python(pid, Path(self._proc_root)), False)
        return self._are_python[process.key]

    def _count_cpu(self, process: Process, now_ns: int) -> None:
        before, ticks = self._cpu.get(process.key), process.stat.own_ticks
        if before is None:
            age_seconds = self.age_seconds(process)
            use = CpuUse(ticks / _TICKS_PER_SECOND / age_seconds, False) if age_seconds >= 1.0 else None
        elif now_ns - before.time_ns < _LEAST_CPU_NS:
            return
        else:
            seconds = (now_ns - before.time_ns) / _SECOND_NS
            use = CpuUse((ticks - before.ticks) / _TICKS_PER_SECOND / seconds, True)
        self._cpu[process.key] = _Cpu(now_ns, ticks, use)


class TreeTrainers:
    """Finds the training processes among given ones, again and again; what was seen before is cheap.

    Args:
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(self, proc_root: Path = PROC, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._census = Census(proc_root, user=0)
        self._clock = clock

    def among(self, pids: Iterable[int]) -> list[int]:
        """The pids of those that train, surest first. Workers, helpers and launchers are none of them."""
        return [verdict.process.pid for verdict in self.judged(pids)]

    def judged(self, pids: Iterable[int]) -> list[Verdict]:
        """Those that train, with what gives them away."""
        census, now_ns = self._census, self._clock()
        census.update(frozenset(pids), now_ns)
        census.inspect(now_ns)
        census.settle(now_ns)
        signs = Signs(
            cpu_use=census.cpu_use, has_training_threads=census.has_training_threads, torch_version=census.torch_version
        )
        return judge(census.processes, signs)
