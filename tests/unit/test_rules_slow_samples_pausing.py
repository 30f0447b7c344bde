"""Slow items come at random: a minute of few of them often ends in half a minute without one."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from scene_builder import later, rank, run, scene, workers

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.timeline.windows import Scene

STEP_SECONDS, READY_SECONDS = 0.1, 0.0007


class Training:
    """Steps of which a few wait for a slow item, as windows of a minute show them."""

    def __init__(self, seed: int, *, share: float, wait: float, seconds: float, until: float | None = None) -> None:
        chance = random.Random(seed)
        self.waits: list[float] = []
        self.ends: list[float] = []
        now = 0.0
        while now < seconds:
            is_late = chance.random() < share and (until is None or now < until)
            self.waits.append(wait * chance.uniform(0.7, 1.3) if is_late else READY_SECONDS)
            now += STEP_SECONDS + self.waits[-1]
            self.ends.append(now)

    def at(self, second: float) -> Scene:
        first, last = bisect_right(self.ends, second - 60.0), bisect_right(self.ends, second)
        waits = self.waits[first:last]
        made = workers(4, cpu_cores=0.4, busy_share=0.5, batch_seconds=0.2, batch_seconds_sigma=0.6)
        steps = [STEP_SECONDS + wait for wait in waits]
        trained = rank(step=steps, wait=waits, gap=waits, steps=len(waits), workers=made)
        return later(scene(run(trained), at=60.0), second - 60.0)

    def said(self, rule: str, seconds: float) -> list[bool]:
        """Whether the rule was said, every five seconds after the first half minute."""
        engine = Engine([rule_by_id(name) for name in dict.fromkeys(("data-starvation", rule))])
        found = []
        for evaluation in range(6, int(seconds / 5)):
            findings = engine.evaluate(self.at(5.0 * evaluation))
            found.append(rule in {finding.rule for finding in findings})
        return found


@pytest.mark.parametrize("rule", ["slow-samples", "data-starvation"])
def test_what_few_slow_items_cost_is_said_once_in_ten_minutes(rule: str) -> None:
    """One in 23 s that takes 6: where 20 s without one were its end, it ended and came back twice in this stream."""
    said = Training(2, share=0.006, wait=6.0, seconds=600.0).said(rule, 600.0)
    assert all(said[said.index(True) :])


def test_it_ends_when_the_window_holds_none_any_more() -> None:
    said = Training(4, share=0.012, wait=6.0, seconds=260.0, until=120.0).said("slow-samples", 260.0)
    after = said[(120 - 30) // 5 :]
    assert after[0] and not any(after[(60 + 30) // 5 :])


def test_other_waits_end_after_twenty_seconds_without_one() -> None:
    """Every step waits up to the end: that is no tail, and the calm behind it no pause."""
    said = Training(5, share=1.0, wait=0.1, seconds=200.0, until=120.0).said("data-starvation", 200.0)
    after = said[(120 - 30) // 5 :]
    assert after[0] and not any(after[55 // 5 :])
