"""How far a trial has got, on stderr: a line per run, and on a terminal the run that is going on."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from gpuwatch.cli.output import say
from gpuwatch.text.escape import printable
from gpuwatch.text.numbers import grouped
from gpuwatch.trial.changes import Arm
from gpuwatch.trial.render import speed_words
from gpuwatch.trial.results import RunResult, Steady


class TrialProgress:
    """Narrates a trial."""

    def __init__(self) -> None:
        self._head = ""
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0

    def begins(self, arm: Arm, place: int, of: int) -> Callable[[Steady | None], None]:
        """A run begins; the look at the beginning has place 0."""
        self._head = f"a look at it {arm.label}, not counted" if place == 0 else f"run {place} of {of}: {arm.label}"
        self._show("starting")
        began = time.monotonic()

        def go_on(steady: Steady | None) -> None:
            self._show(f"not settled after {time.monotonic() - began:.0f} s" if steady is None else _speed(steady))

        return go_on

    def ended(self, run: RunResult) -> None:
        """The run has ended: its line stays."""
        self.clear()
        if run.failure is not None:
            if run.place >= 0:  # a look that fails ends the trial, which says why
                say(f"{self._head}: {run.failure.reason}")
        elif run.interrupted:
            say(f"{self._head}: stopped")
        elif run.steady is not None:
            say(f"{self._head}: {_speed(run.steady)}")

    def _show(self, what: str) -> None:
        if not self._is_terminal:
            return
        # A line that wraps could not be taken back. Its end is what changes, so the arm's name gives way.
        room = max(20, shutil.get_terminal_size().columns - len(what) - 4)
        head = self._head if len(self._head) <= room else f"{self._head[: room - 3]}..."
        line = printable(f"{head}: {what} ")
        self.clear()
        sys.stderr.write(line)
        sys.stderr.flush()
        self._shown = len(line)

    def clear(self) -> None:
        """Takes back what is on the terminal's line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            self._shown = 0


def _speed(steady: Steady) -> str:
    known = steady.samples_per_second
    rate = f"{speed_words(steady.steps_per_second)} steps/s" if known is None else f"{speed_words(known)} samples/s"
    return f"{rate} ({grouped(steady.steps)} steps in {steady.seconds:.1f} s)"
