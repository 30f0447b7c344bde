"""Fixtures for every kind of test; its folder is on the path, so `import nvml_sim` works in all of them."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import nvml_sim
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# An example that takes long on a busy machine is no fault of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Else each of some hundred programs here would compile gpuwatch again, 0.2 s of a core, and each session the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).parents[1]
_WATCHING = re.compile(r"integration/test_(attach|discovery|host_|inject|monitor|reader_hostile|reader_silent)")


def pytest_sessionstart() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, nohup hangups; the programs here would inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.pop("PYTHONUNBUFFERED", None)  # it hides what a program leaves in its buffers when it ends
    if os.environ.get("GPUWATCH_TEST_INSTALLED"):
        _require_the_installed_package()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses tests named by an address, of which xdist's workers collect different ones.

    All tests and what they import are there to stay: without them a full collection takes 1 ms and not 350.
    """
    named_by_address = [item.nodeid for item in session.items if " at 0x" in item.nodeid]
    if named_by_address:
        raise pytest.UsageError(f"give ids to the parameters of {named_by_address[0]}")
    gc.collect()
    gc.freeze()


def _require_the_installed_package() -> None:
    """Refuses to test any gpuwatch but the installed one, here and in the programs that tests start from this folder.

    A checkout hides what only breaks once gpuwatch is installed, such as paths that hold "site-packages".
    """
    installed = Path(sysconfig.get_path("purelib"), "gpuwatch", "__init__.py")
    script = "import gpuwatch; print(gpuwatch.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=ROOT, env=environment).strip()
    imported = importlib.import_module("gpuwatch").__file__
    if {imported, started} != {str(installed)}:
        pytest.exit(f"tested would be {imported} and {started}, not the installed {installed}", returncode=4)


class Rows(LoadScopeScheduling):
    """Keeps a file's tests together, and in one row those whose monitors go over all processes of this machine.

    These have targets that keep who reads them waiting, and count what runs beside their own. All other programs meet
    in folders of their own, are found by a mark in their environment, or are read by their pid: each file is a row.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "watching" if _WATCHING.search(file) else file


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
