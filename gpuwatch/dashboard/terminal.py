"""Whether this terminal can show the dashboard, and an end for the dashboard when the terminal ends.

Textual paints on stderr and reads stdin. Left alone it writes escapes into files, and with a terminal that is gone
without SIGHUP it spins at 30 % CPU (both measured).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

GRACE_SECONDS = 2.0
"""How long an asked-for end may take before the process leaves without it: a stalled terminal blocks writes."""

UNFIT_EXIT_CODE = 2

ENDING_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""What ends a program that does nothing about it. Batch systems warn with SIGUSR1; `kill -QUIT` is a usual try."""

_LEAVE = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m\x1b[?1049l\x1b[?25h"

MOST_COLUMNS, MOST_ROWS = 1000, 400
"""A terminal may claim 65 535 each way, and COLUMNS anything: that takes minutes to lay out. Screens have less."""


def terminal_problem(
    environ: Mapping[str, str] = os.environ,
    is_terminal: Callable[[int], bool] = os.isatty,
) -> str | None:
    """Why the dashboard cannot run here, as one sentence with the way out; None when it can."""
    for descriptor, name in ((0, "standard input"), (1, "standard output"), (2, "standard error")):
        if not is_terminal(descriptor):
            return f"the dashboard needs a terminal, but {name} is not one; use `gpuwatch watch` or `gpuwatch report`"
    if environ.get("TERM", "dumb") in ("dumb", ""):
        return (
            "the dashboard needs a terminal that can move its cursor, but TERM is "
            f"{environ.get('TERM') or 'not set'}; set TERM, or use `gpuwatch watch`"
        )
    return None


class TerminalGuard:
    """Ends the dashboard on the signals that end programs, and when the terminal disappears.

    Args:
        leave: Asks the app to end with an exit code; called from any thread.
        leave_now: Ends the process at once; a seam for tests.
    """

    def __init__(self, leave: Callable[[int], None], leave_now: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._leave_now = leave_now
        self._before: dict[signal.Signals, object] = {}
        self._attributes: list[object] | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Takes the signals and watches the terminal. To be called on the main thread."""
        try:
            self._attributes = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
        except (termios.error, ValueError):
            self._attributes = None
        for number in ENDING_SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        threading.Thread(target=self._watch_terminal, name="gpuwatch-terminal", daemon=True).start()

    def stop(self) -> None:
        """Gives the signals back."""
        self._ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end(128 + number)

    def _end(self, code: int) -> None:
        """Asks first; a main thread that hangs in a write to a dead terminal is not waited for."""
        threading.Thread(target=self._end_hard, args=(code,), name="gpuwatch-exit", daemon=True).start()
        self._leave(code)

    def _end_hard(self, code: int) -> None:
        if self._ended.wait(GRACE_SECONDS):
            return
        if self._attributes is not None and sys.__stdin__ is not None:
            try:
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)  # type: ignore[arg-type]
            except (termios.error, ValueError):
                self._attributes = None
        with suppress(OSError):
            if select.select([], [2], [], 0)[1]:  # a terminal that takes no output is not waited for
                os.write(2, _LEAVE)
        self._leave_now(code)

    def _watch_terminal(self) -> None:
        """Sleeps until the terminal hangs up: poll reports that even when asked for nothing."""
        if sys.__stdin__ is None:
            return
        poll = select.poll()
        poll.register(sys.__stdin__.fileno(), 0)
        while not self._ended.is_set():
            if poll.poll() and not self._ended.is_set():
                self._end(128 + signal.SIGHUP)
                return
