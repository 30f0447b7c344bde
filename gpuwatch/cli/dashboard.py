"""Bare `gpuwatch`: the dashboard over this machine, or `watch` where there is no terminal to paint on."""

from __future__ import annotations

import argparse

from gpuwatch.cli.output import say
from gpuwatch.cli.session import Session, open_session
from gpuwatch.dashboard.launch import run_dashboard
from gpuwatch.dashboard.terminal import terminal_problem


def dashboard(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    arguments.simulate = None
    with open_session(arguments) as session:
        return show(session)


def show(session: Session) -> int:
    """The dashboard over a session, or its lines."""
    problem = terminal_problem()
    if problem is None:
        return run_dashboard(session.monitor, narrowed_to=session.narrowed_to, origin_label=session.label)
    from gpuwatch.cli.watch import watch_session

    say(f"gpuwatch: {problem.split(';')[0]}; this is what `gpuwatch watch` prints")
    return watch_session(session)
