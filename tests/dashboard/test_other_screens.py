from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.charts import Trace
from gpuwatch.dashboard.screens.finding import median_trace, source_of
from gpuwatch.dashboard.screens.help import rule_page
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.screens.processes import COLUMNS, ProcessRow, ProcessScreen, Sorting, cuda_devices, process_rows
from gpuwatch.dashboard.themes import look
from gpuwatch.diagnosis.finding import CallEdit, Finding, Fix, Level, SetupEdit
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.foreign import whereabouts
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.samples import GpuProcess, RunFacts
from gpuwatch.sources.host.vitals import Vitals
from tests.dashboard import parts, situations
from tests.dashboard.piloting import Driven, driven

TRAIN = "\n".join(f"line_{number} = {number}" for number in range(1, 121))


async def test_a_finding_says_everything_that_is_known_of_it() -> None:
    async with driven(situations.starved(), (120, 60)) as driver:
        await driver.press("enter")
        for words in (
            "train.py (4711): the GPU idles 41% of the time waiting for data",
            "Use 10 workers: each batch takes a worker 1.2 s, and the GPU needs one every 0.13 s",
            "DataLoader: num_workers=4 → 10",
            "1.5-1.7x faster, then the GPU",
            "exact: GPU events, or exact CPU timings (level E3)",
            "GPU idle 41% of 60 s (192 steps)",
            "over 1 min",
            "since 13:58 (5 min)",
            "GPU 0 utilization",
            "train.py (4711) wait",
            "workers spend 1% of their time in state D",
            "gpuwatch trial num_workers=10 -- python train.py --config base.yaml",
        ):
            assert words in driver.text


async def test_a_hint_is_called_a_hint_and_not_a_measurement() -> None:
    async with driven(situations.starved(), (120, 60)) as driver:
        await driver.press("down", "enter")
        assert "A hint, not a measurement: 1.0-2.6x, from NVIDIA's A100 examples." in driver.text
        assert "Comes after data-starvation: fix that first" in driver.text


@pytest.mark.parametrize(
    ("level", "basis"),
    [
        (Level.E0, "Computed from what the GPU itself reports."),
        (Level.E1, "Computed from samples of this run's stack."),
        (Level.E2, "Computed from this run's own timings."),
    ],
)
async def test_a_gain_says_what_it_was_computed_from(level: Level, basis: str) -> None:
    snapshot = replace(situations.starved(), findings=(parts.starvation(level=level),))
    async with driven(snapshot, (120, 60)) as driver:
        await driver.press("enter")
        assert basis in driver.text


async def test_a_finding_that_is_gone_stays_on_its_screen_and_says_so() -> None:
    async with driven(situations.starved(), (120, 60)) as driver:
        await driver.press("enter")
        await driver.push(situations.healthy())
        assert "no longer there; began 13:58" in driver.text
        assert "DataLoader: num_workers=4 → 10" in driver.text


async def test_the_source_around_the_line_is_shown_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    fix = Fix("Use more workers", file=str(tmp_path / "train.py"), line=88)
    snapshot = run_in(tmp_path, situations.starvation(fix=fix))
    async with driven(snapshot, (120, 60)) as driver:
        await driver.press("enter")
        await driver.settle()
        shown = [row.strip() for row in driver.rows if "line_" in row]
        assert shown == [f"{'▌   ' if n == 88 else ''}{n}  line_{n} = {n}" for n in range(85, 92)]


async def test_a_diff_is_shown_where_one_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("\n" * 87 + "loader = DataLoader(data)\n")
    fix = Fix("More", file=str(path), line=88, edit=CallEdit("DataLoader", str(path), 88, {"num_workers": "10"}))
    async with driven(run_in(tmp_path, situations.starvation(fix=fix)), (120, 60)) as driver:
        await driver.press("enter")
        await driver.settle()
        assert "-loader = DataLoader(data)" in driver.text
        assert "+loader = DataLoader(data, num_workers=10)" in driver.text


