from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch._version import __version__
from tests.integration.command_line import gpuwatch


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
        (["--attach", "abc"], ["'abc'", "number such as 4711"]),
        (["--attach", "0"], ["'0'"]),
        (["--attach", "99999999999999999999"], ["There is no process"]),
        (["report", "--attach", "4194305"], ["There is no process 4194305"]),
        (["watch", "--simulate", "starved", "--attach", "1"], ["exclude each other"]),
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


def test_version_is_the_package_version(tmp_path: Path) -> None:
    assert gpuwatch(tmp_path, "--version").stdout == f"gpuwatch {__version__}\n"


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
