from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from textual.widgets import Input

from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.panels.verdict import verdicts
from gpuwatch.dashboard.screens.finding import FindingScreen, TrialScreen
from gpuwatch.dashboard.screens.gpu import GpuScreen
from gpuwatch.dashboard.screens.help import HelpScreen, RuleScreen
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.screens.processes import ProcessesScreen
from gpuwatch.dashboard.screens.run import RunScreen
from gpuwatch.dashboard.screens.timeline import TimelineScreen
from gpuwatch.dashboard.view import View
from gpuwatch.diagnosis.finding import Fix, SetupEdit
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor, later
from tests.dashboard.piloting import driven


async def test_a_frame_is_there_before_any_data() -> None:
    async with driven(origin_label="SIMULATED starved") as driver:
        assert driver.rows[0].startswith(" gpuwatch  SIMULATED starved")
        assert "STARTING" in driver.text
        assert "looking for GPUs and training runs" in driver.text


async def test_a_snapshot_from_the_monitors_thread_is_drawn() -> None:
    async with driven(situations.starved()) as driver:
        assert "the GPU idles 41% of the time waiting for data" in driver.text
        await driver.push(situations.healthy())
        assert "nothing to change" in driver.text


async def test_the_top_bar_says_what_is_watched_and_that_it_is_simulated() -> None:
    simulated = replace(situations.starved(), origin=replace(situations.LIVE, kind="simulated", label="SIMULATED hang"))
    async with driven(simulated, narrowed_to="train.py (4711)") as driver:
        assert driver.rows[0].split("   ")[0] == " gpuwatch  SIMULATED hang"
        for words in (
            "node07",
            "only train.py (4711)",
            "1 x H100",
            "driver 580.159",
            "16 cores",
            "every 1 s",
            "14:03:27",
        ):
            assert words in driver.rows[0]
        await driver.press("t")
        assert "SIMULATED hang" in driver.rows[0]


async def test_many_snapshots_at_once_are_drawn_once() -> None:
    async with driven(situations.starved()) as driver:
        drawn: list[object] = []
        screen = driver.app.screen
        assert isinstance(screen, MainScreen)
        show = screen.show
        screen.show = lambda: (drawn.append(driver.app.view.snapshot), show())[1]  # type: ignore[method-assign]
        for second in range(5):
            driver.monitor.push(later(situations.starved(), second))
        driver.clock.now += 1
        await driver.settle()
        assert len(drawn) == 1
        assert drawn[0] == driver.monitor.current


async def test_on_a_narrow_terminal_the_gain_has_a_place_beside_a_long_sentence() -> None:
    long = situations.starvation(summary="train.py (4711): the GPU idles 41% of the time: " + "augment.py:41 " * 5)
    async with driven(situations.snapshot(findings=(long,)), (80, 24)) as driver:
        head = driver.rows.index(next(row for row in driver.rows if "Findings" in row))
        assert any("1.5-1.7x faster" in row for row in driver.rows[:head])


async def test_the_charts_of_gpus_and_runs_share_one_time_axis() -> None:
    async with driven(situations.starved()) as driver:
        cells = columns(120)
        assert cells.chart_2 is not None
        gpus = next(row for row in driver.rows if row.startswith(" GPU "))
        run = next(row for row in driver.rows if row.startswith("─ train.py"))
        band = next(row for row in driver.rows if "▓ evaluation" in row)
        assert (gpus.index("util 0-100%"), gpus.index("power 0-700 W")) == (cells.chart_1, cells.chart_2)
        assert (run.index("wait 0-100%"), run.index("step 0-")) == (cells.chart_1, cells.chart_2)
        left = band[cells.chart_1 : cells.chart_1 + cells.chart_width]
        assert left == band[cells.chart_2 : cells.chart_2 + cells.chart_width] == "────────▓▓▓─────░░───"


async def test_pause_holds_the_picture_says_so_and_lets_collection_go_on() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("space")
        await driver.push(later(situations.healthy(), 7), after_seconds=7)
        assert "PAUSED 7 s" in driver.rows[0]
        assert "14:03:27" in driver.rows[0]
        assert "idles 41%" in driver.text
        await driver.press("space")
        assert "PAUSED" not in driver.rows[0]
        assert "nothing to change" in driver.text