async def test_the_diff_follows_the_advice(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("\n" * 87 + "loader = DataLoader(data)\n")

    def advising(count: str) -> Snapshot:
        edit = CallEdit("DataLoader", str(path), 88, {"num_workers": count})
        fix = Fix(f"Load in {count} workers", file=str(path), line=88, edit=edit)
        return run_in(tmp_path, situations.starvation(fix=fix))

    async with driven(advising("10"), (120, 60)) as driver:
        await driver.press("enter")
        await driver.settle()
        await driver.push(advising("12"))
        await driver.settle()
        assert "Load in 12 workers" in driver.text
        assert "num_workers=12)" in driver.text and "num_workers=10)" not in driver.text


def run_in(folder: Path, finding: Finding) -> Snapshot:
    """A finding about a run in that folder."""
    run = situations.run(ranks=(situations.rank(facts=trainer_in(folder)),))
    return situations.snapshot(runs=(run,), findings=(finding,))


def trainer_in(folder: Path) -> RunFacts:
    """A trainer that starts now, after its files were written."""
    ticks = round((time.clock_gettime(time.CLOCK_BOOTTIME) + 5) * 100)
    return replace(situations.rank().facts, cwd=str(folder), start_ticks=ticks, **whereabouts()._asdict())


def test_a_file_that_changed_since_the_start_is_not_shown_as_what_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    facts = replace(trainer_in(tmp_path), start_ticks=1)
    source = source_of(Fix("text", file="train.py", line=88), facts)
    assert source.lines == ()
    assert "was changed after the training started" in source.reason


async def test_files_that_a_simulated_run_names_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    fix = Fix("Use more workers", file=str(tmp_path / "train.py"), line=88)
    origin = replace(situations.LIVE, kind="simulated", label="SIMULATED starved")
    snapshot = situations.snapshot(findings=(situations.starvation(fix=fix),), origin=origin)
    async with driven(snapshot, (120, 60)) as driver:
        await driver.press("enter")
        await driver.settle()
        assert "line_88" not in driver.text


@pytest.mark.parametrize("kind", ["missing", "a folder", "too long", "too short", "a pipe"])
def test_a_source_that_cannot_be_shown_gives_its_reason(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_text("x\n" * (400_000 if kind == "too long" else 3))
    source = source_of(Fix("text", file="train.py", line=88), trainer_in(tmp_path))
    assert source.lines == ()
    assert source.reason.startswith(str(path) if kind != "too short" else "train.py has no line 88")


def test_where_no_diff_can_be_made_the_lines_are_shown_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    edit = CallEdit("DataLoader", "train.py", 88, {"num_workers": "10"})
    source = source_of(Fix("text", file="train.py", line=88, edit=edit), trainer_in(tmp_path))
    assert source.lines[3] == "line_88 = 88"
    assert source.reason == "No diff: line 88 of train.py does not hold exactly one DataLoader(...) call."


async def test_the_timeline_shows_gpus_steps_waits_and_phases_on_one_axis() -> None:
    async with driven(situations.starved(), (120, 44)) as driver:
        await driver.press("t")
        for words in (
            "train.py (4711) wait",
            "train.py (4711) step time",
            "GPU 0 utilization",
            "GPU 0 power",
            "host CPU",
        ):
            assert words in driver.text
        assert "eval" in next(row for row in driver.rows if row.startswith(" phases"))
        assert "2 min up to now" in driver.text
        assert "temperature" not in driver.text
        await driver.press("d")
        assert "GPU 0 temperature" in driver.text


async def test_the_timeline_moves_through_time_and_back_to_now() -> None:
    async with driven(situations.starved(), (120, 44)) as driver:
        await driver.press("t", "left")
        assert "2 min up to 30 s ago" in driver.text
        axis = driver.rows[2]
        assert "14:02:57" in axis
        await driver.press("left", "right", "right", "right")
        assert "2 min up to now" in driver.text
        await driver.press("left", "end")
        assert "2 min up to now" in driver.text


async def test_processes_are_listed_with_their_gpu_memory_and_share() -> None:
    foreign = GpuProcess(host_pid=901, pid=None, memory_bytes=2**30, sm_percent=None, command=None)
    gpu = situations.gpu()
    assert gpu.latest_status is not None and gpu.latest_status.processes is not None
    status = replace(gpu.latest_status, processes=(*gpu.latest_status.processes, foreign))
    async with driven(situations.snapshot(gpus=(replace(gpu, latest_status=status),))) as driver:
        await driver.press("p")
        own = next(row for row in driver.rows if " 4711 " in row)
        assert own.split() == [
            *("▌", "4711", "ana", "0", "60.8", "GiB", "57%", "-", "-", "17", "h"),
            *("exact", "(hook)", "python", "train.py", "--config", "base…"),
        ]
        assert "host 901 -         0      1.0 GiB     -      -         -      - NVML" in driver.text
        assert "not visible from this pid" in driver.text
        await driver.press("slash", *"901", "enter")
        assert "4711" not in driver.text


async def test_processes_of_runs_that_have_ended_are_gone_and_long_paths_do_not_hide_the_script() -> None:
    now = situations.cpu_run()
    facts = replace(now.runs[0].ranks[0].facts, command=("/home/me/envs/vision/bin/python", "train.py"))
    run = replace(now.runs[0], ranks=(replace(now.runs[0].ranks[0], facts=facts),))
    async with driven(replace(now, gpus=(), runs=(run,)), (80, 24)) as driver:
        await driver.press("p")
        assert "python train.py" in driver.text
        await driver.push(replace(now, gpus=(), runs=(replace(run, state="ended"),)))
        assert "train.py" not in driver.text


async def test_an_unknown_process_list_says_why() -> None:
    gpu = situations.gpu()
    assert gpu.latest_status is not None
    status = replace(gpu.latest_status, processes=None, unavailable={"processes": "no permission"})
    async with driven(situations.snapshot(gpus=(replace(gpu, latest_status=status),))) as driver:
        await driver.press("p")
        assert "GPU 0: process list unknown: no permission" in driver.text


async def test_a_page_scrolls_with_the_usual_keys() -> None:
    async with driven(situations.starved(), (80, 24)) as driver:
        await driver.press("question_mark")
        assert driver.rows[1].startswith("─ Keys")
        await driver.press("down", "down")
        assert not driver.rows[1].startswith("─ Keys")
        assert "enter, click" in "".join(driver.rows[1:4])
        await driver.press("end")
        assert "hook records" in driver.text
        await driver.press("home")
        assert driver.rows[1].startswith("─ Keys")


async def test_the_help_says_what_gpuwatch_itself_costs() -> None:
    async with driven(situations.starved(), (100, 90)) as driver:
        await driver.press("h")
        assert "CPU                   1% of one core" in driver.text
        assert "NVML calls            7.2 per GPU and second" in driver.text
        await driver.press("escape")
        assert isinstance(driver.app.screen, MainScreen)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_every_rule_has_a_page_that_reads_well(rule: object) -> None:
    lines = plain(rule_page(rule.id, rule.page, 80, look()))  # type: ignore[attr-defined]
    assert rule.title.split(" ")[0] in lines[1]  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in lines)


def test_a_rule_without_a_page_says_so() -> None:
    assert plain(rule_page("no-such-rule", None, 80, look()))[1].strip() == "There is no page for this rule."


SOURCE = "import torch\nloader = DataLoader(data, num_workers=config.workers)\n"


def trainer(folder: Path, *arguments: str) -> RunFacts:
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    (folder / "train.py").write_text(SOURCE)
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    command = ("python", "train.py", *arguments)
    return RunFacts(0, "1.1", 1, int(started), command, cwd=str(folder), **whereabouts()._asdict())


def test_the_config_file_of_the_command_line_is_in_the_diff(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("workers: 2  # enough\n")
    edit = CallEdit("DataLoader", "train.py", 2, {"num_workers": "6"})
    source = source_of(Fix("text", file="train.py", line=2, edit=edit), trainer(tmp_path, "base.yaml"))
    assert source.diff is not None
    assert "+workers: 6  # enough" in source.diff


def test_a_change_without_a_line_is_shown_and_what_is_left_is_said(tmp_path: Path) -> None:
    edit = SetupEdit("train.py", "torch.backends.cudnn.benchmark = True")
    left = CallEdit("SGD", "train.py", 2, {"fused": "True"})
    source = source_of(Fix("text", edit=edit, also=(left,)), trainer(tmp_path))
    assert source.diff is not None and "+torch.backends.cudnn.benchmark = True" in source.diff
    assert source.reason == "By hand: line 2 of train.py does not hold exactly one SGD(...) call."


def test_a_change_that_cannot_be_made_and_has_no_line_gives_its_reason(tmp_path: Path) -> None:
    source = source_of(Fix("text", edit=SetupEdit("gone.py", "f()")), trainer(tmp_path))
    assert (source.diff, source.lines) == (None, ())
    assert "cannot be read" in source.reason


async def test_a_finding_about_a_rank_charts_its_gpu_against_the_median_of_the_others() -> None:
    async with driven(situations.straggler(), (120, 44)) as driver:
        await driver.press("enter")
        await driver.settle()
        assert "GPU 5 SM clock" in driver.text and "median of 7 others SM clock" in driver.text


def test_a_median_of_traces_is_of_what_is_known_in_each_bucket() -> None:
    traces = [Trace((1.0, None, 3.0)), Trace((3.0, None, 5.0)), Trace((8.0, None, None))]
    assert median_trace(traces).mean == (3.0, None, 4.0)


async def test_the_timeline_of_many_gpus_is_a_map_with_a_line_for_each() -> None:
    async with driven(situations.cluster_node(), (160, 50)) as driver:
        await driver.press("t")
        await driver.settle()
        line = next(row for row in driver.rows if row.startswith(" GPU 3 "))
        assert "user0" in line and {"0", "9"} <= set(line[34:]) and not any(sign > "\u2800" for sign in line)
        assert not any("GPU 0 power" in row for row in driver.rows)
        await driver.press("d")
        await driver.settle()
        assert "GPU 0 power" in driver.text


async def test_processes_sort_by_a_key_and_by_a_click_on_a_head() -> None:
    def order(driver: Driven) -> list[str]:
        rows = [row.replace("▌", " ").split() for row in driver.rows[3:11]]
        return [row[0] for row in rows]

    async with driven(situations.shared(), (120, 36)) as driver:
        await driver.press("p")
        assert order(driver)[:3] == ["4711", "4711", "8120"]
        await driver.press("o", "o", "o", "o")
        assert "memory v" in driver.text and order(driver)[:4] == ["8120", "8121", "8122", "9033"]
        await driver.press("i")
        assert "memory ^" in driver.text and order(driver)[0] == "31007"
        await driver.pilot.click("#processes", offset=(14, 1))
        await driver.pilot.pause()
        assert order(driver)[0] == "4711" and "user" in driver.text
        assert driver.app.remembered.process_order == "user"


@pytest.mark.parametrize(
    ("wanted", "pids"),
    [
        ("user:carla", ["15502"]),
        ("gpu:4", ["8122", "31007"]),
        ("pid:9033", ["9033"]),
        ("user:ben gpu:2", ["8120"]),
        ("vllm", ["9033"]),
    ],
)
def test_processes_are_filtered_by_text_user_gpu_and_pid(wanted: str, pids: list[str]) -> None:
    assert [row.number for row in process_rows(situations.shared(), wanted, {})] == pids


def test_a_training_on_the_cpu_has_the_runtime_and_user_that_were_read_of_it() -> None:
    run = situations.run()
    now = situations.snapshot(gpus=(), runs=(run,))
    vitals = Vitals(started=now.wall_time - 90.0, cpu_percent=180.0, user="ana")
    (row,) = process_rows(now, "user:ana", {run.pid: vitals})
    assert (row.pid, row.age_seconds) == (run.pid, 90.0)


def test_gpus_sort_as_numbers_and_an_instance_below_its_gpu() -> None:
    rows = [ProcessRow(1, 1, label, "NVML", "x") for label in ("10", "2", "0:1", "0")]
    titles = [column.title for column in COLUMNS]
    assert [row.gpu for row in Sorting(titles.index("GPU")).sorted(rows)] == ["0", "0:1", "2", "10"]


def test_the_gpus_behind_a_process_s_own_indices_are_named_only_where_that_is_certain() -> None:
    gpus = situations.shared().gpus
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "3,1"}, gpus) == ("3", "1")
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": gpus[2].facts.uuid}, gpus) == ("2",)
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "GPU-"}, gpus) is None, "it could be any"
    assert cuda_devices({}, gpus) is None
    other = replace(gpus[0], facts=replace(gpus[0].facts, name="NVIDIA A2"))
    unequal = (other, *gpus[1:])
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "3"}, unequal) is None, "CUDA counts the fastest first"
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, unequal) == ("3",)


