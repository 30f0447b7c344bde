"""The end of a program and of all it started.

A loader's worker sees that its training is gone by a changed parent, asked for first after the fork: one forked in the
moment of the kill takes init for its parent and lives on (14 of 40 trainings left one), with the training's pipes open.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, AnyStr


def kill_group(process: subprocess.Popen[AnyStr]) -> None:
    """Kills a process that was started with `start_new_session`, and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def killed_after(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kills a process that was started with `start_new_session`, and what it started, behind the block."""
    try:
        yield process
    finally:
        kill_group(process)
        process.communicate()


@contextmanager
def ended_by_its_input(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Closes its standard input behind the block: the orderly way, by which its own children end too."""
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
