"""When pauses have come for the last time: as soon as they stay away for longer than they ever did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scene_builder import START_NS, later, phase, rank, run, run_case, scene
from stack_windows import sampled, watched

from gpuwatch.diagnosis.advice.pauses import has_ceased, has_stopped_logging
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.timeline.windows import RankWindow

SECOND = 1_000_000_000
EVERY = tuple((second, 2.0) for second in (2.0, 14.0, 26.0))
"""Three pauses of 2 s, ten seconds of training between two."""


def paused(pauses: tuple[tuple[float, float], ...], *, step: float = 0.1, **totals: object) -> RankWindow:
    """A minute of steps in which saves begin at these seconds and take so long."""
    usual: dict[str, object] = {
        "count": len(pauses),
        "seconds": sum(length for _, length in pauses),
        "share": sum(length for _, length in pauses) / 60.0,
        "longest_seconds": max(length for _, length in pauses),
        "every_seconds": 12.0,
        "every_steps": 100.0,
    }
    spans = tuple(
        ("checkpoint", START_NS + round(start * SECOND), START_NS + round((start + length) * SECOND))
        for start, length in pauses
    )
    total = phase("checkpoint", **(usual | totals))
    return rank(step=step, steps=round(60.0 / step), phases={"checkpoint": total}, phase_spans=spans)


def ceased(member: RankWindow, second: float) -> bool:
    case = run_case(later(scene(run(member), at=60.0), second - 60.0))
    return has_ceased(case, member, member.phases["checkpoint"])


@pytest.mark.parametrize(
    ("pauses", "second", "expected"),
    [
        pytest.param(EVERY, 40.0, False, id="the next one is due"),
        pytest.param(EVERY, 45.0, False, id="a little late"),
        pytest.param(EVERY, 47.0, True, id="half as long again as ever"),
        pytest.param(((2.0, 2.0), (30.0, 2.0)), 60.0, False, id="once as far apart"),
        pytest.param(((2.0, 2.0), (40.0, 20.0)), 60.0, False, id="one lasts"),
    ],
)
def test_pauses_are_over_when_they_stay_away_longer_than_ever(
    pauses: tuple[tuple[float, float], ...], second: float, expected: bool
) -> None:
    assert ceased(paused(pauses), second) is expected


def test_one_pause_is_measured_by_the_rhythm_of_those_before_the_window() -> None:
    assert ceased(paused(((2.0, 2.0),)), 40.0)
    assert not ceased(paused(((2.0, 2.0),), every_seconds=None), 40.0)


def test_short_ones_in_between_neither_keep_long_ones_nor_set_their_rhythm() -> None:
    short = tuple((2.0 + second, 0.001) for second in range(56))
    mixed = tuple(sorted((*EVERY, *short)))
    assert ceased(paused(mixed, every_seconds=1.0), 55.0)
    assert not ceased(paused(tuple(sorted(((20.0, 2.0), *short))), every_seconds=1.0), 55.0), "one long one only"


def test_a_run_that_became_slower_owes_its_steps_first() -> None:
    slow = paused(EVERY, step=1.0)
    assert not ceased(slow, 55.0)
    assert ceased(paused(EVERY, step=0.1), 55.0)


def test_a_run_without_a_hook_that_stands_still_did_not_stop_pausing() -> None:
    of_steps = paused(EVERY)
    seen = sampled(watched({"save": 0.1}), phases=of_steps.phases, phase_spans=of_steps.phase_spans)
    moving = replace(seen, last_step_ns=START_NS + 54 * SECOND)
    assert ceased(moving, 55.0)
    assert not ceased(replace(moving, last_step_ns=START_NS + 40 * SECOND), 55.0)


@pytest.mark.parametrize(
    ("quiet", "pause", "expected"),
    [
        pytest.param(2.0, 4.0, False, id="as often as before"),
        pytest.param(7.0, 4.0, True, id="half as long again as ever"),
        pytest.param(30.0, None, False, id="seen once"),
        pytest.param(None, None, False, id="never seen"),
    ],
)
def test_logging_is_over_by_the_seconds_of_training_without_it(
    quiet: float | None, pause: float | None, expected: bool
) -> None:
    member = sampled(watched({"log": 0.1}, log_quiet_seconds=quiet, log_pause_seconds=pause))
    assert has_stopped_logging(member) is expected


def test_saves_that_ended_are_unsaid_before_the_window_has_forgotten_them() -> None:
    engine = Engine([rule_by_id("checkpoint-stall")])
    said = []
    for second in range(30, 90, 5):
        begun = tuple(pause for pause in EVERY if pause[0] < second)
        member = paused(begun or EVERY[:1])
        moment = later(scene(run(member), at=60.0), second - 60.0)
        said.append("checkpoint-stall" in {finding.rule for finding in engine.evaluate(moment)})
    assert said == [False, True, True, True, True, True, True, True, True, False, False, False]
