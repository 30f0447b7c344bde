"""`gpuwatch demo`: the dashboard for a simulated machine, with two minutes of past."""

from __future__ import annotations

import argparse

from gpuwatch.cli.arguments import Parser, completed_from, scenarios
from gpuwatch.cli.dashboard import show
from gpuwatch.dashboard.launch import first_frame


def add_arguments(parser: Parser) -> None:
    parser.describe = _description
    name = parser.add_argument("scenario", nargs="?", default="starved", metavar="SCENARIO", help="default: starved")
    completed_from(name, scenarios)


def demo(arguments: argparse.Namespace) -> int:
    scenario = arguments.scenario
    with first_frame(f"SIMULATED {scenario}"):
        from gpuwatch.cli.session import simulated_session

        with simulated_session(scenario, virtual=False) as session:
            return show(session)


def _description() -> str:
    from gpuwatch.sources.simulator.scenarios import SCENARIOS

    width = max(map(len, SCENARIOS))
    head = "The dashboard for a simulated machine and training run. Scenarios:\n"
    return head + "\n".join(f"  {name:{width}}  {scenario.description}" for name, scenario in SCENARIOS.items())
