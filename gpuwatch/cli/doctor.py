"""`gpuwatch doctor`: what gpuwatch can use on this machine, and how to fix what is missing."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from gpuwatch.cli.checks import Check, Detail, State, as_json, styled, usable
from gpuwatch.cli.doctor_training import Cores, training_checks
from gpuwatch.cli.output import ExitCode, check_stdout, is_terminal, write_stdout, write_styled
from gpuwatch.numbers import byte_size
from gpuwatch.procfs import read_all, read_once, shown
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError, Reason, access_to
from gpuwatch.sources.hook_link.rendezvous import (
    Processes,
    Rendezvous,
    RendezvousError,
    folders_elsewhere,
    names_its_own,
    rendezvous_path,
)
from gpuwatch.sources.host.identify import user_name
from gpuwatch.sources.host.machine import Cgroups, in_container, read_pressure, read_shared_memory, read_throttling
from gpuwatch.sources.host.source import affinity_core_count
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.source import NvmlAnswer, NvmlSurvey, survey
from gpuwatch.text import json_text

_SURVEY_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks what gpuwatch can use on this machine: the driver, the processes, torch, the system. Each shortcoming\n"
        "has its fix. Exit code 2: gpuwatch can measure nothing here."
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def doctor(arguments: argparse.Namespace) -> int:
    check_stdout()
    checks = run_checks()
    if arguments.json:
        write_stdout(json_text(as_json(checks), indent=2) + "\n")
    else:
        write_styled(styled(checks))
    return ExitCode.OK if usable(checks) else ExitCode.CANNOT_MEASURE


def run_checks() -> list[Check]:
    """All checks of this machine, in the order in which they are read: GPUs first, comfort last."""
    on_linux = sys.platform == "linux"
    checks = [check_system()]
    if on_linux:
        checks += [check_surroundings(), check_device_nodes()]
    found = survey(_SURVEY_SECONDS)
    checks += [check_driver(found), check_nvml_calls(found)]
    if on_linux:
        checks += [check_link(), check_permissions(), check_other_processes()]
    torch, cores = check_torch(gpu_nodes_present() or bool(found.answers)), read_cores()
    checks.append(torch)
    if on_linux:
        checks += [check_quota(cores), check_shared_memory(), check_pressure(), check_open_files()]
    checks.append(check_terminal(Terminal.of_this_process()))
    return [*checks, *training_checks(found, torch, cores)]


_SLOW_MICROSECONDS = 5000.0  # above this the NVML source asks less often
_CURES = {
    reasons.reason_of(reasons.NO_PERMISSION): "Ask as root (sudo gpuwatch), or start the container that owns the GPU "
    "as a whole.",
    reasons.reason_of(reasons.FUNCTION_NOT_FOUND): "Update NVIDIA's driver.",
    reasons.reason_of(reasons.NOT_IN_WHEEL): "Update the bindings: `pip install -U nvidia-ml-py`.",
}
_BASIC = ("utilization", "memory")

_PYTHON_SECONDS = 10.0

# torch/version.py is read as text: importing torch takes seconds, and may start a CUDA context.
_FIND_TORCH = r"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # a json.py in the current folder is not ours to run
import importlib.util, json, os, re
found = {"place": None, "version": None, "cuda": None, "hip": None}
spec = importlib.util.find_spec("torch")
if spec is not None:
    found["place"] = spec.origin or list(spec.submodule_search_locations)[0]
    try:
        with open(os.path.join(os.path.dirname(spec.origin or ""), "version.py"), errors="replace") as lines:
            text = lines.read()
    except OSError:
        text = ""
    match = re.search(r"^__version__\s*=\s*'([^']*)'", text, re.M)
    found["version"] = match.group(1) if match else None
    for key in ("cuda", "hip"):
        match = re.search(r"^%s\b[^=]*=\s*'([^']*)'" % key, text, re.M)
        found[key] = match.group(1) if match else None
json.dump(found, sys.stdout)
"""


def gpu_nodes_present() -> bool:
    """Whether there is any file through which a GPU could be reached."""
    return Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


