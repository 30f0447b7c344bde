from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.lines import Line, plain
from gpuwatch.dashboard.panels.charts import Grid, Trace
from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.panels.run import Part, RunTraces, parts_of, run_panel, stacked_bar, step_scale
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from tests.dashboard import parts, situations

LOOK = look()


def lines_of(run: RunNow, width: int = 120, height: int = 9, snapshot: Snapshot | None = None) -> list[Line]:
    cells = columns(width)
    grid = Grid.ending_at(situations.NOW_NS, 120, cells.chart_width * 2)
    wait: list[float | None] = [0.7 if bucket % 8 < 4 else 0.1 for bucket in range(grid.count)]
    step: list[float | None] = [0.5 if bucket % 8 < 4 else 0.3 for bucket in range(grid.count)]
    for phase in run.phases:
        first, last = grid.index_of(phase.start_ns), grid.index_of(phase.end_ns or situations.NOW_NS)
        wait[first:last] = step[first:last] = [None] * (last - first)
    traces = RunTraces(grid, Trace(tuple(wait)), Trace(tuple(step)))
    lines = run_panel(run, View(replace(snapshot or situations.snapshot(), runs=(run,))), height, cells, LOOK, traces)
    assert len(lines) == height
    assert all(sum(segment.cell_length for segment in line) == width for line in lines)
    return lines


def panel(run: RunNow, width: int = 120, height: int = 8, snapshot: Snapshot | None = None) -> list[str]:
    return plain(lines_of(run, width, height, snapshot))


def test_a_run_at_120_columns_has_its_charts_side_by_side_over_the_phases() -> None:
    assert panel(situations.run(), height=6) == [
        "─ train.py (4711) · GPU 0 · exact (hook) · training ─────────────────────── "
        "wait 0-100% ───────── step 0-600 ms ───────",
        "  DataLoader wait 45%             ││ forward+backward 47%             │4%│",
        " step 312 ms  p95 540 ms   2,564 samples/s   GPU idle (data wait) 41%       "
        "⣶⣶  ⣶⣶      ⣶⣶   ⣶  ⣶ ⣿⣿  ⣿⣿      ⣿⣿   ⣿  ⣿",
        " steps 18,204   pauses 2%   last 0.2 s ago   over 1 min                     "
        "⣿⣿  ⣿⣿      ⣿⣿   ⣿  ⣿ ⣿⣿⣶⣶⣿⣿⣶⣶  ⣶⣶⣿⣿⣶⣶ ⣿⣶⣶⣿",
        " █ wait 45%  █ copy 1%  █ fwd+bwd 47%  █ opt 4%  █ other 3%                 "
        "⣿⣿⣤⣤⣿⣿⣤⣤  ⣤⣤⣿⣿⣤⣤ ⣿⣤⣤⣿ ⣿⣿⣿⣿⣿⣿⣿⣿  ⣿⣿⣿⣿⣿⣿ ⣿⣿⣿⣿",
        " ▓ evaluation   ░ checkpoint                                                "
        "────────▓▓▓─────░░─── ────────▓▓▓─────░░───",
    ]


def test_a_run_at_80_columns_has_its_charts_one_above_the_other() -> None:
    assert panel(situations.run(), 80, 6) == [
        "─ train.py (4711) · GPU 0 · exact (hook) · training ──────── wait, step 600 ms",
        "  DataLoader wait 45%      ││ forward+backward 47%      │ │  ⣀⣀  ⣀⣀  ⢀⣀  ⣀⡀  ⣀⣀",
        " step 312 ms  p95 540 ms   2,564 samples/s   GPU idle 41%    ⣿⣿⣀⣀⣿⣿⣀ ⢸⣿⣀⣀⣿⡇⢀⣀⣿⣿",
        " steps 18,204   pauses 2%   last 0.2 s ago   over 1 min      ⣤⣤  ⣤⣤  ⢠⣤  ⣤⡄  ⣤⣤",
        " █ wait 45%  █ copy 1%  █ fwd+bwd 47%  █ opt 4%              ⣿⣿⣶⣶⣿⣿⣶ ⢸⣿⣶⣶⣿⡇⢰⣶⣿⣿",
        " ▓ evaluation   ░ checkpoint                                 ───────▓▓────░░───",
    ]


