"""Bare `gpuwatch`: the dashboard for this machine, or `watch` where there is no terminal to paint on."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpuwatch.cli.output import say
from gpuwatch.dashboard.launch import first_frame, run_dashboard, use_one_heap
from gpuwatch.dashboard.terminal import is_splash_shown, terminal_problem

if TYPE_CHECKING:
    from gpuwatch.cli.session import Session


def dashboard(arguments: argparse.Namespace) -> int:
    """Runs the command; the sources and rules are imported behind the first frame."""
    arguments.simulate = None
    with first_frame() as is_shown, ExitStack() as stack:
        numbers = None
        if is_shown and arguments.attach is None:  # else these would be the numbers of other GPUs as well
            from gpuwatch.dashboard.first_numbers import FirstNumbers

            first = FirstNumbers(arguments.interval)
            use_one_heap()  # before the first thread, and while the child comes up
            numbers = stack.enter_context(first).take
        from gpuwatch.cli.session import open_session

        return show(stack.enter_context(open_session(arguments, nvml=numbers)))


def show(session: Session) -> int:
    """The dashboard for a session, or its lines."""
    problem = terminal_problem()
    if problem is None or is_splash_shown():
        label = session.monitor.snapshot().origin.label
        return run_dashboard(
            session.monitor,
            narrowed_to=session.narrowed_to,
            origin_label=label,
            read_only=session.read_only,
            notify=session.notify,
        )
    from gpuwatch.cli.watch import watch_session

    say(f"gpuwatch: {problem.split(';')[0]}; this is what `gpuwatch watch` prints")
    return watch_session(session)
