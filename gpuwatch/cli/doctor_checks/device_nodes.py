"""The device files through which every GPU library speaks to the driver."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.machine import in_container

_NAME = "device-nodes"


def gpu_nodes_present(device_root: Path = Path("/dev")) -> bool:
    """Whether there is any file through which a GPU could be reached."""
    return (device_root / "dxg").exists() or any(device_root.glob("nvidia[0-9]*"))


def check_device_nodes(device_root: Path = Path("/dev"), proc_root: Path = Path("/proc")) -> Check:
    """Are they there, and may this user open them?"""
    gpus = sorted(node.name for node in device_root.glob("nvidia[0-9]*"))
    control, wsl = device_root / "nvidiactl", device_root / "dxg"
    details = {"gpus": len(gpus), "control": control.exists(), "dxg": wsl.exists()}
    if wsl.exists() and not gpus:
        return _opened([wsl], f"{wsl} is there, through which WSL reaches the GPUs.", details)
    if not gpus or not control.exists():
        if in_container(proc_root):
            cure = "Start the container with the GPUs: `docker run --gpus all`, or Kubernetes limits `nvidia.com/gpu`."
        else:
            cure = "Install NVIDIA's driver, or load it with `sudo modprobe nvidia` or `sudo nvidia-smi`."
        missing = "/dev/nvidia0" if not gpus else "/dev/nvidiactl"
        return Check(_NAME, State.WARNING, f"There is no {missing}: no NVIDIA GPU is reachable.", cure, details)
    nodes = [control, *(device_root / gpu for gpu in gpus)]
    return _opened(nodes, f"{', '.join(gpus)} and nvidiactl are there and may be opened.", details)


def _opened(nodes: list[Path], sentence: str, details: dict[str, bool | int]) -> Check:
    locked = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if not locked:
        return Check(_NAME, State.OK, sentence, None, details)
    return Check(
        _NAME,
        State.PROBLEM,
        f"{locked[0]} may not be opened by this user, so its GPU cannot be read.",
        f"Join its group: `sudo usermod -aG {_group(locked[0])} $USER`, then log in again.",
        details,
    )


def _group(node: Path) -> str:
    try:
        return node.group()
    except (KeyError, OSError):
        return "video"