async def test_a_process_has_a_page_with_its_tree_and_how_it_was_launched() -> None:
    command = [sys.executable, "-c", "input()", "train.py"]
    environ = {**os.environ, "RANK": "3", "HF_TOKEN": "hidden", "NCCL_DEBUG": "INFO"}
    environ["CUDA_VISIBLE_DEVICES"] = "0"
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environ) as child:
        async with driven(on_gpu(child.pid), (120, 44)) as driver:
            await driver.press("p")
            await driver.settle()
            await driver.press("enter")
            await driver.settle()
            assert isinstance(driver.app.screen, ProcessScreen)
            assert "RANK" in driver.text and "NCCL_DEBUG" in driver.text and "hidden" not in driver.text
            assert f"{os.getpid()} " in driver.text, "its parent"
            assert "open files" in driver.text and "memlock" in driver.text and "seen by" in driver.text
            assert "cuda:0 is GPU 0" in driver.text
        child.communicate(b"\n")


async def test_a_signal_is_sent_after_a_question_that_names_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        async with driven(on_gpu(child.pid), (120, 44)) as driver:
            await driver.press("p")
            await driver.settle()
            await driver.press("K")
            await driver.settle()
            assert f"Send a signal to process {child.pid} of ana: python train.py" in driver.text
            assert child.poll() is None
            await driver.press("down", "down", "enter")
            await driver.settle()
            assert f"SIGKILL was sent to process {child.pid}." in driver.text
        assert child.wait() == -signal.SIGKILL


async def test_no_signal_is_sent_to_simulated_processes_nor_with_read_only() -> None:
    now = replace(situations.shared(), origin=Origin("simulated", "SIMULATED"))
    async with driven(now, (120, 44)) as driver:
        await driver.press("p", "K")
        await driver.settle()
        assert "Signals are for processes of this machine, now." in driver.text
        driver.app.read_only = True
        await driver.press("K")
        await driver.settle()
        assert any("it sends no signals" in note.message for note in driver.app._notifications)


def on_gpu(pid: int) -> Snapshot:
    """A machine on whose GPU a real process is."""
    gpu = situations.gpu()
    assert gpu.latest_status is not None
    process = GpuProcess(pid, pid, 2**30, 3.0, "python train.py", "ana", 60.0)
    return situations.snapshot(
        gpus=(replace(gpu, latest_status=replace(gpu.latest_status, processes=(process,))),), runs=()
    )
