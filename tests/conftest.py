"""Fixtures for every kind of test; its folder is on the path, so `import nvml_sim` works in all of them."""

from __future__ import annotations

from pathlib import Path

import nvml_sim
import pytest


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the simulated libnvidia-ml.so.1, compiled once per session."""
    return nvml_sim.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def simulated_driver(tmp_path: Path, nvml_library: Path) -> nvml_sim.SimulatedDriver:
    """One machine with a simulated H100; `write(gpus=...)` changes it while programs run."""
    return nvml_sim.SimulatedDriver(tmp_path, nvml_library)
