"""The part of the suite that is played without a hook too: seen by stacks, loaders' counters and /proc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.scenarios.catalogue import SCENARIOS
from tests.scenarios.scenario import ATTACHED, Scenario

_PROBLEMS = (
    "01-w0-heavy",
    "02-w0-moderate",
    "03-few-1",
    "04-few-3of16",
    "05-few-4-aug",
    "06-cpu-exhausted",
    "07-too-many-28on8",
    "08-quota",
    "09-io-bound",
    "10-threads",
    "11-slow-samples",
    "35-slow-worker",
    "13-ckpt-stall",
    "14-log-stall",
    "16-eval-cpu-heavy",
    "36-loop-code",
)
_WELL = ("H01", "H02", "H03", "H04", "H07", "H11", "H12", "H13", "H14", "H21")
_STEP_BY_STEP = frozenset({"slow-samples"})
"""Rules that ask for the waits one by one, which nobody sees from outside."""


def _attached(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        id=ATTACHED + scenario.id,
        hooked=False,
        every=max(6, scenario.every),
        must=scenario.must - _STEP_BY_STEP,
        cause=None if scenario.cause in _STEP_BY_STEP else scenario.cause,
    )


OUTSIDE: Mapping[str, Scenario] = {
    scenario.id: scenario for scenario in (_attached(SCENARIOS[name]) for name in (*_PROBLEMS, *_WELL))
}
EVERY: Mapping[str, Scenario] = {**SCENARIOS, **OUTSIDE}
