"""Commands without a screen: report and config, what watch prints, wrong input, signals, the summary of a job."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch import __version__
from gpuwatch.cli.output import MOST_SUMMARY_BYTES
from tests.integration.command_line import (
    PATIENCE_SECONDS,
    OnTerminal,
    gpuwatch,
    lonely_environment,
    waiting_python,
    with_nothing_to_see,
)

OPENING = "> **SIMULATED "
"""Of Markdown whose numbers are of no machine."""


@pytest.mark.parametrize("form", ["md", "text", "json"])
def test_simulated_report_says_so_in_every_format(tmp_path: Path, form: str) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert "SIMULATED starved" in done.stdout
    assert "workers-zero" in done.stdout
    assert "/simulated/train.py:88" in done.stdout or json.loads(done.stdout)["findings"][0]["fix"]["line"] == 88


def test_simulated_report_covers_the_asked_duration(tmp_path: Path) -> None:
    document = json.loads(
        gpuwatch(tmp_path, "report", "--simulate", "hang", "--duration", "300", "--format", "json").stdout
    )
    assert document["gpuwatch"]["duration_seconds"] == 300
    assert document["gpuwatch"]["source"] == "simulated"
    assert document["findings"][0]["rule"] == "collective-hang"
    assert {len(history["mean"]) for history in document["history"]} == {60}


@pytest.mark.parametrize(
    ("scenario", "fail_on", "code"),
    [
        ("starved", "warning", 1),
        ("starved", "critical", 1),
        ("fluctuation", "critical", 0),
        ("fluctuation", "warning", 1),
        ("low-power", "warning", 0),
        ("healthy", "warning", 0),
    ],
)
def test_fail_on_asks_for_findings_that_bad_or_worse(tmp_path: Path, scenario: str, fail_on: str, code: int) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", scenario, "--fail-on", fail_on)
    assert done.returncode == code
    assert done.stdout.startswith(OPENING)


def test_output_file_is_whole_utf8_and_the_only_file(tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.md"
    target.parent.mkdir()
    target.write_text("before")
    target.chmod(0o640)
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", "-o", str(target), environment={"LC_ALL": "POSIX"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "°C" in target.read_text(encoding="utf-8")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["report.md"]


def test_output_through_a_link_replaces_the_file_and_not_the_link(tmp_path: Path) -> None:
    target = tmp_path / "real.md"
    link = tmp_path / "link.md"
    link.symlink_to(target)
    assert gpuwatch(tmp_path, "report", "--simulate", "healthy", "-o", str(link)).returncode == 0
    assert link.is_symlink()
    assert target.read_text().startswith(OPENING)


def test_full_disk_leaves_the_old_file_and_no_partial_one(tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.md"
    target.parent.mkdir()
    target.write_text("before")
    limited = f"ulimit -f 1; exec {sys.executable} -m gpuwatch report --simulate starved --format json -o {target}"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {limited}"],
        # Python does not notice that a file of bytecode has no room, and would find half of it ever after.
        env=lonely_environment(tmp_path, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert target.read_text() == "before"
    assert [path.name for path in target.parent.iterdir()] == ["report.md"]


@pytest.mark.parametrize("arguments", [[], ["--format", "json"], ["-o", "/dev/full"]])
def test_full_device_is_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = gpuwatch(tmp_path, "report", "--simulate", "starved", *arguments, stdout=full)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_closed_pipe_ends_silently(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_descriptors_are_no_crash(tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    for arguments, redirections, code in [
        ("", ">&-", 2),
        (f"-o {target}", "<&- >&- 2>&-", 0),
    ]:
        command = f"exec {sys.executable} -m gpuwatch report --simulate healthy {arguments} {redirections}"
        done = subprocess.run(["bash", "-c", command], env=lonely_environment(tmp_path), capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr
    assert target.read_text().startswith(OPENING)


def test_posix_locale_gets_ascii_and_the_same_findings(tmp_path: Path) -> None:
    environment = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", "--format", "text", environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "workers-zero" in done.stdout
    assert "deg C" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_report_says_what_was_seen_so_far(tmp_path: Path, number: signal.Signals) -> None:
    with waiting_python() as target:
        command = OnTerminal(tmp_path, "report", "--attach", str(target.pid), "--duration", "600", "--format", "json")
        command.wait_for("1 run")
        out, code = command.end_with(number)
    assert code == 130
    assert json.loads(out)["gpuwatch"]["incomplete"] is True
    assert "Traceback" not in command.shown


def test_interrupted_report_is_marked_incomplete_in_markdown(tmp_path: Path) -> None:
    with waiting_python() as target:
        command = OnTerminal(tmp_path, "report", "--attach", str(target.pid), "--duration", "0")
        command.wait_for("1 run")
        out, code = command.end_with(signal.SIGINT)
    assert code == 130
    assert "INCOMPLETE" in out


def test_report_ends_with_the_attached_process_and_says_so(tmp_path: Path) -> None:
    with waiting_python() as target:
        command = OnTerminal(tmp_path, "report", "--attach", str(target.pid), "--duration", "600")
        command.wait_for("1 run")
        assert target.stdin is not None
        target.stdin.close()
        target.wait()
        out, _ = command.process.communicate(timeout=PATIENCE_SECONDS)
    assert command.process.returncode == 0
    assert f"({target.pid}) ended, so gpuwatch stopped watching" in out.decode()
    assert "INCOMPLETE" not in out.decode()


def test_duration_that_is_over_before_the_first_look_still_shows_the_attached_process(tmp_path: Path) -> None:
    with waiting_python() as target:
        done = gpuwatch(tmp_path, "report", "--attach", str(target.pid), "--duration", "0.01", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [run["pid"] for run in json.loads(done.stdout)["runs"]] == [target.pid]


def test_nothing_to_measure_is_reported_with_the_way_to_get_going(tmp_path: Path) -> None:
    done = with_nothing_to_see(tmp_path, "report", "--duration", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for part in ("no GPU", "no training run", "gpuwatch run", "gpuwatch doctor", "gpuwatch demo"):
        assert part in done.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_the_command_line_alone(option: str) -> None:
    program = (
        "import contextlib, io, sys\n"
        "from gpuwatch.__main__ import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): code = main(['{option}'])\n"
        "heavy = ('textual', 'torch', 'numpy', 'gpuwatch.samples', 'gpuwatch.timeline', 'gpuwatch.monitor')\n"
        "print(code, sorted(name for name in heavy if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0 []\n"


def test_report_loads_no_textual(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from gpuwatch.__main__ import main\n"
        "code = main(['report', '--simulate', 'starved', '-o', '/dev/null'])\n"
        "print(code, sorted(name for name in sys.modules if name.partition('.')[0] in ('textual', 'torch')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=lonely_environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "0 []\n"


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIMULATED = ("report", "--simulate", "starved", "--duration", "30", "--format", "json")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def rules_of(folder: Path, project: Path, *arguments: str) -> set[str]:
    """The rules of the findings of a simulated run."""
    done = gpuwatch(folder, *SIMULATED, *arguments, cwd=project)
    assert done.returncode == 0, done.stderr
    return {finding["rule"] for finding in json.loads(done.stdout)["findings"]}


def test_the_project_file_leaves_rules_out_and_the_command_line_lets_them_in_again(
    tmp_path: Path, project: Path
) -> None:
    (project / "pyproject.toml").write_text('[tool.gpuwatch]\nignore = ["workers-", "utilization"]')
    assert rules_of(tmp_path, project) == {"data-starvation"}
    assert "workers-zero" in rules_of(tmp_path, project, "--ignore", "utilization")
    assert "low-util" in rules_of(tmp_path, project, "--isolated")


def test_what_is_selected_may_stand_before_or_behind_the_command(tmp_path: Path, project: Path) -> None:
    assert rules_of(tmp_path, project, "--select", "workers-zero,low-util") == {"workers-zero", "low-util"}
    before = gpuwatch(tmp_path, "--select", "low-util", *SIMULATED, cwd=project)
    assert {finding["rule"] for finding in json.loads(before.stdout)["findings"]} == {"low-util"}


def test_a_threshold_of_a_file_decides(tmp_path: Path, project: Path) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text("[rules.low-util]\nfire-percent = 20\nhardly-percent = 10\nclear-percent = 25")
    assert "low-util" not in rules_of(tmp_path, project, "--config", str(strict))


def test_a_report_fails_on_what_the_file_says(tmp_path: Path, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.gpuwatch]\nfail-on = "critical"')
    assert gpuwatch(tmp_path, *SIMULATED, cwd=project).returncode == 1
    assert gpuwatch(tmp_path, *SIMULATED, "--ignore", "data", cwd=project).returncode == 0


@pytest.mark.parametrize("command", ["report", "watch", "config"])
def test_a_config_that_cannot_be_used_ends_in_one_sentence(tmp_path: Path, project: Path, command: str) -> None:
    (project / "pyproject.toml").write_text("[tool.gpuwatch.rules.data-starvation]\nfire-share = 3")
    done = gpuwatch(tmp_path, command, cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pyproject.toml: tool.gpuwatch.rules.data-starvation.fire-share = 3 is out of range" in done.stderr


def test_explaining_a_rule_needs_no_config(tmp_path: Path, project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.gpuwatch]\nnonsense = 3")
    assert gpuwatch(tmp_path, "explain", "low-util", cwd=project).returncode == 0


def test_the_settings_that_hold_are_shown_as_toml_with_their_files(tmp_path: Path, project: Path) -> None:
    path = project / "pyproject.toml"
    path.write_text(
        '[tool.gpuwatch]\ninterval = 2\nignore = ["power"]\n[tool.gpuwatch.rules.low-util]\nfire-percent = 80'
    )
    done = gpuwatch(tmp_path, "config", "--select", "data", cwd=project)
    assert done.returncode == 0
    assert tomllib.loads(done.stdout) == {
        "interval": 2.0,
        "ignore": ["power"],
        "select": ["data"],
        "rules": {"low-util": {"fire-percent": 80.0}},
    }
    assert f"# reads {path} [tool.gpuwatch]" in done.stdout
    assert "by default 85" in done.stdout and "--select" in done.stdout


def test_without_a_file_it_is_said_where_they_would_be(tmp_path: Path, project: Path) -> None:
    done = gpuwatch(tmp_path, "config", cwd=project)
    assert done.stdout.startswith("# no config: ") and "gpuwatch/config.toml" in done.stdout


LINE = re.compile(
    r"\d\d:\d\d:\d\d \| SIMULATED starved \| GPU 0 \d+/700 W \(\d+%\) \| util \d+% \| mem 65\.6/80\.0 GiB "
    r"\| \d+ °C \| SM \d+ MHz \| mem clock 2619 MHz \| step \d+ ms \| wait \d+%\n"
)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuwatch", *arguments],
        env=lonely_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_watch_ends_after_its_duration(tmp_path: Path) -> None:
    with started(tmp_path, "watch", "--simulate", "starved", "--duration", "2") as process:
        written, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert all(LINE.fullmatch(line) for line in written.splitlines(keepends=True)) and written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_writes_lines_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "watch", "--simulate", "starved") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(number)
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert all(LINE.fullmatch(line) for line in lines)
    assert process.returncode == 130
    assert "CRITICAL data-starvation" in told
    assert "Traceback" not in told


def test_watch_ends_silently_when_its_reader_goes(tmp_path: Path) -> None:
    with started(tmp_path, "watch", "--simulate", "healthy") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("arguments", [[], ["demo", "starved"]], ids=["dashboard", "demo"])
def test_without_a_terminal_the_dashboard_is_lines_with_a_note(tmp_path: Path, arguments: list[str]) -> None:
    with waiting_python() as target:
        attach = [] if arguments else ["--attach", str(target.pid)]
        with started(tmp_path, *arguments, *attach) as process:
            assert process.stdout is not None
            # A line may come before the process has been looked at.
            line = next(line for line in process.stdout if "| no run" not in line)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert ("SIMULATED starved" in line) == bool(arguments)
    assert "step" in line
    assert "needs a terminal" in told
    assert "gpuwatch watch" in told
    assert "\x1b" not in line + told


def test_watch_ends_with_the_attached_process(tmp_path: Path) -> None:
    with waiting_python() as target, started(tmp_path, "watch", "--attach", str(target.pid)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert target.stdin is not None
        target.stdin.close()
        target.wait()
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert f"({target.pid}) has ended" in told


def test_watch_in_a_posix_locale_is_ascii(tmp_path: Path) -> None:
    environment = lonely_environment(tmp_path, LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuwatch", "watch", "--simulate", "healthy"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    process.communicate()
    assert line.isascii()
    assert b" deg C " in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["reprot"], ["unknown command 'reprot'", "did you mean 'report'", "watch"]),
        (["zzz"], ["unknown command 'zzz'", "report"]),
        (["report", "--simulate", "strved"], ["unknown scenario 'strved'", "did you mean 'starved'", "eight-gpus"]),
        (["watch", "--simulate", ""], ["unknown scenario ''", "healthy"]),
        (["demo", "eight"], ["unknown scenario 'eight'", "eight-gpus"]),
        (["report", "--formt", "json"], ["'--formt'", "did you mean '--format'"]),
        (["report", "--format", "htm"], ["unknown --format 'htm'", "did you mean 'html'"]),
        (["report", "--fail-on", "waring"], ["did you mean 'warning'"]),
        (["report", "--duration", "-5"], ["-5", "between 0 and"]),
        (["report", "--duration", "nan"], ["nan", "between 0 and"]),
        (["report", "--duration", "soon"], ["'soon' is not a number"]),
        (["report", "--duration", "0", "--simulate", "starved"], ["never end"]),
        (["report", "--duration"], ["--duration"]),
        (["--interval", "0.01"], ["0.01", "between 0.1 and 60"]),
        (["watch", "--once"], ["stands without a command, `gpuwatch --once`"]),
        (["--json"], ["gpuwatch --once --json"]),
        (["--once", "--attach", "1"], ["--once shows the whole machine"]),
        (["explain", "worker"], ["'worker' begins several rules: ", "worker-cpu-bound"]),
        (["--attach", "abc"], ["'abc'", "number such as 4711"]),
        (["--attach", "0"], ["'0'"]),
        (["--attach", "99999999999999999999"], ["there is no process"]),
        (["report", "--attach", "4194305"], ["there is no process 4194305"]),
        (["watch", "--simulate", "starved", "--attach", "1"], ["cannot be combined"]),
        (["report", "-o", "/no/such/folder/report.md"], ["/no/such/folder", "-o"]),
        (["report", "-o", "/tmp"], ["is a folder"]),
        (["explain", "data-starvatoin"], ["data-starvation"]),
        (["--frobnicate"], ["'--frobnicate'", "--help"]),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_two(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    done = gpuwatch(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("gpuwatch: ")
    for part in parts:
        assert part in done.stderr


def test_process_that_is_not_python_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as target:
        done = gpuwatch(tmp_path, "report", "--attach", str(target.pid))
        target.kill()
    assert done.returncode == 2
    assert "is not a Python process" in done.stderr


def test_process_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        # Without root no process of a second user can be made; init belongs to root.
        done = gpuwatch(tmp_path, "report", "--attach", "1")
        assert done.returncode == 2
        return
    code = "import os, sys; os.setuid(65534); sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:  # type: ignore[call-overload]
        other.stdout.read(1)
        as_nobody = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER.format(pid=other.pid)],
            capture_output=True,
            text=True,
        )
        other.stdin.close()
    assert as_nobody.returncode == 2
    assert "belongs to" in as_nobody.stderr
    assert len(as_nobody.stderr.splitlines()) == 1


AS_ANOTHER_USER = """\
import contextlib, io, os, sys
from gpuwatch.__main__ import main
with contextlib.redirect_stderr(io.StringIO()):
    main(["report", "--attach", "4194305"])  # loads all modules while the interpreter's folder can still be read