def test_a_run_in_one_line_still_says_its_speed() -> None:
    assert panel(situations.run(), 80, 1) == [
        "─ train.py (4711) · GPU 0 · exact (hook) · training          312 ms wait 45%"
    ]


def test_all_ranks_of_a_distributed_run_are_listed_and_the_slow_one_is_marked() -> None:
    run = situations.many_gpus(8, 8).runs[0]
    slow = replace(run.ranks[5], step_seconds=0.45)
    run = replace(run, ranks=(*run.ranks[:5], slow, *run.ranks[6:]))
    lines = panel(run, 120, 9)
    assert [line[:75].strip() for line in lines[4:8]] == [
        "▲ rank 5  450 ms wait 6%             rank 0  310 ms wait 16%",
        "rank 1  312 ms wait 14%              rank 2  314 ms wait 12%",
        "rank 3  316 ms wait 10%              rank 4  318 ms wait 8%",
        "rank 6  322 ms wait 4%               rank 7  324 ms wait 2%",
    ]
    assert [line[:60].strip() for line in panel(run, 80, 9)[4:8]][:2] == [
        "rank 5  450 ms wait 6%    rank 0  310 ms wait 16%",
        "rank 1  312 ms wait 14%   rank 2  314 ms wait 12%",
    ]


def test_ranks_in_step_are_told_apart_by_what_each_does_itself() -> None:
    run = situations.straggler().runs[0]
    assert {round(rank.step_seconds or 0.0, 3) for rank in run.ranks} == {0.25}
    assert [round(seconds or 0.0, 3) for seconds in run.own_seconds] == [0.16, 0.16, 0.16, 0.16, 0.16, 0.25, 0.16, 0.16]
    first = panel(run, 120, 9, situations.straggler())[4]
    assert first[:75].strip().startswith("▲ rank 5  250 ms own  GPU 5 1080 MHz")
    partly = replace(run, ranks=(replace(run.ranks[0], backward_share=None), *run.ranks[1:]))
    assert panel(partly, 120, 9, situations.straggler())[4].startswith(" rank 0  250 ms wait 2%")


def test_ranks_without_room_are_counted() -> None:
    run = situations.many_gpus(64, 64).runs[0]
    assert "+59 more ranks" in panel(run, 120, 8)[6]


def test_an_unhooked_run_says_how_to_see_more_and_shows_no_zero() -> None:
    left = [line[:60].rstrip() for line in panel(situations.not_hooked().runs[0], 80, 7)]
    assert left[1:5] == [
        " start it with `gpuwatch run python train.py` to see its",
        " steps and waits",
        " step -  p95 -   - samples/s",
        " steps -   over 1 min",
    ]


def test_steps_of_a_run_that_accumulates_say_of_how_many_batches_they_are() -> None:
    said = [panel(situations.run(batches_per_step=batches), height=10)[3] for batches in (None, 1.01, 8.0)]
    assert ["of 8 batches" in line for line in said] == [False, False, True]
    assert said[2].startswith(" steps 18,204 of 8 batches   pauses 2%")


def test_the_range_of_the_step_chart_is_a_round_number_above_the_slow_steps() -> None:
    assert step_scale(situations.run(step_seconds_p95=0.31), None) == 0.4
    assert step_scale(situations.run(step_seconds_p95=None, step_seconds_p50=None), None) == 1.0


