"""Fixtures for every kind of test; its folder is on the path, so `import nvml_sim` works in all of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import nvml_sim
import pytest
from xdist.scheduler import LoadScopeScheduling


def pytest_sessionstart() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, and the programs under test would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Rows(LoadScopeScheduling):
    """Keeps a file's tests together, and all that start programs in one row: side by side they see each other's."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "integration" if "integration/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Rows:
    """Instead of a group mark: pytest-xdist 3.8 writes it into a name that pytest 9.2 no longer reads."""
    return Rows(config, log)


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
