"""What a Python process is by its name and command line: a launcher, a helper, a worker, or none of these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum

from gpuwatch.sources.host.workers import WORKER_NAME

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
_HELPER_CODE = ("from multiprocessing.resource_tracker import", "from multiprocessing.semaphore_tracker import")
_FORKSERVER_CODE = "from multiprocessing.forkserver import"
_SPAWN_CODE = "from multiprocessing.spawn import"
_COMPILE_WORKER = "torch/_inductor/compile_worker"
_NOTEBOOK_MODULES = ("ipykernel", "ipykernel_launcher", "colab_kernel_launcher")
_OPTIONS_WITH_VALUE = frozenset("WX")


class Role(Enum):
    """What a Python process does for others; `PROGRAM` is everything that stands for itself."""

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
        return Role.NOTEBOOK if _is_within(module, _NOTEBOOK_MODULES) else Role.PROGRAM
    if _COMPILE_WORKER in script:
        return Role.HELPER
    program = os.path.basename(script)  # noqa: PTH119 - another process's text, not a path of ours
    if program in _LAUNCHER_PROGRAMS:
        return Role.LAUNCHER
    if program == "gpuwatch" or script.endswith(("/gpuwatch/__main__.py", "/gpuwatch/sources/nvml/child.py")):
        return Role.HELPER
    return Role.NOTEBOOK if program.removesuffix(".py") in _NOTEBOOK_MODULES else Role.PROGRAM


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
