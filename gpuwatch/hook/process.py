"""Who this process is: the facts that hold from its start to its end, and what it hands on to its workers."""

from __future__ import annotations

import _io
import os
import posix
import sys
from typing import Any, Dict, Optional

from .version import VERSION

_ARGUMENTS = 64
_SPAWNED = b"--multiprocessing-fork"  # the mark of a process that multiprocessing spawned
_TEXT = 512
_LOADER = "gpuwatch_loader"
_DEBUG_SWITCHES = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_USE_CUDA_DSA",
    "TORCH_DISTRIBUTED_DEBUG",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)

_facts: Dict[str, Any] = {}


def facts() -> Dict[str, Any]:
    """pid, start, command, folder and versions, read once."""
    if not _facts:
        with _io.open("/proc/self/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
        if _SPAWNED in words:  # multiprocessing hands the arguments of its program on in sys.argv alone
            words = [words[0], *(os.fsencode(word) for word in sys.argv)]
        try:
            folder: Optional[str] = posix.getcwd()
        except OSError:
            folder = None  # it was removed under the process
        _facts.update(
            pid=posix.getpid(),
            start_ticks=start_ticks("self"),
            command=[word[:_TEXT].decode("utf-8", "backslashreplace") for word in words[:_ARGUMENTS]],
            cwd=folder,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            hook=VERSION,
            env={name: os.environ[name][:_TEXT] for name in _DEBUG_SWITCHES if name in os.environ},
        )
    return _facts


def presence() -> Dict[str, Any]:
    """The content of the presence file; the namespace tells apart containers in which all are pid 1."""
    try:
        namespace: Optional[int] = posix.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = None
    process = facts()
    content = {key: process[key] for key in ("pid", "start_ticks", "command", "cwd")}
    return {"version": 1, **content, "pid_ns": namespace}


def start_ticks(pid: object) -> int:
    """When a process started, in clock ticks after boot: with the pid, its identity."""
    with _io.open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def start_workers_of(loader: int) -> None:
    """The processes started from here on are workers of this loader; of none that is known where it is 0."""
    if loader:
        _handed_on()[_LOADER] = loader
    else:
        _handed_on().pop(_LOADER, None)


def take_loader() -> Optional[int]:
    """The loader whose worker this process was started as, once: what this one starts in turn is for no loader."""
    loader: Optional[int] = _handed_on().pop(_LOADER, None)
    return loader


def _handed_on() -> Dict[str, Any]:
    """What multiprocessing hands from this process on to those it starts, a dictionary that is pickled with them."""
    config: Dict[str, Any] = sys.modules["multiprocessing.process"]._current_process._config
    return config


def forget() -> None:
    """In the child of a fork: another pid, another start."""
    _facts.clear()