async def test_zoom_changes_the_window_of_all_charts() -> None:
    async with driven(situations.starved()) as driver:
        assert "util 0-100%, 2 min" in driver.text
        await driver.press("plus")
        assert "util 0-100%, 1 min" in driver.text
        await driver.press("minus", "minus", "minus", "minus")
        assert "util 0-100%, 1 h" in driver.text
        await driver.press(*["minus"] * 9)
        assert "util 0-100%, 24 h" in driver.text


async def test_a_silent_monitor_is_noticed() -> None:
    async with driven(situations.starved()) as driver:
        driver.clock.now += 9
        driver.app.check_silence()
        await driver.pilot.pause()
        assert "NO NEW DATA for 9 s" in driver.rows[0]
        await driver.push(later(situations.starved(), 10))
        assert "NO NEW DATA" not in driver.rows[0]


async def test_enter_opens_the_finding_under_the_cursor() -> None:
    async with driven(situations.starved(), (120, 60)) as driver:
        await driver.press("down", "enter")
        assert isinstance(driver.app.screen, FindingScreen)
        assert "○ HINT  amp-off" in driver.text
        await driver.press("escape", "up", "enter")
        assert "◆ CRITICAL  data-starvation" in driver.text


async def test_the_cursor_stays_on_its_finding_while_others_come() -> None:
    async with driven(situations.many_findings(6)) as driver:
        await driver.press("down", "down")
        newer = situations.many_findings(6)
        worst = situations.starvation(rule="xid-error", summary="a new one on top")
        await driver.push(replace(newer, findings=(worst, *newer.findings)))
        marked = next(row for row in driver.rows if row.startswith("▌"))
        assert "finding 2" in marked


async def test_a_cursor_that_nobody_moved_is_on_the_worst_finding_that_the_verdict_names() -> None:
    async with driven(situations.many_findings(2)) as driver:
        before = situations.many_findings(2)
        worst = situations.starvation(rule="xid-error", summary="a new one on top")
        await driver.push(replace(before, findings=(worst, *before.findings)))
        assert "a new one on top" in next(row for row in driver.rows if row.startswith("▌"))


async def test_a_long_list_scrolls_with_the_cursor() -> None:
    async with driven(situations.many_findings(20), (80, 24)) as driver:
        await driver.press("end")
        assert "finding 19" in next(row for row in driver.rows if row.startswith("▌"))
        assert "finding 1 " not in driver.text
        await driver.press("home")
        assert "finding 0" in next(row for row in driver.rows if row.startswith("▌"))


async def test_a_snoozed_finding_is_gone_for_an_hour_and_can_be_brought_back() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("s")
        assert "1 of 2, 1 snoozed (u undoes)" in driver.text
        assert "idles 41%" not in "\n".join(driver.rows[1:])
        await driver.press("u")
        assert "idles 41%" in driver.text
        await driver.press("s")
        await driver.push(later(situations.starved(), 3601))
        assert "idles 41%" in driver.text


async def test_c_copies_the_fix() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("c")
        assert driver.app.clipboard == "num_workers=10"
        await driver.press("down", "c")
        assert driver.app.clipboard.startswith('with torch.autocast("cuda"')


TRIAL = "gpuwatch trial num_workers=10 -- python train.py --config base.yaml"
TUNE = "gpuwatch tune -- python train.py --config base.yaml"


async def test_T_shows_the_trial_of_the_finding_and_c_copies_it() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("T")
        assert isinstance(driver.app.screen, TrialScreen)
        assert f"    {TRIAL}" in driver.rows
        assert "In /home/ana, where the training was started" in driver.text
        assert "gpuwatch tune" not in driver.text and "copy tune" not in driver.rows[-1]
        await driver.press("C")
        assert not driver.app.clipboard
        await driver.press("c")
        assert driver.app.clipboard == TRIAL
        assert [said.message for said in driver.app._notifications] == [f"Copied: {TRIAL}"]
        await driver.press("T")
        assert isinstance(driver.app.screen, MainScreen)


