from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.run import Part, parts_of, stacked_bar
from gpuwatch.dashboard.themes import look
from tests.dashboard import situations

LOOK = look()


def test_the_bar_shows_where_the_time_goes() -> None:
    line = stacked_bar(parts_of(situations.run()), 74, LOOK)
    assert plain([line]) == [" waits in next() 45 %            ││ forward+backward 47 %            │  │"]


def test_the_parts_are_what_was_measured_and_the_rest() -> None:
    shares = {part.label: round(part.share, 3) for part in parts_of(situations.run())}
    assert shares == {
        "waits in next()": 0.45,
        "copy": 0.01,
        "forward+backward": 0.47,
        "optimizer": 0.04,
        "other": 0.03,
    }


def test_what_is_not_split_is_not_called_forward() -> None:
    run = situations.run(forward_share=None, backward_share=None, copy_share=None, optimizer_share=None)
    assert [part.label for part in parts_of(run)] == ["waits in next()", "compute and other"]


def test_a_run_whose_wait_is_not_seen_has_no_bar() -> None:
    assert parts_of(situations.not_hooked().runs[0]) == []


@given(st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=6), st.integers(1, 200))
def test_the_bar_is_always_as_wide_as_asked(shares: list[float], width: int) -> None:
    parts = [Part("wait", "wait", "wait", share) for share in shares]
    assert sum(segment.cell_length for segment in stacked_bar(parts, width, LOOK)) == width


@pytest.mark.parametrize("width", [8, 20, 60])
def test_labels_get_shorter_before_they_are_left_out(width: int) -> None:
    line = stacked_bar([Part("compute", "forward+backward", "fwd+bwd", 1.0)], width, LOOK)
    said = {8: "100 %", 20: "fwd+bwd 100 %", 60: "forward+backward 100 %"}[width]
    assert "".join(segment.text for segment in line).strip() == said
