"""The parts of a machine that the doctor looks at, one file each."""

from __future__ import annotations

import sys

from gpuwatch.cli.doctor_checks.check import Check
from gpuwatch.cli.doctor_checks.device_nodes import check_device_nodes, gpu_nodes_present
from gpuwatch.cli.doctor_checks.driver import check_driver, check_nvml_calls
from gpuwatch.cli.doctor_checks.link import check_link
from gpuwatch.cli.doctor_checks.open_files import check_open_files
from gpuwatch.cli.doctor_checks.other_processes import check_other_processes
from gpuwatch.cli.doctor_checks.permissions import check_permissions
from gpuwatch.cli.doctor_checks.pressure import check_pressure
from gpuwatch.cli.doctor_checks.quota import check_quota
from gpuwatch.cli.doctor_checks.shared_memory import check_shared_memory
from gpuwatch.cli.doctor_checks.surroundings import check_surroundings
from gpuwatch.cli.doctor_checks.system import check_system
from gpuwatch.cli.doctor_checks.terminal import Terminal, check_terminal
from gpuwatch.cli.doctor_checks.torch_found import check_torch
from gpuwatch.sources.nvml.process import survey

_SURVEY_SECONDS = 10.0


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
    checks.append(check_torch(gpu_nodes_present() or bool(found.answers)))
    if on_linux:
        checks += [check_quota(), check_shared_memory(), check_pressure(), check_open_files()]
    return [*checks, check_terminal(Terminal.of_this_process())]
