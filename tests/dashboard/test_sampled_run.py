from __future__ import annotations

from dataclasses import replace

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.panels.run import run_panel
from gpuwatch.dashboard.panels.verdict import verdicts
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.timeline.windows import RankWindow
from tests.dashboard import situations
from tests.dashboard.piloting import driven
from tests.unit import scene_builder as build
from tests.unit import stack_builder as seen


def panel(snapshot: Snapshot, width: int = 120, height: int = 10) -> list[str]:
    """The words of the first run's panel, without the charts."""
    cells = columns(width)
    lines = run_panel(snapshot.runs[0], View(snapshot), height, cells, look(), None)
    assert all(sum(segment.cell_length for segment in line) == width for line in lines)
    return [line[: cells.left_width].strip() for line in plain(lines)]


def of_window(rank: RankWindow, **changes: object) -> Snapshot:
    """A run of which this is the window that the rules saw."""
    window = build.run(rank)
    about = replace(situations.run(**changes), id=window.id)
    return situations.snapshot(runs=(about,), findings=(), scene=situations.scene(runs=(window,)))


def test_a_sampled_run_says_how_it_is_seen_its_pace_its_error_and_the_hot_line() -> None:
    lines = panel(situations.attached(), height=9)
    assert "sampled (stacks)" in lines[0]
    assert lines[2] == "12.3 batches/s   790 samples/s   wait 61% ±2.4"
    assert lines[3] == "hot line augment.py:41  43% of the time  image = image.filter(GaussianBlu…"
    assert lines[4] == "batches 1,843   last 0.2 s ago   1,640 samples over 1 min"
    assert lines[5] == "█ wait 61%  █ fwd+bwd 28%  █ sync 5%  █ opt 3%  █ other 3%"
    assert lines[6] == "`gpuwatch run COMMAND` measures steps and waits exactly"


def test_a_low_panel_keeps_the_hot_line_before_the_counts() -> None:
    lines = panel(situations.attached(), 80, 5)
    assert lines[3].startswith("hot line augment.py:41  43%")
    assert not any("batches 1,843" in line for line in lines)


def test_with_workers_the_hot_line_is_theirs() -> None:
    assert "hot line augment.py:41  39% of the workers' time  image = image.filter" in "\n".join(
        panel(situations.attached(2))
    )


def test_a_function_that_is_hot_on_many_lines_is_named_as_one() -> None:
    lines = tuple(seen.line("item", 60 + place, 40, of=720, function="elastic") for place in range(8))
    call = seen.line("item", 34, 320, of=720, text="x = elastic(x)", callee="elastic", callee_file=seen.AUGMENT)
    stacks = seen.worker_stacks(worker_lines=lines, worker_calls=(call,))
    told = panel(of_window(seen.sampled_rank(stacks, num_workers=2), visibility="sampled"))
    assert any(line.startswith("hot function elastic() at augment.py:34  44% of the worke") for line in told)


def test_an_estimated_pace_is_marked_and_an_unknown_one_is_no_zero() -> None:
    assert "about 12.3 batches/s" in panel(situations.attached(batches_exact=False))[2]
    own = panel(situations.attached(batches_of_loader=False), height=9)
    assert "12.3 iterations/s" in own[2] and "iterations 1,843" in own[4]
    assert panel(situations.attached(batches_per_second=None))[2].startswith("- batches/s")


def test_a_line_is_called_hot_only_where_it_costs() -> None:
    fed = seen.stacks({"wait": 8, "forward": 600, "backward": 1000})
    assert not any("hot line" in line for line in panel(of_window(replace(build.rank(), stacks=fed), wait_share=0.005)))
    asking = seen.stacks(
        {"wait": 10, "forward": 800, "sync": 400},
        lines=(seen.line("sync", 133, 400, of=1210, file=build.SCRIPT, text="total += loss.item()"),),
    )
    lines = panel(of_window(replace(build.rank(), stacks=asking), wait_share=0.008))
    assert "hot line train.py:133  33% of the time  total += loss.item()" in lines


def test_a_hooked_run_keeps_its_exact_words_and_gets_the_line() -> None:
    lines = panel(of_window(build.rank(step=0.2, wait=0.1, stacks=seen.stacks(), loader=build.loader(num_workers=0))))
    assert "exact (hook)" in lines[0]
    assert lines[2].startswith("step 312 ms  p95 540 ms")
    assert "±" not in lines[2]
    assert lines[3].startswith("hot line augment.py:41")


