from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.dashboard.panels.verdict import verdicts
from gpuwatch.dashboard.screens.attach import AttachScreen
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.wiring import simulated_monitor
from tests.dashboard import situations
from tests.dashboard.fake_monitor import SECOND_NS
from tests.dashboard.piloting import Driven, driven


def listed(driver: Driven) -> list[str]:
    """The list's rows of processes."""
    return [row for row in driver.rows if row[1:9].strip().isdigit()]


def at_cursor(driver: Driven) -> str:
    (row,) = [row for row in driver.rows if row.startswith("▌")]
    return row


async def test_nothing_watched_but_processes_that_train_are_offered() -> None:
    async with driven(situations.unwatched(), (80, 24)) as driver:
        assert "2 training processes not monitored: press a to attach" in driver.text
        assert "5000 train.py, 6000 finetune.py" in driver.text
        assert " a attach" in driver.rows[-1]


def test_one_process_is_offered_in_the_singular_and_hooked_ones_are_not() -> None:
    hooked = situations.candidate(7000, visibility="exact")
    about = replace(situations.unwatched(), candidates=(hooked, situations.candidate()))
    assert verdicts(View(about))[0].sentence == "1 training process not monitored: press a to attach"
    assert verdicts(View(replace(about, candidates=(hooked,))))[0].word == "WATCHING"


def test_a_machine_without_gpus_offers_them_too() -> None:
    about = replace(situations.no_gpu(), candidates=(situations.candidate(gpu_uuids=()),))
    assert verdicts(View(about))[0].sentence == "1 training process not monitored: press a to attach"


async def test_each_process_is_listed_with_gpu_age_and_what_can_be_seen_of_it() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a")
        assert [row.removeprefix("▌").split() for row in listed_rows(driver)] == [
            *[["5000", "0", "62", "min", "sampled", "(stacks)", "ana", "python", "train.py", "--config", "base.yaml"]],
            *[["6000", "0", "25", "h", "/proc", "only", "ben", "python", "finetune.py"]],
        ]


def listed_rows(driver: Driven) -> list[str]:
    return [row for row in driver.rows if row.removeprefix("▌").strip().startswith(("5000  ", "6000  "))]


async def test_the_chosen_one_says_why_it_is_listed_and_how_to_see_more() -> None:
    async with driven(situations.unwatched(), (100, 30)) as driver:
        await driver.press("a")
        assert "it has libtorch in memory and 2 DataLoader workers below it" in driver.text
        await driver.press("j")
        assert "it has a context on GPU 0" in driver.text
        assert "kernel.yama.ptrace_scope is 1: only a parent may read its children" in driver.text
        assert "sudo sysctl kernel.yama.ptrace_scope=0" in driver.text


@pytest.mark.parametrize(("keys", "pid"), [(("enter",), 5000), (("down", "enter"), 6000), (("j", "k", "enter"), 5000)])
async def test_enter_attaches_to_the_chosen_one_and_returns(keys: tuple[str, ...], pid: int) -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a", *keys)
        await driver.settle()
        assert driver.monitor.attached == [pid]
        assert isinstance(driver.app.screen, MainScreen)


async def test_once_attached_the_top_line_names_it() -> None:
    async with driven(situations.attached()) as driver:
        assert "attached to 5000 train.py" in driver.rows[0]


async def test_a_watch_that_began_attached_says_it_once_and_not_after_detaching() -> None:
    async with driven(situations.attached(), narrowed_to="train.py (5000)") as driver:
        assert "attached to 5000 train.py" in driver.rows[0]
        assert "only" not in driver.rows[0]
        await driver.press("a", "enter")
        await driver.settle()
        await driver.push(situations.unwatched())
        assert "train.py" not in driver.rows[0]


async def test_a_again_offers_everything_and_enter_detaches() -> None:
    async with driven(situations.attached()) as driver:
        await driver.press("a")
        assert "everything on this machine again (detaches)" in at_cursor(driver)
        assert "enter detach" in driver.rows[-1]
        assert "attached now" in next(row for row in driver.rows if row[1:9].strip() == "5000")
        await driver.press("enter")
        await driver.settle()
        assert driver.monitor.attached == [None]


async def test_escape_and_a_leave_without_attaching() -> None:
    async with driven(situations.unwatched()) as driver:
        for key in ("escape", "a"):
            await driver.press("a")
            assert isinstance(driver.app.screen, AttachScreen)
            await driver.press(key)
            assert isinstance(driver.app.screen, MainScreen)
        assert driver.monitor.attached == []


async def test_the_filter_narrows_the_list_and_escape_clears_it_first() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a", "slash", *"fine", "enter")
        assert "1 of 2" in driver.text
        assert "finetune.py" in at_cursor(driver)
        await driver.press("escape")
        assert isinstance(driver.app.screen, AttachScreen)
        assert len(listed_rows(driver)) == 2
        await driver.press("slash", *"nobody", "enter")
        assert "No process matches the filter." in driver.text
        await driver.press("enter")
        assert driver.monitor.attached == []


