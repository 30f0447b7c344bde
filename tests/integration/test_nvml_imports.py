"""What the two processes load: the monitor nothing of NVML, the child nothing that is large."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("module", ["source", "process"])
def test_the_monitor_never_loads_nvml(module: str) -> None:
    assert not {"pynvml", "ctypes"} & modules_after(f"import gpuwatch.sources.nvml.{module}")


def test_the_child_loads_only_the_standard_library_and_pynvml() -> None:
    loaded = modules_after("import gpuwatch.sources.nvml.child, gpuwatch.sources.nvml.machine")
    names = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert names - {"__main__", "sitecustomize", "_distutils_hack"} <= {"gpuwatch", "pynvml"}
    heavy = {"argparse", "asyncio", "dataclasses", "inspect", "logging", "multiprocessing", "statistics", "unittest"}
    assert not heavy & loaded
    assert not {name for name in loaded if name.startswith("gpuwatch.") and "sources" not in name} - {
        "gpuwatch._version",
        "gpuwatch.metrics",
    }


def test_the_child_does_without_what_costs_it_megabytes() -> None:
    """typing, pathlib, and what ctypes.util brings along, which pynvml asks on Windows only."""
    statement = (
        "from gpuwatch.sources.nvml import child\nchild._import_pynvml()\nfrom gpuwatch.sources.nvml import machine"
    )
    loaded = modules_after(statement)
    assert "pynvml" in loaded
    assert not {"typing", "pathlib", "urllib.parse", "ctypes.util", "subprocess", "tempfile", "shutil"} & loaded
