"""NVML's return codes in words: why one value is missing, and why nothing works at all."""

from __future__ import annotations

import os

from gpuwatch.metrics import IMPOSSIBLE

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 18
UNKNOWN = 999

# Our own, outside NVML's range.
NOT_IN_WHEEL = -1  # the installed nvidia-ml-py does not know the function
AVOIDED = -2  # it hung or crashed an earlier child
NOT_SENSIBLE = -3  # the driver's value is a sentinel or out of range
NOT_YET = -4  # needs a second reading

PERMANENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 22, 25, 26, NOT_IN_WHEEL})
"""Asking again in this process gives the same answer, at the price of a call (dcgm#599)."""

RELUCTANT = frozenset({INVALID_ARGUMENT, NO_PERMISSION})
"""May change, but not from one second to the next: asked again in the rare lane."""

_WORDS = {
    UNINITIALIZED: "the driver has been unloaded",
    INVALID_ARGUMENT: "the driver does not accept the question",
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission",
    5: "already initialised",
    NOT_FOUND: "the driver has no data",
    INSUFFICIENT_SIZE: "the driver's answer is too long",
    8: "the GPU's external power cable is missing",
    DRIVER_NOT_LOADED: "the driver is not loaded",
    TIMEOUT: "the driver timed out",
    11: "the GPU's interrupts fail",
    LIBRARY_NOT_FOUND: "the driver library is missing",
    FUNCTION_NOT_FOUND: "this driver is too old for it",
    14: "the GPU's infoROM is corrupted",
    GPU_IS_LOST: "the GPU is lost (fallen off the bus or reset)",
    16: "the GPU needs a reset",
    17: "the operating system blocks it",
    VERSION_MISMATCH: "driver and driver library have different versions",
    19: "the GPU is in use by another client",
    20: "the driver is out of memory",
    21: "the driver has no data",
    22: "not supported on this vGPU",
    23: "the driver is out of resources",
    24: "the GPU does not support this frequency",
    25: "the driver and nvidia-ml-py disagree about its format",
    26: "this driver no longer offers it",
    27: "the GPU is not ready",
    28: "the GPU is gone",
    29: "the GPU is in an invalid state",
    30: "the GPU does not support this reset",
    UNKNOWN: "the driver says 'Unknown Error'",
    NOT_IN_WHEEL: "the installed nvidia-ml-py is too old for it",
    AVOIDED: "not read for now: this call hung or crashed the driver library",
    NOT_SENSIBLE: IMPOSSIBLE,
    NOT_YET: "needs a second reading",
}


def reason_of(code: int) -> str:
    """Why a value is missing, in words that fit behind "memory: "."""
    return _WORDS.get(code) or f"NVML error {code}"


def in_container() -> bool:
    """Whether this is a container of the usual kinds; only used to word a cure."""
    return any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"))


def in_wsl() -> bool:
    """Whether this is Linux under Windows, where the driver lives outside."""
    try:
        return "microsoft" in _text("/proc/version").lower()
    except OSError:
        return False


def _kernel_driver() -> str:
    try:
        first = _text("/proc/driver/nvidia/version").splitlines()[0]
    except (OSError, IndexError):
        return ""
    return f" (loaded: {first.split(':')[-1].strip()})"


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def init_sentence(code: int) -> str:
    """Why NVML does not start, and what to do, in one sentence."""
    if code == LIBRARY_NOT_FOUND:
        if in_wsl():
            return (
                "libnvidia-ml.so.1 was not found: install the NVIDIA driver on Windows; WSL then has it in "
                "/usr/lib/wsl/lib."
            )
        if in_container():
            return (
                "libnvidia-ml.so.1 was not found: start the container with the NVIDIA Container Toolkit "
                "(docker run --gpus all)."
            )
        return (
            "libnvidia-ml.so.1 was not found: install the NVIDIA driver (the CUDA toolkit alone does not contain it)."
        )
    if code == DRIVER_NOT_LOADED:
        return (
            "The NVIDIA kernel driver is not loaded: try `sudo modprobe nvidia`, and `dmesg | grep NVRM` if it fails."
        )
    if code == VERSION_MISMATCH:
        return (
            f"The NVIDIA driver library and the loaded kernel driver{_kernel_driver()} have different versions, "
            "as after an update without a restart: reboot, or unload and reload the nvidia kernel modules."
        )
    if code == NO_PERMISSION:
        return (
            "No permission to use /dev/nvidia*: join the group that owns these files, or in a container pass the "
            "devices in (docker run --gpus all)."
        )
    if code == UNKNOWN:
        place = "in a container" if in_container() else "(if this is a container:"
        end = "" if in_container() else ")"
        return (
            f"NVML answers 'Unknown Error' to every call: {place} the host's `systemctl daemon-reload` takes the GPU "
            f"away; restart the container, and use the cgroupfs driver or `nvidia-ctk system "
            f"create-dev-char-symlinks` on the host so that it stays{end}; else look at `dmesg | grep NVRM`."
        )
    if code == GPU_IS_LOST:
        return "All GPUs are lost: look at `dmesg | grep -i xid`; usually the machine has to be restarted."
    if code == NOT_IN_WHEEL:
        return "The installed `pynvml` module is not NVIDIA's: pip uninstall pynvml, then pip install nvidia-ml-py."
    return f"NVML does not start: {reason_of(code)} (error {code}); nvidia-smi should say the same."
