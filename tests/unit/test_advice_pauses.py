"""What a run really loses to pauses: less where the steps after them are quicker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scene_builder import START_NS, check, phase, rank, run, run_case, scene

from gpuwatch.diagnosis.advice.pauses import lost_to_pauses
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
