"""The main thread is told from threads that are being started, which bear its id at first."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.loader_watch import attached, running

STARTING = """
import threading, time
while True:
    for thread in [threading.Thread(target=time.sleep, args=(0.002,)) for _ in range(4)]:
        thread.start()
"""
LOOKS = 3000


def test_a_thread_that_starts_is_never_taken_for_the_main_one(tmp_path: Path) -> None:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    roots: set[str] = set()
    with running([sys.executable, script]) as process:
        interpreter = attached(process)
        for _ in range(LOOKS):
            interpreter._main = None  # as after a torn look: the main thread is looked up again
            stack = interpreter.main_stack()
            if stack is not None:
                roots.add(stack.frames[-1].code.name)
        interpreter.close()
    assert "_bootstrap" not in roots
    assert "<module>" in roots