async def test_the_filter_of_the_list_does_not_hide_the_findings_afterwards() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a", "slash", *"5000", "enter", "enter")
        await driver.settle()
        assert driver.monitor.attached == [5000]
        await driver.push(situations.attached())
        assert "1.5-1.7x" in driver.rows[driver.rows.index(next(r for r in driver.rows if "─ Findings" in r)) + 1]


def test_where_all_runs_have_ended_the_others_are_offered_again() -> None:
    over = replace(situations.attached(state="ended"), attached_pid=None, findings=())
    told = verdicts(View(replace(over, candidates=(situations.refused(),))))
    assert {verdict.word for verdict in told} == {"ENDED", "NOT WATCHED YET"}
    assert "ended after 1,843 batches" in told[0].sentence + told[1].sentence
    assert told[1].because.startswith("attaching needs no restart: ")


def test_what_is_said_of_a_run_that_has_ended_says_so() -> None:
    over = situations.attached(state="ended")
    waits = replace(over.findings[0], summary="Training waits 61% of the time")
    told = verdicts(View(replace(over, findings=(waits,))))
    assert told[0].sentence == "train.py (5000), ended: training waits 61% of the time"


async def test_the_cursor_stays_on_its_process_while_others_come() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a", "down")
        newcomer = situations.candidate(5500, age_seconds=1.0)
        now = replace(situations.unwatched(), candidates=(newcomer, *situations.unwatched().candidates))
        await driver.push(now)
        assert "finetune.py" in at_cursor(driver)


async def test_a_long_list_is_scrolled_to_its_end_and_the_details_stay() -> None:
    async with driven(situations.many_candidates(), (80, 24)) as driver:
        await driver.press("a", "end")
        assert "5039" in at_cursor(driver)
        assert "─ 5039 train.py" in driver.text
        await driver.press("home")
        assert "5000" in at_cursor(driver)


async def test_the_real_monitor_is_attached_and_detached_from_the_list() -> None:
    monitor = simulated_monitor("attached", virtual=True)
    end_ns = monitor.snapshot().time_ns + 40 * SECOND_NS
    monitor.run_until(end_ns)
    async with driven(monitor=monitor) as driver:  # type: ignore[arg-type]
        assert "attached to 4711 train.py" in driver.rows[0]
        assert "hot line augment.py:41" in driver.text
        await driver.press("a", "enter")
        await driver.settle()
        monitor.run_until(end_ns + 3 * SECOND_NS)
        assert monitor.snapshot().attached_pid is None
        driver.app.on_snapshot_arrived()
        driver.app.redraw()
        await driver.press("a", "down", "enter")
        await driver.settle()
        monitor.run_until(end_ns + 6 * SECOND_NS)
        assert monitor.snapshot().attached_pid == 6711
    monitor.stop()


async def test_a_click_chooses_and_a_second_one_attaches() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("a")
        for _ in range(2):
            await driver.pilot.click("#candidates", offset=(30, 3))
            await driver.pilot.pause()
        await driver.settle()
        assert driver.monitor.attached == [6000]


async def test_without_candidates_it_says_what_was_looked_for() -> None:
    async with driven(situations.starved()) as driver:
        await driver.press("a")
        assert "No process that trains was found on this machine." in driver.text
        await driver.press("enter", "down", "j")
        assert driver.monitor.attached == []


async def test_a_monitor_that_cannot_attach_says_so_and_the_dashboard_lives() -> None:
    async with driven(situations.unwatched()) as driver:

        def refuse(pid: int | None) -> None:
            raise ProcessLookupError(f"no process {pid}")

        driver.monitor.attach = refuse  # type: ignore[method-assign]
        await driver.press("a", "enter")
        await driver.settle()
        assert isinstance(driver.app.screen, MainScreen)
        assert "no process 5000" in "\n".join(note.message for note in driver.app._notifications)


async def test_the_processes_page_marks_who_can_be_attached_to() -> None:
    async with driven(situations.unwatched()) as driver:
        await driver.press("p")
        own = next(row for row in driver.rows if " 5000 " in row)
        assert own.replace("▌", " ").split()[:4] == ["5000", "ana", "0", "-"] and "no hook (a: attach)" in own
        assert "no hook, a: /proc only" in next(row for row in driver.rows if " 6000 " in row)
        await driver.press("a")
        assert isinstance(driver.app.screen, AttachScreen)


async def test_hostile_commands_in_the_list_are_shown_harmlessly() -> None:
    command = ("python", "[red]train[/].py\x1b[2J", "\u202egnp", "x" * 500)
    nasty = situations.candidate(
        command=command, user="\x1b]0;owned\x07", why="[bold]why[/]\n\x1b[2J", refusal="\x9b31m"
    )
    async with driven(replace(situations.unwatched(), candidates=(nasty,)), (80, 24)) as driver:
        await driver.press("a")
        assert "[red]train[/].py\\x1b[2J" in driver.text
        assert "[bold]why[/]" in driver.text
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for row in driver.rows for character in row)
        await driver.press("enter")
        await driver.settle()
        assert "].py\\x1b[2J" in "\n".join(note.message for note in driver.app._notifications)
