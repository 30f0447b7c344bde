"""Starts the dashboard: refuses a terminal that cannot show it, and ends in time whatever happens."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboard.terminal import UNFIT_EXIT_CODE, TerminalGuard, terminal_problem

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp
    from gpuwatch.dashboard.panels.finding_page import EditDiff

STOP_SECONDS = 0.7
"""What the sources get to end before the process leaves without them: quitting takes less than a second."""


def run_dashboard(
    monitor: Any,
    *,
    narrowed_to: str | None = None,
    origin_label: str = "LIVE",
    edit_diff: EditDiff | None = None,
    environ: Mapping[str, str] = os.environ,
    leave_now: Callable[[int], object] = os._exit,
) -> int:
    """Runs the dashboard over a monitor until the user quits, and stops the monitor.

    The monitor starts first and on a thread of its own, so that its child comes up while Textual is imported.

    Args:
        monitor: The monitor, not yet started.
        narrowed_to: What the view is narrowed to, for the top bar.
        origin_label: What the top bar says before the first snapshot: "LIVE", "SIMULATED starved".
        edit_diff: Makes a unified diff of an edit, for a finding's page.
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
    starter = threading.Thread(target=monitor.start, name="gpuwatch-start", daemon=True)
    starter.start()
    try:
        code = _run_app(partial(_make_app, monitor, narrowed_to, origin_label, edit_diff), leave_now)
    finally:
        stopper = threading.Thread(target=_stop, args=(monitor, starter), name="gpuwatch-stop", daemon=True)
        stopper.start()
        stopper.join(STOP_SECONDS)
    return code


def _stop(monitor: Any, starter: threading.Thread) -> None:
    starter.join()
    monitor.stop()


def _make_app(monitor: Any, narrowed_to: str | None, origin_label: str, edit_diff: EditDiff | None) -> DashboardApp:
    from gpuwatch.dashboard.app import DashboardApp

    return DashboardApp(monitor, narrowed_to=narrowed_to, origin_label=origin_label, edit_diff=edit_diff)


def _run_app(make_app: Callable[[], DashboardApp], leave_now: Callable[[int], object]) -> int:
    app = make_app()
    guard = TerminalGuard(app.leave, leave_now)
    guard.start()
    try:
        result = app.run()
    finally:
        guard.stop()
    return result if result is not None else app.return_code or 0
