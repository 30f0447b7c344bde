"""A simulated machine and training run for `gpuwatch demo` and `--simulate`; nothing else may show made-up numbers."""

from __future__ import annotations

from gpuwatch.sources.simulator.parameters import Scenario
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource

__all__ = ["SCENARIOS", "Scenario", "SimulatorSource"]
