"""Starts the gpuwatch command in processes that see neither a GPU nor somebody else's training."""

from __future__ import annotations

import os
import pkgutil
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuwatch.diagnosis import rules
from tests.integration.forked_python import ForkedPython

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120  # only a command that hangs gets there

_NOT_INHERITED = ("GPUWATCH_TRACEBACK", "GITHUB_STEP_SUMMARY")


def lonely_environment(folder: Path, **more: str) -> dict[str, str]:
    """No hooked run: the rendezvous is an own folder. No GPU: the first libnvidia-ml.so.1 is none. No user's config.

    The folder is named: a monitor without a named one goes to all in which trainers wait, those of other tests too.
    """
    libraries = folder / "libraries"
    libraries.mkdir(exist_ok=True)
    (libraries / "libnvidia-ml.so.1").write_bytes(b"")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return (
        kept
        | {
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(runtime),
            "GPUWATCH_DIR": str(runtime / "gpuwatch"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "LD_LIBRARY_PATH": str(libraries),
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        | more
    )


class ForkedCommand(ForkedPython):
    """A `subprocess.Popen` of [sys.executable, "-m", "gpuwatch", *arguments], forked from one with its modules."""

    modules = (
        *(f"gpuwatch.cli.{name}" for name in ("dispatch", "config", "session", "report", "record")),
        *(module.name for module in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}.")),
    )


def gpuwatch(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    timeout: float = PATIENCE_SECONDS,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, without a terminal; with an environment of its own, which Python may read, afresh."""
    command = [sys.executable, "-m", "gpuwatch", *arguments]
    process = (subprocess.Popen if environment else ForkedCommand)(
        command,
        env=lonely_environment(folder, **(environment or {})),
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
    )
    with process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


WITHOUT_SOURCES = """\
import sys
from gpuwatch.__main__ import main
from gpuwatch.cli import session
from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin
session.live_monitor = lambda **_: Monitor([], origin=Origin("live", "LIVE"), clock=SystemClock())
sys.exit(main(sys.argv[1:]))
"""


def with_nothing_to_see(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command whose monitor has no source: on a real machine a GPU or another user's run may be about."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SOURCES, *arguments],
        env=lonely_environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@contextmanager
def waiting_python() -> Iterator[subprocess.Popen[bytes]]:
    """A process to attach to, which runs Python by then; closing its stdin ends it."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


class OnTerminal:
    """A command whose stderr is a terminal and whose stdout is a pipe."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._main, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch", *arguments],
            env=lonely_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=side,
        )
        os.close(side)
        self._read = b""

    @property
    def shown(self) -> str:
        """What is on the terminal so far: a look at it may end amid a character or an escape sequence."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._read.decode(errors="ignore"))

    def wait_for(self, text: str) -> None:
        """Reads the terminal until the text is on it."""
        while text not in self.shown:
            ready, _, _ = select.select([self._main], [], [], PATIENCE_SECONDS)
            assert ready, f"{text!r} never came, only {self.shown!r}"
            self._read += os.read(self._main, 4096)

    def end_with(self, number: signal.Signals) -> tuple[str, int]:
        """Sends a signal; returns stdout and the exit code."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        os.close(self._main)
        return out.decode(), self.process.returncode
