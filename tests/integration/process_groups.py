"""The end of a program and of all it started.

A loader's worker sees that its training is gone by a changed parent, asked for first after the fork: one forked in the
moment of the kill takes init for its parent and lives on (14 of 40 trainings left one), with the training's pipes open.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import AnyStr


def kill_group(process: subprocess.Popen[AnyStr]) -> None:
    """Kills a process that was started with `start_new_session`, and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