def check_device_nodes(device_root: Path = Path("/dev"), proc_root: Path = Path("/proc")) -> Check:
    """Are they there, and may this user open them?"""
    gpus = sorted(node.name for node in device_root.glob("nvidia[0-9]*"))
    control, wsl = device_root / "nvidiactl", device_root / "dxg"
    details = {"gpus": len(gpus), "control": control.exists(), "dxg": wsl.exists()}
    result = partial(Check, "device-nodes", details=details)
    if wsl.exists() and not gpus:
        nodes, sentence = [wsl], f"{wsl} is there, through which WSL reaches the GPUs."
    elif gpus and control.exists():
        nodes = [control, *(device_root / gpu for gpu in gpus)]
        sentence = f"{', '.join(gpus)} and nvidiactl are there and may be opened."
    else:
        if in_container(proc_root):
            cure = "Start the container with the GPUs: `docker run --gpus all`, or Kubernetes limits `nvidia.com/gpu`."
        else:
            cure = "Install NVIDIA's driver, or load it with `sudo modprobe nvidia` or `sudo nvidia-smi`."
        missing = "/dev/nvidia0" if not gpus else "/dev/nvidiactl"
        return result(State.WARNING, f"There is no {missing}: no NVIDIA GPU is reachable.", cure)
    locked = next((node for node in nodes if not os.access(node, os.R_OK | os.W_OK)), None)
    if locked is None:
        return result(State.OK, sentence)
    return result(
        State.PROBLEM,
        f"{locked} may not be opened by this user, so its GPU cannot be read.",
        f"Join its group: `sudo usermod -aG {_group(locked)} $USER`, then log in again.",
    )


def _group(node: Path) -> str:
    try:
        return node.group()
    except (KeyError, OSError):
        return "video"


def check_driver(found: NvmlSurvey) -> Check:
    """Does the driver answer at all, and for how many GPUs?"""
    gpus = {answer.uuid for answer in found.answers}
    details = {"driver": found.driver_version, "cuda": found.cuda_version, "gpus": len(gpus)}
    result = partial(Check, "driver", details=details)
    versions = f"The driver {found.driver_version or 'of unknown version'} (CUDA {found.cuda_version or 'unknown'})"
    if found.complete and gpus:
        many = f"{len(gpus)} GPUs" if len(gpus) > 1 else "1 GPU"
        return result(State.OK, f"{versions} answers for {many}.")
    if found.complete:
        return result(
            State.PROBLEM,
            f"{versions} answers, but lists no GPU.",
            "Look for its error message with `sudo dmesg | grep NVRM`; in a container ask for the GPUs (`--gpus all`).",
        )
    state = State.WARNING if gpus else State.PROBLEM
    return result(state, found.reason or "The driver did not answer.")


def check_nvml_calls(found: NvmlSurvey) -> Check:
    """Which readings there are, on how many GPUs, and at what price."""
    by_reading: dict[tuple[str, str], list[NvmlAnswer]] = {}
    for answer in found.answers:
        by_reading.setdefault((answer.provides, answer.function), []).append(answer)
    if not by_reading:
        return Check("nvml-calls", State.UNKNOWN, "No reading was tried: no driver answers.")
    costs = [(answer.microseconds, answer.provides) for answer in found.answers if answer.microseconds is not None]
    answered = sum(all(answer.error is None for answer in answers) for answers in by_reading.values())
    slowest = max(costs, default=(0.0, ""))
    sentence = f"{answered} of {len(by_reading)} readings are provided by every GPU"
    if costs:
        mean = sum(cost for cost, _ in costs) / len(costs)
        sentence += f"; a call takes {mean:.0f} us on average, {slowest[0]:.0f} us for {slowest[1]}"
    cure, limited = _shortcoming(found.answers, slowest[0])
    return Check(
        "nvml-calls",
        State.WARNING if limited else State.OK,
        f"{sentence}.",
        cure,
        {"readings": len(by_reading), "answered": answered, "slowest_microseconds": slowest[0] if costs else None},
        (("us", "reading", "function", "not given because"), *(_row(key, by_reading[key]) for key in by_reading)),
    )