async def test_T_on_the_page_of_a_finding_shows_the_trial_too_and_escape_leads_back() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("enter", "T", "c")
        assert driver.app.clipboard == TRIAL
        await driver.press("escape")
        assert isinstance(driver.app.screen, FindingScreen)


async def test_tune_is_offered_where_the_run_has_several_fixes_that_can_be_tried() -> None:
    precise = SetupEdit("/home/ana/train.py", 'torch.set_float32_matmul_precision("high")')
    findings = (situations.starvation(), situations.hint(fix=Fix("Allow TF32", edit=precise)))
    async with driven(replace(situations.starved(), findings=findings)) as driver:
        await driver.press("T")
        assert {f"    {TRIAL}", f"    {TUNE}"} <= set(driver.rows)
        assert "All 2 fixes of this run that a trial can try" in driver.text
        await driver.press("C")
        assert driver.app.clipboard == TUNE
        await driver.press("escape", "down", "T", "c")
        assert driver.app.clipboard == "gpuwatch trial tf32=true -- python train.py --config base.yaml"
        assert "Comes after data-starvation: try that first." in driver.text


async def test_what_T_shows_stays_while_the_advice_changes() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("T")
        await driver.push(situations.healthy())
        await driver.press("c")
        assert driver.app.clipboard == TRIAL


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (situations.many_gpus(8, 8), "how the 8 processes of its run were launched is not known"),
        (situations.healthy(), "There is no finding here"),
        (
            replace(situations.starved(), findings=(situations.hint(),)),
            "not one of the settings that a trial can change",
        ),
        (replace(situations.starved(), runs=()), "the command line of its run is not known"),
    ],
)
async def test_T_says_why_there_is_no_trial(snapshot: Snapshot, why: str) -> None:
    async with driven(snapshot) as driver:
        await driver.press("T")
        assert isinstance(driver.app.screen, MainScreen)
        (said,) = driver.app._notifications
        assert why in said.message


async def test_a_long_command_is_continued_as_a_shell_takes_it_and_copied_in_one_line() -> None:
    command = ("python", "train.py", *(f"--option-{number}=a value" for number in range(9)), "x" * 120)
    facts = replace(situations.rank().facts, command=command)
    snapshot = replace(situations.starved(), runs=(situations.run(ranks=(situations.rank(facts=facts),)),))
    async with driven(snapshot, (80, 40)) as driver:
        await driver.press("T")
        first = next(number for number, row in enumerate(driver.rows) if "gpuwatch trial" in row)
        last = next(number for number, row in enumerate(driver.rows) if number > first and not row.endswith("\\"))
        shown = " ".join(row.removesuffix("\\") for row in driver.rows[first:last])
        assert shlex.split(shown)[6:15] == list(command[2:11])
        assert "x" * 120 in "".join(row.strip() for row in driver.rows)
        await driver.press("c")
        assert driver.app.clipboard == f"gpuwatch trial num_workers=10 -- {shlex.join(command)}"


async def test_a_simulated_run_is_not_said_to_be_a_program_that_can_be_started() -> None:
    origin = replace(situations.LIVE, kind="simulated", label="SIMULATED starved")
    async with driven(replace(situations.starved(), origin=origin)) as driver:
        await driver.press("T")
        assert "This run is simulated: there is no such program to start." in driver.text


async def test_e_opens_the_rules_own_page() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("down", "e")
        assert isinstance(driver.app.screen, RuleScreen)
        assert "Training runs in 32-bit although the GPU has much faster 16-bit units." in driver.text


async def test_the_filter_narrows_findings_and_escape_clears_it() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("slash", *"amp")
        assert driver.app.query_one(Input).has_focus
        assert "1 of 2, filter: amp (esc clears)" in driver.text
        await driver.press("enter")
        assert not driver.app.query(Input)
        assert "filter: amp" in driver.text
        await driver.press("escape")
        assert "filter:" not in driver.text


