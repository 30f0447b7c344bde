"""Starts the dashboard: refuses a terminal that cannot show it, and ends in time whatever happens."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboard.splash import hide_splash, show_splash, splash_taken_over
from gpuwatch.dashboard.terminal import UNFIT_EXIT_CODE, TerminalGuard, terminal_problem

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp

STOP_SECONDS = 0.7
"""What the sources get to end before the process leaves without them: quitting takes less than a second."""


def run_dashboard(
    monitor: Any,
    *,
    narrowed_to: str | None = None,
    origin_label: str = "LIVE",
    replays: bool = False,
    environ: Mapping[str, str] = os.environ,
    leave_now: Callable[[int], object] = os._exit,
) -> int:
    """Runs the dashboard over a monitor until the user quits, and stops the monitor.

    The monitor starts first and on a thread of its own, so that its child comes up while Textual is imported.

    Args:
        monitor: The monitor, not yet started.
        narrowed_to: What the view is narrowed to, for the top bar.
        origin_label: What the top bar says before the first snapshot: "LIVE", "SIMULATED starved".
        replays: Whether it plays a recording.
        environ: Asked for TERM.
        leave_now: Ends the process at once; a seam for tests.

    Returns:
        The exit code: 0, 130 after Ctrl-C, 128 and the signal's number after SIGTERM or SIGHUP, 2 where the
        terminal is unfit (one sentence on stderr says why).
    """
    problem = terminal_problem(environ)
    if problem is not None:
        sys.stderr.write(f"gpuwatch: {problem}\n")
        return UNFIT_EXIT_CODE
    asked = _AskedToLeave()
    guard = TerminalGuard(asked, leave_now)
    guard.start()
    show_splash(origin_label, environ)
    starter = threading.Thread(target=monitor.start, name="gpuwatch-start", daemon=True)
    starter.start()
    try:
        return asked.run(partial(_make_app, monitor, narrowed_to, origin_label, replays))
    finally:
        hide_splash()
        _end_recording(monitor)
        stopper = threading.Thread(target=_stop, args=(monitor, starter), name="gpuwatch-stop", daemon=True)
        stopper.start()
        stopper.join(STOP_SECONDS)
        guard.stop()


@contextmanager
def first_frame(label: str = "LIVE", environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Paints the first frame at once, for while the rest is imported; whatever comes, the screen is given back.

    Args:
        label: "LIVE" or "SIMULATED starved".
        environ: Asked for TERM.
    """
    if terminal_problem(environ) is not None:
        yield
        return
    before = {number: signal.signal(number, _exit_with) for number in (signal.SIGTERM, signal.SIGHUP)}
    show_splash(label, environ)
    try:
        yield
    finally:
        hide_splash()
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_with(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _AskedToLeave:
    """Passes a wish to end on to the app, also one that comes before there is an app."""

    def __init__(self) -> None:
        self._code: int | None = None
        self._app: DashboardApp | None = None

    def __call__(self, code: int) -> None:
        self._code = code
        if self._app is not None:
            self._app.leave(code)

    def run(self, make_app: Callable[[], DashboardApp]) -> int:
        """Runs the app; returns its exit code."""
        app = make_app()
        self._app = app
        if self._code is not None:
            return self._code
        splash_taken_over()
        result = app.run()
        return result if result is not None else app.return_code or 0


def _stop(monitor: Any, starter: threading.Thread) -> None:
    starter.join()
    monitor.stop()


def _end_recording(monitor: Any) -> None:
    """Ends a recording that is being written, and says where it lies: the screen that said so is gone."""
    if monitor.snapshot().recording is None:
        return
    ended = monitor.stop_recording()
    if ended is None:
        return
    from gpuwatch.dashboard.recording import recorded_words

    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(f"gpuwatch: {recorded_words(ended, 'recorded')}\n")


def _make_app(monitor: Any, narrowed_to: str | None, origin_label: str, replays: bool) -> DashboardApp:
    if replays:
        from gpuwatch.dashboard.replaying import ReplayApp

        return ReplayApp(monitor, narrowed_to=narrowed_to, origin_label=origin_label)
    from gpuwatch.dashboard.app import DashboardApp

    return DashboardApp(monitor, narrowed_to=narrowed_to, origin_label=origin_label)
