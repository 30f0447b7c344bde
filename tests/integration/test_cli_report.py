from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command_line import (
    PATIENCE_SECONDS,
    OnTerminal,
    gpuwatch,
    lonely_environment,
    waiting_python,
    with_nothing_to_see,
)


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
    assert done.stdout.startswith("# gpuwatch report")


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
    assert target.read_text().startswith("# gpuwatch report")


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
    assert target.read_text().startswith("# gpuwatch report")


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
    assert f"({target.pid}) ended, and so did the watch" in out.decode()
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