async def test_letters_in_the_filter_are_text_and_no_keys() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("slash", "q", "t", "space", "h")
        assert isinstance(driver.app.screen, MainScreen)
        assert driver.app.query_one(Input).value == "qt h"
        await driver.press("escape")
        assert not driver.app.query(Input)
        assert driver.app.view.filter == ""


async def test_the_filter_narrows_runs_by_their_command() -> None:
    async with driven(situations.two_runs()) as driver:
        await driver.press("slash", *"finetune", "enter")
        assert "─ finetune.py (5000)" in driver.text
        assert "─ train.py (4711)" not in driver.text


async def test_a_screen_with_nothing_to_filter_asks_for_no_filter() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("question_mark", "slash")
        assert not driver.app.query(Input)


async def test_tab_leads_to_the_gpus_and_enter_to_all_about_one() -> None:
    async with driven(situations.lost(), (100, 90)) as driver:
        await driver.press("tab", "down", "enter")
        assert isinstance(driver.app.screen, GpuScreen)
        assert "LOST since 13:58" in driver.text
        await driver.press("escape", "up", "enter")
        assert "memory temperature        - (not supported by this GPU)" in driver.text
        assert "fan                       - (this board has no fan)" in driver.text


async def test_r_opens_all_about_a_run_and_goes_on_to_the_next() -> None:
    async with driven(situations.two_runs(), (100, 70)) as driver:
        await driver.press("R")
        assert isinstance(driver.app.screen, RunScreen)
        assert "─ train.py (4711)" in driver.text and "num_workers" in driver.text
        await driver.press("R")
        assert "─ finetune.py (5000)" in driver.text and "─ train.py (4711)" not in driver.text
        await driver.press("R", "escape")
        assert isinstance(driver.app.screen, MainScreen)


async def test_a_click_on_a_runs_panel_opens_its_page() -> None:
    async with driven(situations.two_runs(), (120, 50)) as driver:
        line = next(
            y for y, text in enumerate(driver.text.splitlines()) if "finetune.py (5000)" in text and "·" in text
        )
        await driver.pilot.click(offset=(20, line + 1))
        await driver.settle()
        assert isinstance(driver.app.screen, RunScreen)
        assert "─ finetune.py (5000)" in driver.text


async def test_without_a_run_there_is_no_page_of_one() -> None:
    async with driven(situations.no_run(), (100, 40)) as driver:
        await driver.press("R")
        assert "There is no training run here." in driver.text
        assert "R run" not in driver.text


async def test_the_page_of_a_run_has_every_rank_its_loader_and_its_findings() -> None:
    async with driven(situations.straggler(), (120, 90)) as driver:
        await driver.press("R")
        assert "straggler-rank            Other ranks wait 90 ms" in driver.text
        assert "rank 5                    pid 4716, GPU 5, step 250 ms, own work 250 ms" in driver.text
        assert "DataLoader of training, built at train.py:88" in driver.text


async def test_64_gpus_scroll_to_the_last_with_its_chart() -> None:
    each_its_own = situations.many_gpus(64)
    gpus = tuple(replace(gpu, throttled_by=(f"reason {gpu.facts.index}",)) for gpu in each_its_own.gpus)
    async with driven(replace(each_its_own, gpus=gpus)) as driver:
        assert "63 H100" not in driver.text and "rows below" in driver.text
        await driver.press("tab", "end")
        await driver.pilot.pause()
        last = next(row for row in driver.rows if row.startswith(" 63 H100"))
        assert any("⠀" < sign < "⣿" or sign == "⣿" for sign in last)
        assert "below" not in driver.text


async def test_gpus_that_are_used_alike_share_a_row_where_rows_do_not_fit_and_enter_opens_it() -> None:
    async with driven(situations.cluster_node(), (120, 36)) as driver:
        assert next(row for row in driver.rows if row.startswith(" 0-7 (8x)")).split()[-2:] == ["99999999", "mean"]
        assert " 17 H100     LOST since" in driver.text and " 29 H100" in driver.text
        assert "util/10 99999999 99999999 9!999999 99999399 99999999 00099999 99999999 9999...." in driver.text
        await driver.press("tab", "enter")
        await driver.pilot.pause()
        assert " 0-7 (8x)" not in driver.text and " 0 H100" in driver.text and " 7 H100" in driver.text