def test_a_silent_run_says_where_it_stands() -> None:
    stuck = situations.stuck()
    assert "at train.py:140 for 3 min  dist.barrier()" in panel(stuck)
    verdict = verdicts(View(stuck))[0]
    assert (verdict.word, verdict.because) == ("STALLED", "at train.py:140 for 3 min: dist.barrier()")


def test_where_it_stands_comes_from_the_judged_window_too() -> None:
    current_line = seen.current_line(60)
    about = of_window(build.rank(stacks=seen.stacks(current_line=current_line)), state="silent")
    assert verdicts(View(about))[0].because == "at train.py:140 for 60 s: dist.barrier()"


def test_a_run_that_steps_does_not_stand() -> None:
    assert not any("stands" in line for line in panel(situations.attached(current_line=seen.current_line(60))))


async def test_a_finding_shows_the_lines_it_is_about_with_their_code() -> None:
    async with driven(situations.attached(), (120, 60)) as driver:
        await driver.press("enter")
        assert "Lines of the training thread, shares of its time" in driver.text
        row = next(row for row in driver.rows if "43% ±2.4" in row)
        assert row.split("  ")[-2:] == ["image = image.filter(GaussianBlur(5))", "in PIL/ImageFilter.py:filter"]
        assert "loss.backward()" not in driver.text
    async with driven(situations.attached(2), (120, 60)) as driver:
        await driver.press("enter")
        assert "Lines of the workers, shares of their busy time" in driver.text
        assert "for x, y in loader:" not in driver.text


async def test_a_hang_shows_the_line_of_each_rank() -> None:
    ranks = [
        seen.sampled_rank(
            seen.stacks(current_line=seen.current_line(180, line=140 + number)),
            pid=4711 + number,
            facts={"rank": number},
        )
        for number in range(2)
    ]
    window = build.run(*ranks)
    about = situations.starvation(rule="collective-hang", run=window.id, summary="all ranks stand still")
    own = replace(situations.run(), id=window.id)
    hung = situations.snapshot(runs=(own,), findings=(about,), scene=situations.scene(runs=(window,)))
    async with driven(hung, (120, 60)) as driver:
        await driver.press("enter")
        assert "rank 0 at train.py:140 for 3 min  dist.barrier()" in driver.text
        assert "rank 1 at train.py:141 for 3 min  dist.barrier()" in driver.text


async def test_code_that_is_hostile_is_shown_as_what_it_is() -> None:
    nasty = "[red]x[/]\x1b[2J\u202e" + "y" * 5000
    line = seen.line("wait", 41, 900, text=nasty, file="/home/user/[b]\x1b]0;owned\x07.py", leaf=nasty)
    window = build.run(seen.sampled_rank(seen.stacks(lines=(line,)), pid=5000))
    about = replace(situations.attached(), scene=situations.scene(runs=(window,)))
    current_line = seen.current_line(60, text=nasty, file="\x1b[2J.py")
    for snapshot in (about, replace(about, runs=(replace(about.runs[0], state="silent", current_line=current_line),))):
        async with driven(snapshot, (100, 50)) as driver:
            for keys in ((), ("enter",)):
                await driver.press(*keys)
                assert all(row.isprintable() for row in driver.rows)
                assert "[red]x" in driver.text
                assert all(len(row) <= 100 for row in driver.rows)


def test_why_a_run_is_not_linked_is_said_once() -> None:
    why = "hooked, but already linked to 4 other gpuwatch"
    about = of_window(build.rank(), state="not linked", how_to_see_more=why)
    verdict = verdicts(View(about))[0]
    assert (verdict.word, verdict.because) == ("NOT LINKED", "")
    assert verdict.sentence.endswith(why)


def test_batches_that_are_not_counted_are_no_zero() -> None:
    snapshot = situations.attached()
    uncounted = replace(snapshot, runs=(replace(snapshot.runs[0], steps_total=0),))
    assert any("batches -" in line for line in panel(uncounted)) and not any(
        "batches 0" in line for line in panel(uncounted)
    )