os.setuid(65533)
sys.exit(main(["report", "--attach", "{pid}"]))
"""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["report", "--help"], ["demo", "--help"]])
def test_help_and_version_are_data_on_stdout(tmp_path: Path, arguments: list[str]) -> None:
    done = gpuwatch(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpuwatch" in done.stdout


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_the_package_version(tmp_path: Path, option: str) -> None:
    assert gpuwatch(tmp_path, option).stdout == f"gpuwatch {__version__}\n"


def test_help_is_a_command_as_well(tmp_path: Path) -> None:
    assert gpuwatch(tmp_path, "help", "report").stdout == gpuwatch(tmp_path, "report", "--help").stdout
    assert gpuwatch(tmp_path, "help").stdout == gpuwatch(tmp_path, "--help").stdout


def test_a_rule_is_explained_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    assert gpuwatch(tmp_path, "explain", "data-st").stdout == gpuwatch(tmp_path, "explain", "data-starvation").stdout


def test_help_of_demo_lists_the_scenarios(tmp_path: Path) -> None:
    assert "eight-gpus" in gpuwatch(tmp_path, "demo", "--help").stdout


def test_help_to_a_closed_pipe_or_a_full_disk_is_silent(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = gpuwatch(tmp_path, "--help", stdout=full)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_bug_is_reported_in_one_sentence_and_shown_only_on_demand() -> None:
    program = (
        "import sys\n"
        "import gpuwatch.cli.arguments as arguments\n"
        "def broken(argv): raise ZeroDivisionError('by \\x1b[31mnought')\n"
        "arguments.parse = broken\n"
        "from gpuwatch.__main__ import main\n"
        "sys.exit(main(['report']))\n"
    )
    quiet = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert quiet.returncode == 2
    assert len(quiet.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in quiet.stderr
    assert "\x1b" not in quiet.stderr
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"GPUWATCH_TRACEBACK": "1"}
    )
    assert "Traceback" in told.stderr


PROGRAM = """
import os, signal, threading
from gpuwatch.cli.signals import Child