def test_the_words_of_a_run() -> None:
    left = [line[:75].rstrip() for line in panel(situations.run(), height=10)]
    assert left[2:] == [
        " step 312 ms  p95 540 ms   2,564 samples/s   GPU idle (data wait) 41%",
        " steps 18,204   pauses 2%   last 0.2 s ago   over 1 min",
        " █ wait 45%  █ copy 1%  █ fwd+bwd 47%  █ opt 4%  █ other 3%",
        " python train.py --config base.yaml",
        " loader train.py:88  num_workers=4, batch_size=64, prefetch_factor=2, pin_…",
        "",
        "",
        " ▓ evaluation   ░ checkpoint",
    ]


def test_a_long_pause_says_how_long_it_lasts() -> None:
    assert "checkpointing for 36 s" in panel(replace(parts.run(), state="saving", pause_seconds=36.0))[0]
    assert "checkpointing for" not in panel(replace(parts.run(), state="saving", pause_seconds=4.0))[0]


def test_a_killed_run_says_so() -> None:
    assert "ended (killed)" in panel(replace(parts.run(), state="ended", ended="killed"))[0]


def test_the_bar_and_the_words_give_one_figure_of_the_wait_whatever_the_pauses_take() -> None:
    paused = replace(parts.run(), gap_share=None, wait_share=0.30, forward_share=0.30, phase_share=0.50)
    text = "\n".join(line[:75] for line in panel(paused, height=10))
    assert re.findall(r"waits? (?:in next\(\) )?(\d+)%", text) == ["30", "30", "30"]
    assert "pauses 50%" in text


def test_a_small_model_has_parameters_too() -> None:
    def told(parameters: int) -> str:
        rank = parts.rank()
        facts = replace(rank.facts, model=replace(rank.facts.model, parameters=parameters))
        return "\n".join(panel(situations.run(ranks=(replace(rank, facts=facts),)), height=14))

    assert "model 66 parameters" in told(66)
    assert "model 0.1 M parameters" in told(100_000)
    assert "model 86.6 M parameters" in told(86_600_000)


def test_the_bar_shows_where_the_time_goes() -> None:
    line = stacked_bar(parts_of(situations.run()), 74, LOOK)
    assert plain([line]) == [" DataLoader wait 45%             ││ forward+backward 47%             │4%│"]


def test_the_parts_are_what_was_measured_and_the_rest() -> None:
    shares = {part.label: round(part.share, 3) for part in parts_of(situations.run())}
    assert shares == {
        "DataLoader wait": 0.45,
        "copy": 0.01,
        "forward+backward": 0.47,
        "optimizer": 0.04,
        "other": 0.03,
    }


def test_what_is_not_split_is_not_called_forward() -> None:
    run = situations.run(forward_share=None, backward_share=None, copy_share=None, optimizer_share=None)
    assert [part.label for part in parts_of(run)] == ["DataLoader wait", "compute and other"]


def test_a_run_whose_wait_is_not_seen_has_no_bar() -> None:
    assert parts_of(situations.not_hooked().runs[0]) == []


@given(st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=6), st.integers(1, 200))
def test_the_bar_is_always_as_wide_as_asked(shares: list[float], width: int) -> None:
    parts = [Part("wait", "wait", "wait", share) for share in shares]
    assert sum(segment.cell_length for segment in stacked_bar(parts, width, LOOK)) == width


@pytest.mark.parametrize("width", [8, 20, 60])
def test_labels_get_shorter_before_they_are_left_out(width: int) -> None:
    line = stacked_bar([Part("compute", "forward+backward", "fwd+bwd", 1.0)], width, LOOK)
    said = {8: "100%", 20: "fwd+bwd 100%", 60: "forward+backward 100%"}[width]
    assert "".join(segment.text for segment in line).strip() == said


def test_a_loader_that_every_epoch_makes_again_is_said_once() -> None:
    run = situations.run()
    rank = run.ranks[0]
    again = replace(rank.facts, loaders=(*rank.facts.loaders, replace(rank.facts.loaders[0], loader=2)))
    left = [line[:75] for line in panel(replace(run, ranks=(replace(rank, facts=again),)), height=10)]
    assert sum("loader train.py:88" in line for line in left) == 1
