from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, lonely_environment, waiting_python

LINE = re.compile(
    r"\d\d:\d\d:\d\d \| SIMULATED starved \| GPU 0 \d+/700 W \(\d+ %\) \| util \d+ % \| mem 65\.6/80\.0 GiB "
    r"\| \d+ °C \| SM \d+ MHz \| mem clock 2619 MHz \| step \d+ ms \| wait \d+ %\n"
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
