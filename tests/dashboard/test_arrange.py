from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.panels.layout import Needs, arrange, columns, too_small


@given(
    st.integers(60, 400),
    st.integers(15, 200),
    st.builds(
        Needs,
        verdict_lines=st.integers(2, 40),
        gpus=st.integers(0, 64),
        runs=st.integers(0, 9),
        ranks=st.integers(0, 64),
        findings=st.integers(0, 40),
        host=st.booleans(),
        reason=st.booleans(),
    ),
)
def test_the_lines_always_add_up_to_the_terminal(width: int, height: int, needs: Needs) -> None:
    plan = arrange(width, height, needs)
    assert plan.total == height
    assert min(plan.verdict, plan.gpu_lines, plan.findings, plan.gpu_row, *plan.runs, 1) >= 0
    assert plan.gpu_lines % plan.gpu_row == 0
    assert len(plan.runs) <= needs.runs
    assert plan.verdict >= needs.verdict_lines or plan.findings <= max(1, needs.findings), "cut above empty lines"


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
def test_eight_gpus_and_their_run_and_a_finding_fit_the_usual_terminals(size: tuple[int, int]) -> None:
    plan = arrange(*size, Needs(verdict_lines=5, gpus=8, runs=1, ranks=8, findings=3))
    assert plan.gpu_lines >= 8
    assert plan.runs[0] >= 4
    assert plan.findings >= 2


def test_few_gpus_get_higher_charts_and_many_are_scrolled() -> None:
    assert arrange(120, 36, Needs(5, gpus=1, runs=1, ranks=1, findings=1)).gpu_row >= 4
    crowd = arrange(120, 36, Needs(5, gpus=64, runs=1, ranks=1, findings=1))
    assert crowd.gpu_row == 1
    assert 8 <= crowd.gpu_lines < 64


def test_every_run_has_at_least_its_line() -> None:
    assert len(arrange(120, 36, Needs(6, gpus=4, runs=4, ranks=1, findings=4)).runs) == 4


@given(st.integers(60, 400))
def test_the_columns_fill_the_width_and_leave_the_last_cell_to_the_scroll_bar(width: int) -> None:
    cells = columns(width)
    last = cells.chart_1 if cells.chart_2 is None else cells.chart_2
    assert last + cells.chart_width == width - 1
    assert cells.chart_width >= 8


@pytest.mark.parametrize(("size", "fits"), [((60, 15), True), ((59, 15), False), ((60, 14), False), ((20, 5), False)])
def test_a_terminal_that_is_too_small_says_what_is_needed(size: tuple[int, int], fits: bool) -> None:
    said = too_small(*size)
    assert (said is None) is fits
    assert fits or said == f"gpuwatch needs 60x15, this is {size[0]}x{size[1]}"
