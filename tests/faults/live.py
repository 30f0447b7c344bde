"""The real `gpuwatch` over the simulated driver, in a terminal of its own or on pipes, and what it leaves behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nvml_sim import SimulatedDriver

from gpuwatch.foreign import answered
from tests.dashboard.pseudo_terminal import ROOT, PseudoTerminal

PATIENCE_SECONDS = 60.0
"""Only what hangs gets there."""
QUIT_SECONDS = 25.0
"""What q and signals may take, and what they leave behind may live. Alone it is under a second; a busy machine on which
six end at once needs several. Waiting for a driver that does not start takes 31 s, and one that hangs, for ever."""
DRAWN = "Findings"
"""On the main screen at any time, and not in the first frame, which comes before Textual."""
_MARK = "GPUWATCH_FAULT_TEST"
_NOT_INHERITED = ("GPUWATCH_TRACEBACK", "GITHUB_STEP_SUMMARY", "NO_COLOR", "COLUMNS", "LINES")


def environment(folder: Path, driver: SimulatedDriver | None, **more: str) -> dict[str, str]:
    """No training but the test's own, no configuration of the user's, and the simulated driver or none at all."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    own = {
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(runtime),
        "GPUWATCH_DIR": str(runtime / "gpuwatch"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
        _MARK: uuid.uuid4().hex,
    }
    if driver is None:
        libraries = folder / "no-driver"
        libraries.mkdir(exist_ok=True)
        (libraries / "libnvidia-ml.so.1").write_bytes(b"")
        own["LD_LIBRARY_PATH"] = str(libraries)
    else:
        own |= driver.env
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return kept | own | more


def left_behind(env: dict[str, str]) -> list[str]:
    """Processes of this environment that still run, as "pid: command"."""
    mark = f"{_MARK}={env[_MARK]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            # Other tests have processes here that never answer who reads them.
            if entry.name.isdigit() and mark in answered(int(entry.name), (entry / "environ").read_bytes):
                found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()!r}")
    return found


def nvml_children(pid: int) -> list[int]:
    """The NVML children of a monitor."""
    found = []
    for child in children_of(pid):
        with suppress(OSError):
            if b"gpuwatch.sources.nvml.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def wait_until(fits: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Polls every 20 ms, for what happens in another process."""
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


class Dashboard(PseudoTerminal):
    """`gpuwatch` in a terminal."""

    def __init__(self, env: dict[str, str], *arguments: str, **options: Any) -> None:
        self.env = env
        super().__init__("gpuwatch", *arguments, environment=env, **options)

    def go_on_for(self, seconds: float) -> None:
        """Reads what is written, as a terminal does, for so long or until the program has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.process.poll() is None:
            if select.select([self.master], [], [], min(left, 0.02))[0]:
                self.read_until_quiet(0)

    def end(self, expected: int | set[int], restored: bool = True) -> None:
        """Waits for the end and checks all that must be true of any end."""
        began = time.monotonic()
        code = self.wait()
        took = time.monotonic() - began
        self.check(code, expected, restored)
        assert took < QUIT_SECONDS, f"it took {took:.1f} s to end"

    def check(self, code: int, expected: int | set[int], restored: bool = True) -> None:
        """The exit code, the terminal, no traceback, no process left."""
        tail = self.output[-3000:]
        if code == -signal.SIGINT:
            # CPython ends itself by the signal where Ctrl-C struck in code made from text, as dataclasses are
            # (pythonrun.c, unhandled_keyboard_interrupt). A shell reports both as 130.
            code = 128 + signal.SIGINT
        assert code in ({expected} if isinstance(expected, int) else expected), (code, tail)
        assert b"Traceback" not in self.output and b"Error:" not in self.output, tail
        if restored:
            assert self.is_restored, tail
        wait_until(lambda: not left_behind(self.env), QUIT_SECONDS)

    def reads_of(self, wanted: str) -> None:
        """Forgets what came before, then reads until the text is drawn."""
        self.output = b""
        self.read_until(wanted)


@contextmanager
def dashboard(folder: Path, driver: SimulatedDriver | None, *arguments: str, **options: Any) -> Iterator[Dashboard]:
    """The dashboard, killed with all its children at the end of the block."""
    env = environment(folder, driver, **options.pop("more", {}))
    with Dashboard(env, *arguments, **options) as terminal:
        yield terminal
    for line in left_behind(env):
        with suppress(ProcessLookupError):
            os.kill(int(line.split(":")[0]), 9)


def command(folder: Path, driver: SimulatedDriver | None, *arguments: str, **options: Any) -> Any:
    """Runs a command to its end, on pipes; leaves no process behind."""
    env = environment(folder, driver, **options.pop("more", {}))
    before = options.pop("before", [])
    done = subprocess.run(
        [*before, sys.executable, "-m", "gpuwatch", *arguments],
        env=env,
        **(
            {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60} | options
        ),
    )
    wait_until(lambda: not left_behind(env), QUIT_SECONDS)
    return done