def _shortcoming(answers: Sequence[NvmlAnswer], slowest_microseconds: float) -> tuple[str | None, bool]:
    """(cure, whether it is a shortcoming): a reading that a GPU was never built for is none."""
    errors = {answer.error for answer in answers if answer.error}
    cures = [cure for error, cure in _CURES.items() if error in errors]
    if slowest_microseconds > _SLOW_MICROSECONDS:
        cures.append("The slow call does no harm: it is made only every 5 s.")
    if any(answer.provides in _BASIC and answer.error for answer in answers):
        cures.append("Start the training with `gpuwatch run`: its steps are measured without the driver's help.")
    return " ".join(cures) or None, bool(cures)


def _row(reading: tuple[str, str], answers: Sequence[NvmlAnswer]) -> tuple[str, ...]:
    tells, function = reading
    costs = [answer.microseconds for answer in answers if answer.microseconds is not None]
    refused = [answer for answer in answers if answer.error]
    why = "; ".join(sorted({answer.error for answer in refused if answer.error}))
    if refused and len(refused) < len(answers):
        why = f"GPU {', '.join(str(answer.index) for answer in refused)}: {why}"
    return f"{max(costs):.1f}" if costs else "-", tells, function, why


def check_torch(gpu_present: bool, interpreters: Sequence[str] | None = None) -> Check:
    """The torch of this interpreter, or of the `python` and `python3` on the PATH."""
    candidates = _interpreters() if interpreters is None else list(interpreters)
    torches = {interpreter: _torch_of(interpreter) for interpreter in candidates}
    found = {interpreter: torch for interpreter, torch in torches.items() if torch and torch["place"]}
    whole = {interpreter: torch for interpreter, torch in found.items() if torch["version"]}
    if not found:
        return Check(
            "torch",
            State.WARNING,
            f"No torch is found by {', '.join(map(_shown, candidates)) or 'any python'}; a training with another "
            "interpreter can still be watched.",
            "Activate the environment of the training, or `pip install torch` there.",
        )
    interpreter, torch = next(iter((whole or found).items()))
    result = partial(Check, "torch", details={"interpreter": interpreter, **torch})
    if not whole:
        return result(
            State.WARNING,
            f"The torch that {_shown(interpreter)} finds, {torch['place']}, is incomplete: its folder has no "
            "version.py.",
            "Install torch again there: `pip install --force-reinstall torch`, or remove what hides it.",
        )
    about = f"torch {torch['version']} is found by {_shown(interpreter)}"
    if torch["cuda"]:
        return result(State.OK, f"{about}, built for CUDA {torch['cuda']}.")
    if torch["hip"]:
        return result(
            State.WARNING,
            f"{about}, built for AMD GPUs (HIP {torch['hip']}), whose hardware gpuwatch does not read.",
            "Runs are still watched through the hook; for the hardware use `amd-smi`.",
        )
    if not gpu_present:
        return result(State.OK, f"{about}, built for the CPU only; no NVIDIA GPU is reachable here.")
    return result(
        State.WARNING,
        f"{about}, built for the CPU only: a training with it leaves every GPU idle.",
        "Install a CUDA build: https://pytorch.org/get-started/locally/.",
    )


def _interpreters() -> list[str]:
    on_path = (shutil.which(name) for name in ("python", "python3"))
    return list(dict.fromkeys([sys.executable, *(path for path in on_path if path)]))


def _torch_of(interpreter: str) -> dict[str, str | None] | None:
    try:
        run = subprocess.run(
            [interpreter, "-c", _FIND_TORCH],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PYTHON_SECONDS,
            check=True,
        )
        found = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):  # no python after all, or one that does not answer
        return None
    if not isinstance(found, dict):
        return None
    values = {key: found.get(key) for key in ("place", "version", "cuda", "hip")}
    return {key: shown(str(value).encode()) if value else None for key, value in values.items()}


def _shown(path: str) -> str:
    return shown(path.encode("utf-8", "surrogateescape"))


_RUN = "Start the training with `gpuwatch run`, which measures steps and waits without that permission"
_RECORD = "with `gpuwatch record -- COMMAND`, which may read what it starts"
_CAPABILITY = "start the container with `--cap-add SYS_PTRACE`"
_YAMA = "`sudo sysctl kernel.yama.ptrace_scope=0`"


