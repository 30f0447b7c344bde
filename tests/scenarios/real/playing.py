"""Runs one workload as a user would, and asks for a report on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.scenarios.real.workload import Workload

GPUWATCH = [sys.executable, "-m", "gpuwatch"]
WARM_SECONDS = 8.0
ROOT = Path(__file__).resolve().parents[3]

Report = dict[str, Any]


def reports(workload: Workload, *, attached: bool, times: int = 1) -> list[Report]:
    """The reports of monitors that looked at it one after the other."""
    with tempfile.TemporaryDirectory() as folder, training(workload, Path(folder), attached=attached) as process:
        time.sleep(WARM_SECONDS)
        return [_report(workload, process.pid) for _ in range(times)]


@contextmanager
def training(workload: Workload, folder: Path, *, attached: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The running workload, hooked or not, with all its processes gone after the block."""
    arguments = [str(folder / "meeting") if each == "MEETING" else each for each in workload.arguments]
    command = [*workload.around, sys.executable, str(workload.path), *arguments]
    process = subprocess.Popen(
        command if attached else [*GPUWATCH, "run", "--", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _report(workload: Workload, pid: int) -> Report:
    """Of the whole time; what is done to the trainer is done after some seconds of it."""
    command = [*GPUWATCH, "report", "--attach", str(pid), "--duration", f"{workload.seconds:g}", "--format", "json"]
    reporter = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    if workload.act is not None:
        time.sleep(WARM_SECONDS)
        workload.act(pid)
    output, _ = reporter.communicate()
    if reporter.returncode:
        raise RuntimeError(f"gpuwatch report ended with {reporter.returncode} on {workload.id}")
    report: Report = json.loads(output)
    return report
