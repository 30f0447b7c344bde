"""The parts of a machine that the doctor looks at, one file each."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpuwatch.cli.doctor_checks.check import Check
from gpuwatch.cli.doctor_checks.device_nodes import check_device_nodes, gpu_nodes_present
from gpuwatch.cli.doctor_checks.open_files import check_open_files
from gpuwatch.cli.doctor_checks.permissions import check_permissions
from gpuwatch.cli.doctor_checks.pressure import check_pressure
from gpuwatch.cli.doctor_checks.quota import check_quota
from gpuwatch.cli.doctor_checks.shared_memory import check_shared_memory
from gpuwatch.cli.doctor_checks.surroundings import check_surroundings
from gpuwatch.cli.doctor_checks.system import check_system
from gpuwatch.cli.doctor_checks.terminal import Terminal, check_terminal
from gpuwatch.cli.doctor_checks.torch_found import check_torch


def run_checks() -> list[Check]:
    """All checks of this machine, in the order in which they are read: GPUs first, comfort last."""
    everywhere: list[Callable[[], Check]] = [
        check_system,
        lambda: check_torch(gpu_nodes_present()),
        lambda: check_terminal(Terminal.of_this_process()),
    ]
    on_linux: list[Callable[[], Check]] = [
        check_system,
        check_surroundings,
        check_device_nodes,
        check_permissions,
        lambda: check_torch(gpu_nodes_present()),
        check_quota,
        check_shared_memory,
        check_pressure,
        check_open_files,
        lambda: check_terminal(Terminal.of_this_process()),
    ]
    return [check() for check in (on_linux if sys.platform == "linux" else everywhere)]