def check_link(environment: Mapping[str, str] = os.environ) -> Check:
    """Can a monitor listen there? It is tried with a socket that is removed at once."""
    me = os.geteuid()
    path = rendezvous_path(environment, me)
    try:
        folder = Rendezvous.create(path, me)
    except RendezvousError as error:
        return _refused(path, str(error))
    try:
        name = f"doctor-{os.getpid()}-{time.monotonic_ns()}.sock"
        try:
            folder.listen(name, me).close()
        except RendezvousError as error:
            return _refused(path, str(error))
        folder.remove(name)
        processes = Processes(Path("/proc"))
        runs = sum(
            processes.is_alive(run.pid, run.start_ticks) and names_its_own(processes, folder, run.pid)
            for run in folder.presences()
        )
    finally:
        folder.close()
    there = {0: "no run with the hook is there now", 1: "1 run with the hook is there"}
    found = there.get(runs, f"{runs} runs with the hook are there")
    sentence = f"Training runs can connect to gpuwatch through {path}; {found}."
    elsewhere = folders_elsewhere(environment)
    if elsewhere:
        sentence = (
            f"{sentence[:-1]}; the folder of {' and '.join(elsewhere)} is not used: it is not on a local file system, "
            "and a file server that hangs would block a step."
        )
    return Check(
        "link",
        State.OK,
        sentence,
        None,
        {"folder": str(path), "runs": runs, "passed_over": " ".join(elsewhere) or None},
    )


def _refused(path: Path, why: str) -> Check:
    """The error's own cure stands behind its last semicolon."""
    cause, _, cure = why.rpartition("; ")
    return Check(
        "link",
        State.PROBLEM,
        f"Training runs cannot connect to gpuwatch: {cause or why}.",
        f"{cure[0].upper()}{cure[1:]}." if cause else "Set GPUWATCH_DIR to a folder of yours, for both sides.",
        {"folder": str(path), "runs": None},
    )


def check_permissions(proc_root: Path = Path("/proc"), my_uid: int | None = None) -> Check:
    """A matter of the user, and of whether /proc shows others' processes; for stacks see `other_processes`."""
    uid = os.geteuid() if my_uid is None else my_uid
    hidden = _hidepid(proc_root)
    result = partial(Check, "permissions", details={"uid": uid, "hidepid": hidden})
    whose = "Runs of all users" if uid == 0 else f"Runs of {user_name(uid)}"
    if hidden and uid != 0:
        return result(
            State.WARNING,
            f"{whose} can be watched; /proc hides other users' processes (hidepid={hidden}), so their use "
            "of the machine is not known.",
            "Run gpuwatch as root (sudo), or ask for the group named in the mount option gid= of /proc.",
        )
    return result(State.OK, f"{whose} can be watched.")


def _hidepid(proc_root: Path) -> str | None:
    """The mount option, None where processes are not hidden."""
    for line in (read_all(f"{proc_root}/self/mountinfo") or b"").split(b"\n"):
        before, _, after = line.partition(b" - ")
        fields = before.split()
        if len(fields) > 4 and fields[4] == b"/proc" and after.startswith(b"proc "):
            for option in after.rpartition(b" ")[2].split(b","):
                key, _, value = option.partition(b"=")
                if key == b"hidepid" and value not in (b"0", b"off"):
                    return value.decode("ascii", "replace")
    return None


def own_memory_problem() -> CannotReadError | None:
    """Reads this process itself, which every kernel allows: what fails then is the system call."""
    word = ctypes.create_string_buffer(b"gpuwatch")
    try:
        memory = Memory(os.getpid())
    except CannotReadError as error:
        return error
    try:
        memory.read(ctypes.addressof(word), len(word))
    except CannotReadError as error:
        return error
    except UnreadableAddressError:
        return CannotReadError(Reason.PLATFORM, "process_vm_readv returns wrong data")
    finally:
        memory.close()
    return None


