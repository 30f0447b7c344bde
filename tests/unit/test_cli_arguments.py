from __future__ import annotations

import subprocess
import sys

import pytest

from gpuwatch.cli.arguments import ANY_PROCESS, parse
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.text import did_you_mean


def test_no_command_is_the_dashboard_over_everything() -> None:
    arguments = parse([])
    assert (arguments.command, arguments.attach, arguments.interval) == ("dashboard", None, 1.0)


def test_options_of_watching_stand_before_or_behind_the_command() -> None:
    for argv in (["--attach", "5", "--interval", "2", "watch"], ["watch", "--attach", "5", "--interval", "2"]):
        arguments = parse(argv)
        assert (arguments.command, arguments.attach, arguments.interval) == ("watch", 5, 2.0)


@pytest.mark.parametrize("argv", [[], ["watch"], ["trial", "tf32=true"], ["replay", "a.gpuwatch"]])
def test_only_the_command_that_is_called_is_imported(argv: list[str]) -> None:
    program = (
        "import sys\n"
        "from gpuwatch.cli.arguments import COMMANDS, parse\n"
        "parse(sys.argv[1:])\n"
        "print(*({name for name in COMMANDS if f'gpuwatch.cli.{name}' in sys.modules} - {'config', 'run'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, check=True)
    assert done.stdout.split() == argv[:1]


def test_report_defaults() -> None:
    arguments = parse(["report"])
    assert (arguments.duration, arguments.format, arguments.output, arguments.fail_on) == (60.0, "md", None, None)
    assert (arguments.attach, arguments.simulate) == (None, None)


def test_options_are_not_guessed_from_their_beginning() -> None:
    with pytest.raises(GpuwatchError, match="did you mean '--duration'"):
        parse(["report", "--durat", "5"])


def test_an_option_of_another_command_is_reported_with_that_command() -> None:
    with pytest.raises(GpuwatchError, match=r"'--runs': it is an option of `gpuwatch trial`"):
        parse(["watch", "--runs", "3"])


def test_nothing_near_is_nothing_suggested() -> None:
    assert did_you_mean("qqq", ["report", "watch"]) == ""


def test_a_replay_takes_the_config_that_a_report_takes() -> None:
    for command in (["replay", "x.gpuwatch"], ["report", "x.gpuwatch"]):
        arguments = parse([*command, "--ignore", "low-util,power", "--select", "data", "--config", "lax.toml"])
        assert (arguments.ignore, arguments.select) == ([["low-util", "power"]], [["data"]])
        assert (arguments.config_file, arguments.isolated) == ("lax.toml", False)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["--attach"], "dashboard"),
        (["--attach", "--interval", "2"], "dashboard"),
        (["report", "--attach"], "report"),
        (["report", "--attach", "--format", "json"], "report"),
        (["watch", "--attach"], "watch"),
    ],
)
def test_attach_without_a_pid_leaves_open_which_process(argv: list[str], command: str) -> None:
    arguments = parse(argv)
    assert (arguments.command, arguments.attach) == (command, ANY_PROCESS)


@pytest.mark.parametrize(
    ("command", "meant"),
    [("report", r"report --attach \[PID\]"), ("watch", r"watch --attach \[PID\]"), ("stacks", "stacks PID")],
)
def test_command_behind_attach_is_reported_where_it_stands(command: str, meant: str) -> None:
    with pytest.raises(GpuwatchError, match=f"'{command}' is a command and comes first: `gpuwatch {meant}`"):
        parse(["--attach", command])


@pytest.mark.parametrize("argv", [["--inject"], ["--attach", "--inject"], ["report", "--attach", "--inject", "--yes"]])
def test_nothing_is_injected_into_a_process_that_nobody_named(argv: list[str]) -> None:
    with pytest.raises(GpuwatchError, match="--attach PID"):
        parse(argv)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500 * 2**20), ("1G", 2**30), ("1.5g", 3 * 2**29), ("2097152", 2**21), ("64 MiB", 64 * 2**20)],
)
def test_a_files_most_is_read_as_people_write_sizes(text: str, size: int) -> None:
    assert parse(["record", "--record-max", text]).record_max == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "10X", "1023K"])
def test_what_is_no_size_of_a_recording_is_refused(text: str) -> None:
    with pytest.raises(GpuwatchError, match="--record-max"):
        parse(["record", f"--record-max={text}"])


def test_behind_the_dashes_everything_belongs_to_the_command() -> None:
    parsed = parse(["--interval", "0.5", "record", "-o", "a.gpuwatch", "--", "sh", "-c", "x", "--", "-o", "b"])
    assert parsed.command_line == ["sh", "-c", "x", "--", "-o", "b"]
    assert (parsed.output, parsed.interval) == ("a.gpuwatch", 0.5)
    assert parse(["record"]).command_line == []


@pytest.mark.parametrize(("text", "speed"), [("4", 4.0), ("0.25", 0.25), ("60x", 60.0)])
def test_the_speed_of_a_replay(text: str, speed: float) -> None:
    assert parse(["replay", "a.gpuwatch", "--speed", text]).speed == speed


@pytest.mark.parametrize("text", ["0", "61", "fast", "nan"])
def test_a_speed_that_cannot_be_played_is_refused(text: str) -> None:
    with pytest.raises(GpuwatchError, match="--speed"):
        parse(["replay", "a.gpuwatch", "--speed", text])
