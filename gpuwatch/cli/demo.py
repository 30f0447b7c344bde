"""`gpuwatch demo`: the dashboard over a simulated machine, with two minutes of past."""

from __future__ import annotations

import argparse

from gpuwatch.cli.dashboard import show
from gpuwatch.dashboard.launch import first_frame


def demo(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    scenario = arguments.scenario
    with first_frame(f"SIMULATED {scenario}"):
        from gpuwatch.cli.session import simulated_session

        with simulated_session(scenario, virtual=False) as session:
            return show(session)
