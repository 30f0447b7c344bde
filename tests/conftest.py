"""Fixtures for every kind of test; its folder is on the path, so `import nvml_sim` works in all of them."""

from __future__ import annotations

import signal
from pathlib import Path

import nvml_sim
import pytest


def pytest_sessionstart() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, and the programs under test would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a file's tests together, and all that start processes in one row: side by side they see each other's."""
    for item in items:
        place = item.path.relative_to(Path(__file__).parent)
        item.add_marker(pytest.mark.xdist_group("integration" if place.parts[0] == "integration" else str(place)))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the simulated libnvidia-ml.so.1, compiled once per session."""
    if nvml_sim.compiler() is None:
        pytest.skip("the simulated NVIDIA driver needs a C compiler: apt-get install gcc libc6-dev")
    return nvml_sim.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def simulated_driver(tmp_path: Path, nvml_library: Path) -> nvml_sim.SimulatedDriver:
    """One machine with a simulated H100; `write(gpus=...)` changes it while programs run."""
    return nvml_sim.SimulatedDriver(tmp_path, nvml_library)
