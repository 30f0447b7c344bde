"""Runs in a pid namespace of its own: reads a process, ends it, gives its pid to another one, and reads on.

Prints what the reader said at the last look: "gone", or the functions it saw. Exits 77 where the kernel does not let
the next pid be chosen.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
WAITING = "def {name}():\n    print('ready', flush=True)\n    sys.stdin.readline()\nimport sys\n{name}()"


def started(name: str) -> subprocess.Popen[str]:
    """A Python process that stands in a function of that name."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(name=name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def main() -> int:
    first = started("the_first")
    interpreter = attach(first.pid)
    stack = interpreter.main_stack()
    assert stack is not None
    assert "the_first" in [frame.code.name for frame in stack.frames]
    first.communicate("\n")
    try:
        LAST_PID.write_text(str(first.pid - 1))
    except OSError as error:
        print(error)
        return 77
    second = started("the_second")
    assert second.pid == first.pid, f"asked for pid {first.pid}, got {second.pid}"
    try:
        after = interpreter.main_stack()
        print([frame.code.name for frame in after.frames] if after else "torn")
    except CannotReadError as refusal:
        print(refusal.reason.value)
    again = attach(second.pid).main_stack()
    assert again is not None
    assert "the_second" in [frame.code.name for frame in again.frames]
    second.communicate("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