def check_other_processes(
    proc_root: Path = Path("/proc"),
    my_uid: int | None = None,
    try_own_memory: Callable[[], CannotReadError | None] = own_memory_problem,
) -> Check:
    """May gpuwatch read the stacks of a training that it did not start?"""
    uid = os.geteuid() if my_uid is None else my_uid
    access = access_to(os.getpid(), proc_root)
    container = in_container(proc_root)
    problem = try_own_memory()
    details: dict[str, Detail] = {
        "ptrace_scope": access.yama,
        "cap_sys_ptrace": access.capable,
        "process_vm_readv": problem is None,
    }
    result = partial(Check, "other-processes", details=details)
    as_root = _CAPABILITY if container else "run gpuwatch with sudo"
    if problem is not None:
        sentence, cures = _without_the_call(problem, container)
    elif access.yama == 3:
        sentence = "No process may read another until the machine is rebooted (ptrace_scope=3)"
        cures = (_RUN,)
    elif access.capable:
        return result(State.OK, "The stacks of all runs can be read.")
    elif access.yama == 2:
        sentence = "Only processes with CAP_SYS_PTRACE may read the stacks of a run (ptrace_scope=2)"
        cures = (_RUN, as_root, _YAMA)
    elif access.yama == 1:
        sentence = "Only its parent or root may read the stacks of a run (ptrace_scope=1)"
        cures = (_RUN, _RECORD, as_root, _YAMA)
    elif uid == 0:
        sentence = "root has no CAP_SYS_PTRACE here, so only stacks of runs of root itself can be read"
        return result(State.OK, f"{sentence}.", f"For runs of other users {_CAPABILITY}.")
    else:
        return result(State.OK, "The stacks of your runs can be read.")
    return result(State.WARNING, f"{sentence}.", f"{', or '.join(cures)}.")


def _without_the_call(problem: CannotReadError, container: bool) -> tuple[str, tuple[str, ...]]:
    if problem.reason is not Reason.PERMISSION:
        return f"Stacks of runs cannot be read: {problem.sentence.rstrip('.')}", (_RUN,)
    sentence = "A seccomp filter forbids the system call process_vm_readv here"
    return sentence, (_RUN, _CAPABILITY) if container else (_RUN,)


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


def read_cores(
    proc_root: Path = Path("/proc"),
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    affinity_cores: Callable[[int], int | None] = affinity_core_count,
    cpu_count: int | None = None,
) -> Cores:
    """The cores of this machine, and what a training that is started here may use of them."""
    limit = Cgroups(proc_root, cgroup_root).cpu_limit("self")
    return Cores(cpu_count or os.cpu_count() or 1, affinity_cores(0), limit)


def check_quota(allowed: Cores) -> Check:
    """A quota below the core count makes `num_workers=os.cpu_count()` too many; PyTorch warns by affinity only."""
    cores, limit, usable = allowed.count, allowed.limit, allowed.by_affinity
    throttling = read_throttling(limit)
    details = {
        "cores": cores,
        "affinity_cores": allowed.affinity,
        "quota_cores": limit.quota_cores,
        "periods": throttling.periods,
        "throttled_periods": throttling.throttled_periods,
    }
    result = partial(Check, "cpu-quota", details=details)
    if limit.quota_cores is not None and limit.quota_cores < usable:
        stopped = ""
        if throttling.periods and throttling.throttled_periods is not None:
            share = 100.0 * throttling.throttled_periods / throttling.periods
            stopped = f", and stopped in {share:.0f}% of its periods so far"
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
            f"{usable} of {cores} cores may be used, unless there is a cgroup quota that cannot be seen from here.",
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
    sentence = f"/dev/shm is {byte_size(shm.total_bytes)}, {100 * used:.0f}% of it used"
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
        f"{name} {value:.0f}%"
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
    def of_this_process(cls) -> Terminal:
        """The one on standard input and output; size and colours are of a stream that is not redirected."""
        both = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        stream = next((s for s in (sys.stdout, sys.stderr, sys.stdin) if is_terminal(s)), None)
        size = os.get_terminal_size(stream.fileno()) if stream else os.terminal_size((0, 0))
        colored = stream is not None and not os.environ.get("NO_COLOR")
        colors = Console(file=stream, force_terminal=True).color_system if colored else None
        encoding = getattr(sys.stdout, "encoding", None) or ""
        return cls(both, os.environ.get("TERM", ""), size.columns, size.lines, colors, encoding)


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
