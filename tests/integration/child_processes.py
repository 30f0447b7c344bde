"""Real processes to watch: each runs until its standard input is closed, and says "ready" first."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PREAMBLE = """
import ctypes, os, signal, sys, threading
def rename(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
def ready(*words):
    print("ready", *words, flush=True)
def until_closed():
    sys.stdin.buffer.read()
def end_with_parent():
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
"""

SLEEPER = "ready(); until_closed()"

BURNER = """
closed = threading.Event()
threading.Thread(target=lambda: (until_closed(), closed.set()), daemon=True).start()
ready()
while not closed.is_set():
    sum(range(10000))
"""


WAITING = "signal.pause()"
BUSY = "sum(range(10000))"

# The kernel holds the parent of a vfork in state D until its child execs or ends: the one uninterruptible wait
# that needs neither root nor a slow disk.
BLOCKED = "ctypes.CDLL(None).vfork() == 0 and (end_with_parent(), signal.pause())"

# Hashing lets the other threads run meanwhile, as a library's own threads do.
THREADED = """(
                hoard := bytearray(os.urandom(1 << 20)) * 20,
                digest := __import__("hashlib").sha256,
                [threading.Thread(target=lambda: [digest(hoard) for _ in iter(int, 1)]).start() for _ in range(3)],
                signal.pause(),
            )"""


def trainer(workers: int, doing: str = WAITING) -> str:
    """A process with children that are named as torch names DataLoader workers."""
    return f"""
pids = []
for number in range({workers}):
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        rename("pt_data_worker")
        while True:
            {doing}
    pids.append(pid)
ready(*pids)
until_closed()
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Runs `code`; gives the process and the numbers that it said with "ready"."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PREAMBLE + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], f"the child did not start: {words}"
        yield process, [int(word) for word in words[1:]]
    finally:
        process.stdin.close()
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout=20)  # the orderly way, by which its own children end too
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
