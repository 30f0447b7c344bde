"""What a run really loses to pauses, and when they have come for the last time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scene_builder import START_NS, check, later, phase, rank, run, run_case, scene
from stack_windows import sampled, watched

from gpuwatch.diagnosis.advice.pauses import has_ceased, has_stopped_logging, lost_to_pauses
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.timeline.windows import RankWindow, Recompiles

PAUSE_NS = 600_000_000


def collecting(after: float, usual: float = 0.75, every: int = 20) -> RankWindow:
    """A run that pauses for 0.6 s before every 20th step, and takes `after` seconds for that step."""
    steps = [after if place % every == every - 1 else usual for place in range(80)]
    trained = rank(step=steps, gap=0.0)
    columns, spans, ends, late = trained.columns, [], [], 0
    before_ns = START_NS
    for place, end_ns in enumerate(columns.end_ns):
        if place % every == every - 1:
            spans.append(("gc", before_ns + late, before_ns + late + PAUSE_NS))
            late += PAUSE_NS
        before_ns = end_ns
        ends.append(end_ns + late)
    share = 0.6 / (0.75 * every + 0.6)
    gc = phase("gc", count=4, share=share, seconds=2.4, longest_seconds=0.6, every_seconds=0.6 / share)
    return replace(trained, columns=replace(columns, end_ns=ends), phases={"gc": gc}, phase_spans=tuple(spans))


def test_a_pause_that_the_next_step_makes_up_for_costs_nothing() -> None:
    paused = collecting(after=0.15)
    low, high = lost_to_pauses(paused, paused.phases["gc"])
    assert 0.0 <= low <= high < 0.001
    draft = check("gc-stall", run_case(scene(run(paused), at=(paused.columns.end_ns[-1] - START_NS) / 1e9)))
    assert draft is not None and draft.gain is not None and draft.gain.high == pytest.approx(1.0, abs=0.002)


def test_a_pause_behind_which_steps_are_as_long_as_ever_costs_all_its_time() -> None:
    paused = collecting(after=0.75)
    low, high = lost_to_pauses(paused, paused.phases["gc"])
    assert low == high == pytest.approx(0.6 / 15.6, rel=0.01)


def test_compiling_behind_a_full_queue_costs_what_the_next_steps_do_not_make_up_for() -> None:
    # Of 0.6 s the GPU works through 0.3 s that are queued: the next step takes 0.45 s instead of 0.75 s.
    paused = collecting(after=0.45)
    spans = tuple(("compile", start, end) for _, start, end in paused.phase_spans)
    storm = replace(paused, phases={}, phase_spans=spans, recompiles=Recompiles(40, 24.0, 0.1, 240.0))
    draft = check("recompile-storm", run_case(scene(run(storm), at=300.0)))
    assert draft is not None and draft.gain is not None
    assert draft.gain.low == pytest.approx(1.0 / (1.0 - 0.1 * 0.5 * 39 / 40), abs=0.001)
    assert draft.gain.high == pytest.approx(1.0 / (1.0 - 0.1 * 0.5 * 41 / 40), abs=0.001)


def test_steps_that_differ_leave_open_how_much_is_made_up_for() -> None:
    paused = collecting(after=0.45)
    columns = paused.columns
    noisy = [each + (0.2 if place % 2 else -0.2) for place, each in enumerate(columns.period_seconds)]
    low, high = lost_to_pauses(replace(paused, columns=replace(columns, period_seconds=noisy)), paused.phases["gc"])
    assert low < 0.5 * 0.6 / 15.6 < high


def test_without_single_steps_all_of_it_counts() -> None:
    columns = rank(steps=1).columns
    paused = replace(collecting(after=0.15), columns=columns)
    low, high = lost_to_pauses(paused, paused.phases["gc"])
    assert low == high == pytest.approx(0.6 / 15.6, rel=0.01)


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
