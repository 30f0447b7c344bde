from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.monitor.monitor import OwnCost, cpu_seconds

SECOND = 1_000_000_000


def test_share_is_of_the_last_minute() -> None:
    readings = iter([0.0, 6.0, 6.3, 6.6])
    cost = OwnCost(lambda: next(readings))
    assert cost.share(0) is None
    assert cost.share(60 * SECOND) == pytest.approx(0.1)
    assert cost.share(90 * SECOND) == pytest.approx(0.01)  # the busy start is over a minute old


def test_child_that_ended_does_not_make_the_cost_negative() -> None:
    readings = iter([10.0, 3.0, 3.5])
    cost = OwnCost(lambda: next(readings))
    cost.share(0)
    assert cost.share(5 * SECOND) is None
    assert cost.share(10 * SECOND) == pytest.approx(0.1)


def test_children_count_and_those_that_ended_meanwhile_do_not(tmp_path: Path) -> None:
    alone = cpu_seconds(tmp_path)
    task = tmp_path / "self/task/77"
    task.mkdir(parents=True)
    (task / "children").write_text("501 502 ")
    child = tmp_path / "501"
    child.mkdir()
    ticks = 1_000 * os.sysconf("SC_CLK_TCK")
    (child / "stat").write_text(f"501 (a (strange) name) S {' 0' * 10} {ticks} {ticks} 0 0\n")
    assert cpu_seconds(tmp_path) - alone == pytest.approx(2_000, abs=5)
