"""Trainings as processes of their own: started, waited for by their log, and ended with all that they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 3.0
_TAIL = 1500


class TrainingFailedError(RuntimeError):
    """A training ended or came to nothing. Says how, with the end of what it printed."""


def environment(folder: Path) -> dict[str, str]:
    """This one's, with the repository importable, and a rendezvous and temporary files of our own.

    Cases share the files that they make: those lie beside their folders.
    """
    meeting = folder / "meet"
    meeting.mkdir(mode=0o700, exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "GPUWATCH_DIR": str(meeting),
        "TMPDIR": str(folder.parent),
    }


class Program:
    """One process in a group of its own, which dies with this one: a killed suite leaves nothing behind."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.output = folder / f"{time.monotonic_ns()}.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def tail(self) -> str:
        """The end of what it printed."""
        return self.output.read_text(errors="replace")[-_TAIL:].strip()

    def wait_for_lines(self, log: Path, lines: int, seconds: float) -> None:
        """Until the log has this many.

        Raises:
            TrainingFailedError: it ended first, or took too long.
        """
        until = time.monotonic() + seconds
        while _count(log) < lines:
            if self.process.poll() is not None:
                raise TrainingFailedError(f"it ended with {self.process.returncode} before step {lines}: {self.tail()}")
            if time.monotonic() > until:
                raise TrainingFailedError(f"no {lines} steps within {seconds:.0f} s: {self.tail()}")
            time.sleep(0.05)

    def wait(self, seconds: float) -> int:
        """Its exit code.

        Raises:
            TrainingFailedError: it took too long.
        """
        try:
            return self.process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            raise TrainingFailedError(f"not done within {seconds:.0f} s: {self.tail()}") from None

    def stop(self) -> None:
        """Ends it and all of its group."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Program]:
    """A program, ended at the end."""
    program = Program(command, folder, environment)
    try:
        yield program
    finally:
        program.stop()


def samples_per_second(log: Path, since: float, until: float) -> float | None:
    """From the steps that ended in the stretch of CLOCK_MONOTONIC; None where there are fewer than three."""
    rows = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 1]
    steps = [(float(at), float(samples)) for at, samples in rows if since <= float(at) <= until]
    if len(steps) < 3:
        return None
    return sum(samples for _, samples in steps[1:]) / (steps[-1][0] - steps[0][0])


def _count(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