ended = threading.Event()
with Child() as child:
    threading.Thread(target=ended.wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child.start(["sleep", "0.3"], os.environ)
    while (code := child.wait(None)) is None:
        pass
    print(code)
"""


def test_the_end_of_the_command_is_seen_although_another_thread_receives_the_signal() -> None:
    """The kernel chooses the thread; one that comes just before the wait for a lock is lost in the same way."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_report_is_appended_to_the_summary_of_the_job_verdict_first(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("### before\n")
    done = gpuwatch(
        tmp_path,
        "report",
        "--simulate",
        "starved",
        "--format",
        "json",
        environment={"GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert done.returncode == 0
    assert "GITHUB_STEP_SUMMARY" in done.stderr
    text = summary.read_text(encoding="utf-8")
    assert text.startswith(f"### before\n{OPENING}")
    assert text.index("gpuwatch: CRITICAL") < text.index("num_workers=3") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") >= 3
    assert not any(line.startswith(("# ", "## ")) for line in text.splitlines())


def test_summary_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    for place in (tmp_path / "missing" / "summary.md", Path("/dev/full")):
        done = gpuwatch(
            tmp_path,
            "report",
            "--simulate",
            "starved",
            "--fail-on",
            "critical",
            environment={"GITHUB_STEP_SUMMARY": str(place)},
        )
        assert done.returncode == 1
        assert done.stdout.startswith(OPENING)
        assert "cannot be written" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_summary_that_is_nearly_full_gets_the_verdict_alone_and_a_full_one_nothing(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    for room, said in ((1000, "also added"), (10, "is full")):
        summary.write_bytes(b"x" * (MOST_SUMMARY_BYTES - room))
        done = gpuwatch(tmp_path, "report", "--simulate", "starved", environment={"GITHUB_STEP_SUMMARY": str(summary)})
        assert done.returncode == 0
        assert said in done.stderr
        assert summary.stat().st_size <= MOST_SUMMARY_BYTES
        assert (b"CRITICAL" in summary.read_bytes()) == (room > 10)
        assert b"<details>" not in summary.read_bytes()