async def test_what_needs_attention_comes_first_by_a_key() -> None:
    async with driven(situations.cluster_node(), (160, 50)) as driver:
        await driver.press("o")
        await driver.pilot.pause()
        rows = [row.split()[0] for row in driver.rows if row[1:3].strip().isdigit() and "GPUs " not in row]
        assert rows[:4] == ["17", "40-42", "50", "29"]


async def test_a_shared_server_says_who_has_which_gpu() -> None:
    async with driven(situations.shared(), (120, 36)) as driver:
        row = {line.split()[0]: line for line in driver.rows if line[1:2].isdigit() and "GPUs " not in line}
        assert row["2"].split()[11:16] == ["none", "8120", "ben", "40", "h"]
        assert "idle 41m" in row["5"] and "carla" in row["5"] and "-m ipykerne" in row["5"]
        assert " +1 " in row["4"] and "idle 7h+" in row["7"] and "free" in row["7"]
        assert "5 busy · 2 idle but held · 1 free" in driver.text


async def test_a_click_chooses_a_finding_and_a_second_one_opens_it() -> None:
    async with driven(situations.starved()) as driver:
        await driver.pilot.click("#findings", offset=(30, 2))
        await driver.pilot.pause()
        assert "follows from #1" in next(row for row in driver.rows if row.startswith("▌"))
        await driver.pilot.click("#findings", offset=(30, 2))
        await driver.pilot.pause()
        assert isinstance(driver.app.screen, FindingScreen)


async def test_a_click_on_the_verdict_opens_its_finding_and_one_on_a_key_does_what_the_key_does() -> None:
    async with driven(situations.starved()) as driver:
        await driver.pilot.click("#verdict", offset=(30, 1))
        await driver.pilot.pause()
        assert isinstance(driver.app.screen, FindingScreen)
        await driver.pilot.click("#keys", offset=(2, 0))
        await driver.pilot.pause()
        assert isinstance(driver.app.screen, MainScreen)
        column = driver.rows[-1].index("t timeline")
        await driver.pilot.click("#keys", offset=(column, 0))
        await driver.pilot.pause()
        assert isinstance(driver.app.screen, TimelineScreen)


async def test_a_click_on_a_gpu_opens_its_page() -> None:
    async with driven(situations.many_gpus(4)) as driver:
        row = next(index for index, row in enumerate(driver.rows) if row.startswith(" 2 H100"))
        await driver.pilot.click(offset=(5, row))
        await driver.pilot.pause()
        assert "GPU 2  NVIDIA" not in driver.text, "the first click chooses"
        await driver.pilot.click(offset=(5, row))
        await driver.pilot.pause()
        assert "GPU 2  NVIDIA H100 80GB HBM3" in driver.text


async def test_keys_of_nvitop_and_htop_lead_where_they_lead_there() -> None:
    async with driven(situations.starved()) as driver:
        for key, screen in (
            ("h", HelpScreen),
            ("question_mark", HelpScreen),
            ("t", TimelineScreen),
            ("p", ProcessesScreen),
        ):
            await driver.press(key)
            assert isinstance(driver.app.screen, screen)
            await driver.press(key)
            assert isinstance(driver.app.screen, MainScreen)
            await driver.press(key, "escape")
            assert isinstance(driver.app.screen, MainScreen)


async def test_q_leaves_with_0_and_ctrl_c_with_130() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("q")
    assert driver.app.return_code == 0
    async with driven(situations.starved()) as driver:
        await driver.press("t", "ctrl+c")
    assert driver.app.return_code == 130


