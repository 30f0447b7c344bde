"""The GPU suite without a GPU: its scripts on the CPU, and its plumbing over a simulated driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from nvml_sim import SimulatedDriver

from benchmarks.gpu.cases import HERE, Case, Question
from benchmarks.gpu.replay import replayed_findings
from benchmarks.gpu.stream import MOST_BYTES, read
from benchmarks.gpu.suite import Suite
from tests.integration.live_watch import needs_reading

ROOT = HERE.parents[1]
PATIENCE_SECONDS = 120
BESIDE = {"helpers.py", "neighbour_busy.py"}  # no training, and none that counts steps
WATCH_SECONDS = "60"  # at most: it ends once all is found


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(out), *arguments]


def environment(driver: SimulatedDriver) -> dict[str, str]:
    return {**os.environ, **driver.env, "PYTHONPATH": str(ROOT)}


def rows(out: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads((out / "table.json").read_text())["rows"]}


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.05)


def test_every_training_script_makes_its_steps() -> None:
    scripts = sorted((HERE / "scenarios").glob("*.py"))
    runner = Path(__file__).with_name("scripts_on_cpu.py")
    done = subprocess.run(
        [sys.executable, str(runner), *(str(script) for script in scripts if script.name != "helpers.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"script"')]
    assert [each["failed"] for each in told if each["failed"]] == []
    assert {each["script"] for each in told if each["code"] == 0} | {"helpers.py"} == {each.name for each in scripts}
    assert {each["script"] for each in told if each["steps"] == 5} == {each.name for each in scripts} - BESIDE


def test_a_watched_training_is_judged_recorded_and_replayed(tmp_path: Path, simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("wave 0 utilization constant 40")
    out = tmp_path / "out"
    for scenario, seconds in (("F03", "10"), ("G02", WATCH_SECONDS)):
        arguments = ("--scenario", scenario, "--watch-seconds", seconds)
        done = subprocess.run(
            command(out, *arguments), env=environment(simulated_driver), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
    driver, starved = rows(out)["F03"], rows(out)["G02"]
    assert driver["figures"]["rings"]["utilization"]["entries"] == 72
    assert driver["figures"]["gpm"]["supported"] is True
    assert (starved["verdict"], starved["trace"], done.returncode) == ("ok", None, 0), done.stdout
    assert {"data-starvation", "workers-zero"} <= set(starved["found"])
    assert starved["figures"]["utilization_percent"] == pytest.approx(40, abs=2)
    assert starved["figures"]["visibility"] == "exact"
    (fix,) = starved["changes"]
    assert fix["samples_per_second"] > 0 and fix["measured"] > 0
    assert "expected data-starvation, workers-zero; found data-starvation" in done.stdout
    assert "| G02 |" in (out / "table.md").read_text()

    path = out / "streams" / "G02.jsonl.gz"
    assert path.stat().st_size <= MOST_BYTES
    stream = read(path)
    assert str(ROOT) not in repr(stream)
    again = replayed_findings(stream).seen
    assert set(again) == set(starved["found"])
    for rule, seen in again.items():
        assert seen.severity == starved["found"][rule]["severity"]
        assert seen.line == starved["found"][rule]["line"]


def test_stacks_are_compared_with_the_clocks_of_the_training(tmp_path: Path, simulated_driver: SimulatedDriver) -> None:
    needs_reading(os.getpid())
    out = tmp_path / "out"
    subprocess.run(
        command(out, "--scenario", "F04", "--watch-seconds", "8"),
        env=environment(simulated_driver),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    row = rows(out)["F04"]
    assert row["trace"] is None
    assert row["figures"]["visibility"] == "sampled"
    (shares,) = (remark for remark in row["remarks"] if remark.startswith("truth>stacks"))
    words = shares.split(": ")[1].split()
    told = {name: tuple(map(float, pair.split(">"))) for name, pair in zip(words[::2], words[1::2], strict=True)}
    true, seen = told["wait"]
    assert true > 50
    assert seen == pytest.approx(true, abs=12)


def test_what_the_budget_does_not_hold_is_listed_as_not_run(tmp_path: Path, simulated_driver: SimulatedDriver) -> None:
    done = subprocess.run(
        command(tmp_path, "--scenario", "F01,G02", "--budget-seconds", "5"),
        env=environment(simulated_driver),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert [row["verdict"] for row in rows(tmp_path).values()] == ["not run", "not run"]
    assert "s left of the budget" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_a_suite_that_is_ended_keeps_its_rows_and_leaves_no_process(
    number: signal.Signals, tmp_path: Path, simulated_driver: SimulatedDriver
) -> None:
    suite = subprocess.Popen(
        command(tmp_path, "--scenario", "F01,G02", "--watch-seconds", "100"),
        env=environment(simulated_driver) | {"TMPDIR": str(tmp_path)},  # nobody clears up behind a killed one
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        below = psutil.Process(suite.pid)
        wait_until(lambda: any("watching" in command for command in alive(below).values()))
        children = list(alive(below))
    finally:
        suite.send_signal(number)
        suite.wait(PATIENCE_SECONDS)
    assert len(children) >= 2
    wait_until(lambda: not any(map(is_alive, children)))
    assert rows(tmp_path)["F01"]["verdict"] == "told"


def alive(process: psutil.Process) -> dict[psutil.Process, str]:
    """The processes below one, with their commands."""
    found = {}
    for each in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended while it was asked
            if is_alive(each):
                found[each] = " ".join(each.cmdline())
    return found


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_item_that_fails_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [
        Question("X1", "no such program", "nowhere"),
        Question("X2", "a package that is not there", "environment", needs=("no_such_package",)),
        Case("X3", "a training that ends at once", "helpers.py"),
        Question("X4", "one that answers", "environment", needs=()),
    ]
    assert Suite(tmp_path, 300.0, device="cpu", watch_seconds=1.0).run(items) == 2
    told = rows(tmp_path)
    assert {id: row["verdict"] for id, row in told.items()} == {
        "X1": "failed",
        "X2": "skipped",
        "X3": "failed",
        "X4": "told",
    }
    assert "No module named" in told["X1"]["trace"]
    assert told["X2"]["remarks"] == ["no_such_package not installed"]
    assert "before step" in told["X3"]["trace"]
    assert "X4" in capsys.readouterr().out


def test_an_item_that_the_budget_breaks_off_has_not_failed(tmp_path: Path) -> None:
    script = tmp_path / "never_ready.py"
    script.write_text("import signal\nsignal.pause()\n")
    assert Suite(tmp_path, 2.0, device="cpu", watch_seconds=1.0).run([Case("X1", "a training", str(script))]) == 0
    assert rows(tmp_path)["X1"]["verdict"] == "not run"
    assert rows(tmp_path)["X1"]["remarks"] == ["the budget ended in the middle of it"]


def test_the_list_tells_how_long_each_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--list"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("F01")
    assert sum(int(line.split()[1]) for line in lines[:-1]) == pytest.approx(int(lines[-1].split()[1]), abs=len(lines))


def test_an_unknown_scenario_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--scenario", "G99"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 2
    assert "no scenario 'g99'" in done.stderr
