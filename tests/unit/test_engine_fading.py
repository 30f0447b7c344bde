"""A finding of what lasts ends when the newest half of the window knows nothing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Level, Measure, Severity
from gpuwatch.diagnosis.rule import Rule, RunCase
from gpuwatch.timeline.windows import Scene
from tests.unit.scene_builder import later, rank, run, scene


def waits(case: RunCase) -> Draft | None:
    share = case.run.critical.wait_share or 0.0
    if share < 0.06:
        return None
    measure = Measure("share", share, f"{share:.2f}")
    return Draft("waits", Severity.WARNING, Level.E3, (measure,), fires=share >= 0.10)


def lossy(*, fades: bool) -> Rule:
    return Rule("lossy", "data", "run", Level.E2, waits, title="", page="", fades=fades)


def minute(share: float, newest_share: float | None, *, newest_steps: int = 100) -> Scene:
    whole = scene(run(rank(step=0.1, wait=0.1 * share)))
    if newest_share is None:
        return whole
    newest = scene(run(rank(step=0.1, wait=0.1 * newest_share, steps=newest_steps)))
    return replace(whole, newest_half=lambda: newest)


def said_for(rule: Rule, ending: Scene, evaluations: int = 12) -> int:
    """How many evaluations a finding lasts once `ending` is all that is seen."""
    engine = Engine([rule])
    lasting = minute(0.5, 0.5)
    for number in range(10):
        assert bool(engine.evaluate(later(lasting, 5.0 * number))) is (number > 0)
    said = [bool(engine.evaluate(later(ending, 50.0 + 5.0 * number))) for number in range(evaluations)]
    assert said == sorted(said, reverse=True)
    return sum(said)


def test_six_evaluations_of_a_clean_newest_half_unsay_it() -> None:
    assert said_for(lossy(fades=True), minute(0.4, 0.0)) == 5


@pytest.mark.parametrize(
    ("rule", "ending"),
    [
        pytest.param(lossy(fades=False), minute(0.4, 0.0), id="a rule of what comes once in a while"),
        pytest.param(lossy(fades=True), minute(0.4, 0.07), id="the newest half lies between the thresholds"),
        pytest.param(lossy(fades=True), minute(0.4, 0.0, newest_steps=20), id="too few steps in it"),
        pytest.param(lossy(fades=True), minute(0.4, None), id="a window too short to be halved"),
    ],
)
def test_else_the_whole_window_counts(rule: Rule, ending: Scene) -> None:
    assert said_for(rule, ending) == 12


def test_the_newest_half_is_not_made_while_nothing_fires() -> None:
    def never() -> Scene:
        raise AssertionError("made in vain")

    engine = Engine([lossy(fades=True)])
    for number in range(3):
        assert engine.evaluate(later(replace(minute(0.0, None), newest_half=never), 5.0 * number)) == ()