async def test_the_palette_knows_our_commands_and_only_our_themes() -> None:
    async with driven(situations.starved()) as driver:
        titles = [command.title for command in driver.app.get_system_commands(driver.app.screen)]
        assert {"Timeline", "Theme", "Filter", "Quit"} <= set(titles)
        assert all(name.startswith("gpuwatch-") for name in driver.app.available_themes)
        await driver.press("ctrl+p", *"processes", "enter")
        await driver.settle()
        assert isinstance(driver.app.screen, ProcessesScreen)


async def test_snapshots_behind_another_screen_are_seen_on_return() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("question_mark")
        await driver.push(situations.healthy())
        await driver.press("escape")
        assert "nothing to change" in driver.text


async def test_a_snapshot_after_the_end_does_no_harm() -> None:
    monitor = FakeMonitor()
    async with driven(monitor=monitor) as driver:
        await driver.press("q")
    monitor.push(situations.starved())
    assert driver.app.return_code == 0


async def test_ended_runs_have_one_line_each_and_a_key_clears_them() -> None:
    async with driven(situations.with_ended()) as driver:
        line = next(row for row in driver.rows if row.startswith("─ sweep.py"))
        assert "ended (killed) 2 min ago, 18,204 steps" in line
        assert "old.py" not in driver.text
        await driver.press("x")
        await driver.pilot.pause()
        assert "sweep.py" not in driver.text and "1 ended run cleared." in driver.text
        await driver.press("x")
        await driver.pilot.pause()
        assert "No run has ended." in driver.text


async def test_mig_instances_are_lines_below_their_gpu_with_their_owners() -> None:
    async with driven(situations.mig()) as driver:
        assert "2 x H100 80GB HBM3, 3 instances" in driver.rows[0]
        rows = [row for row in driver.rows if row[1:3].strip().startswith(("0", "1")) and "GPUs" not in row]
        first = next(index for index, row in enumerate(driver.rows) if row.startswith(" 0 H100"))
        assert driver.rows[first + 1].startswith(" 0:0 3g.40gb    SM 71%")
        assert "37.0/40 GiB" in driver.rows[first + 1] and "ana" in driver.rows[first + 1]
        assert driver.rows[first + 3].startswith(" 0:2 1g.10gb") and driver.rows[first + 4].startswith(" 1 H100")
        assert "1 busy · 3 MIG instances" in driver.text, rows


def test_a_finding_names_the_instance() -> None:
    snapshot = situations.mig()
    about = situations.starvation(rule="memory-near-limit", run=None, summary="memory 96% full (0.4 GiB free)")
    (told, *_) = verdicts(View(replace(snapshot, findings=(replace(about, gpu="MIG-1"),))))
    assert told.sentence.startswith("GPU 0:1: memory 96% full")


async def test_where_there_is_room_the_finding_under_the_cursor_says_its_fix_below_the_list() -> None:
    async with driven(situations.starved(), (120, 44)) as driver:
        assert "  fix        Use 10 workers: each batch takes a worker 1.2 s" in driver.text
        assert "  expected   1.5-1.7x faster, then the GPU" in driver.text
        await driver.press("down")
        await driver.pilot.pause()
        below = driver.text[driver.text.index("○ HINT") :]
        assert below.index("─ amp-off ") < below.index("Run forward and loss under autocast in bfloat16")
    async with driven(situations.starved(), (80, 24)) as driver:
        assert "expected" not in driver.text


async def test_a_tall_terminal_has_times_of_day_below_the_charts_of_a_run() -> None:
    async with driven(situations.starved(), (240, 70)) as driver:
        axis = next(row for row in driver.rows if "▓ evaluation" in row)
        assert "│14:01:27" in axis and axis.rstrip().endswith("14:03:27")


@pytest.mark.parametrize("situation", [situations.starved, situations.straggler, situations.shared])
async def test_the_smallest_terminals_keep_sentence_line_gain_and_the_ways_to_help_and_out(situation: object) -> None:
    async with driven(situation(), (60, 18)) as driver:  # type: ignore[operator]
        top = "\n".join(driver.rows[1:6])
        assert "CRITICAL" in top and "1.5-1.7x faster" in top and ("train.py:88" in top or "cooling" in top)
        assert "? help" in driver.rows[-1] and "q quit" in driver.rows[-1]
