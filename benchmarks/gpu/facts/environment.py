"""Versions, and what the machine offers."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import resource
import shutil
import time
from pathlib import Path

from benchmarks.gpu.facts.answer import Answer, ask, attempt

PACKAGES = ("torch", "torchvision", "pillow", "opencv-python-headless", "numpy", "matplotlib", "psutil", "nvidia-ml-py")
GIB = 1 << 30


def answer(args: argparse.Namespace) -> Answer:
    found: Answer = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "user": os.getuid(),
        "yama": attempt(lambda: int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())),
        "pressure": attempt(lambda: Path("/proc/pressure/cpu").read_text().split("\n")[0]),
        "children_files": Path(f"/proc/self/task/{os.getpid()}/children").exists(),
        "shm_gib": attempt(lambda: round(shutil.disk_usage("/dev/shm").free / GIB, 1)),
        "temp_gib": attempt(lambda: round(shutil.disk_usage("/tmp").free / GIB, 1)),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "packages": {name: attempt(lambda name=name: importlib.metadata.version(name)) for name in PACKAGES},
    }
    return found | attempted_torch(args.device)


def attempted_torch(device: str) -> Answer:
    began = time.monotonic()
    try:
        import torch
    except ImportError as error:
        return {"torch": f"refused: {error}"}
    found: Answer = {"torch": torch.__version__, "torch_import_seconds": round(time.monotonic() - began, 2)}
    if device == "cuda":
        began = time.monotonic()
        found["gpu"] = attempt(lambda: torch.cuda.get_device_name(0))
        attempt(lambda: torch.zeros(1, device="cuda").item())
        found["context_seconds"] = round(time.monotonic() - began, 2)
        found["cuda"] = torch.version.cuda
        found["uuid"] = attempt(lambda: str(torch.cuda.get_device_properties(0).uuid))
        found["cudnn"] = attempt(torch.backends.cudnn.version)
    return found


if __name__ == "__main__":
    raise SystemExit(ask(__doc__, answer))
