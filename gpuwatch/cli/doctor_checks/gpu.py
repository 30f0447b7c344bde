"""The GPUs: their device files, NVIDIA's driver, what each of its answers costs, and the torch that would use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpuwatch.cli.doctor_checks import Check, State
from gpuwatch.procfs import shown
from gpuwatch.sources.host.machine import in_container
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.process import NvmlAnswer, NvmlSurvey

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


def gpu_nodes_present(device_root: Path = Path("/dev")) -> bool:
    """Whether there is any file through which a GPU could be reached."""
    return (device_root / "dxg").exists() or any(device_root.glob("nvidia[0-9]*"))


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
        return Check("nvml-calls", State.UNKNOWN, "No reading could be tried.")
    costs = [(answer.microseconds, answer.provides) for answer in found.answers if answer.microseconds is not None]
    answered = sum(all(answer.error is None for answer in answers) for answers in by_reading.values())
    slowest = max(costs, default=(0.0, ""))
    sentence = f"{answered} of {len(by_reading)} readings are given by every GPU"
    if costs:
        mean = sum(cost for cost, _ in costs) / len(costs)
        sentence += f"; a call costs {mean:.0f} us in the mean, {slowest[0]:.0f} us for {slowest[1]}"
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
            "interpreter can be watched all the same.",
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
        return result(State.OK, f"{about}, built for the CPU only, as this machine is.")
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
