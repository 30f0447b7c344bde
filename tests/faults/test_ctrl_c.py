"""Ctrl-C at moments that a seed chooses, of the start, the run, a recording and the end of a dashboard."""

from __future__ import annotations

import random
import signal

from gpuwatch.recording.reader import Recording
from tests.faults.conftest import Place, SideBySide
from tests.faults.live import Dashboard, dashboard

WATTS = "500"
BEGUN = "begins"
PROGRAM = f"""
import os, sys
from gpuwatch.__main__ import main
os.write(1, b"{BEGUN}")
sys.exit(main())
"""
"""`python -m gpuwatch`, which says when it begins: what Python does before that is not gpuwatch's."""
CTRL_C = 128 + signal.SIGINT
FEW = 6
"""Moments of each test, of the 15 or 20 that it may choose."""


def interrupt(terminal: Dashboard, allowed: set[int]) -> None:
    """As a signal, twice: what is typed makes the kernel throw away what is written and not yet read.

    Among that would be the escapes that give the screen back, which a terminal that reads at once has got.
    """
    for _ in range(2):
        if terminal.process.poll() is None:
            terminal.send(signal.SIGINT)
    terminal.end(allowed, restored=b"\x1b[?1049h" in terminal.output)


def test_ctrl_c_at_any_moment_of_the_start_ends_it(side_by_side: SideBySide) -> None:
    def check(place: Place, seconds: float) -> None:
        with dashboard(place.folder, place.driver, program=PROGRAM) as terminal:
            terminal.read_until(BEGUN)
            terminal.go_on_for(seconds)
            interrupt(terminal, {CTRL_C})

    rng = random.Random(34)
    moments = [rng.uniform(0, 1.5) for _ in range(20)]
    side_by_side(check, {f"{seconds:.3f} s after its begin": seconds for seconds in moments}, few=FEW)


def test_ctrl_c_at_any_moment_of_a_recording_leaves_it_readable(side_by_side: SideBySide) -> None:
    def check(place: Place, seconds: float) -> None:
        with dashboard(place.folder, place.driver, program=PROGRAM, directory=place.folder) as terminal:
            terminal.read_until(WATTS)
            terminal.type(b"r")
            terminal.read_until("REC 0")
            terminal.go_on_for(seconds)
            terminal.type(b"\x03")
            terminal.end(CTRL_C)
        (path,) = place.folder.glob("*.gpuwatch")
        with Recording(path) as recording:
            assert recording.meta.ended
            list(recording.samples(recording.start_ns, recording.end_ns))

    rng = random.Random(35)
    moments = [rng.uniform(0, 1.5) for _ in range(15)]
    side_by_side(check, {f"{seconds:.3f} s into the recording": seconds for seconds in moments}, few=FEW)


def test_ctrl_c_at_any_moment_of_the_end_changes_nothing(side_by_side: SideBySide) -> None:
    def check(place: Place, seconds: float) -> None:
        with dashboard(place.folder, place.driver, program=PROGRAM) as terminal:
            terminal.read_until(WATTS)
            terminal.type(b"q")
            terminal.go_on_for(seconds)
            interrupt(terminal, {0, CTRL_C})

    rng = random.Random(36)
    moments = [rng.uniform(0, 0.5) for _ in range(15)]
    side_by_side(check, {f"{seconds:.3f} s after q": seconds for seconds in moments}, few=FEW)
