"""The command that gpuwatch runs next to."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, threading
from gpuwatch.cli.signals import Child

ended = threading.Event()
with Child() as child:
    threading.Thread(target=ended.wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child.start(["sleep", "0.3"], os.environ)
    while (code := child.wait(None)) is None:
        pass
    print(code)
"""


def test_the_end_of_the_command_is_seen_although_another_thread_receives_the_signal() -> None:
    """The kernel chooses the thread; one that comes just before the wait for a lock is lost in the same way."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
