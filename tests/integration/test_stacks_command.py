"""`gpuwatch stacks` on a running process that was not started for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, gpuwatch

SECONDS = "3"

SCRIPT = """\
import sys, threading
stop = threading.Event()
def hot_path(total):
    return sum(number * number for number in range(total))
def train():
    print("ready", flush=True)
    while not stop.is_set():
        hot_path(2000)
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), name="ends", daemon=True).start()
train()
print("done", flush=True)
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    assert process.stdout.read() == "done\n"
    assert process.wait(PATIENCE_SECONDS) == 0
    process.stdout.close()


def test_the_tree_leads_to_the_hot_function(training: subprocess.Popen[str], tmp_path: Path) -> None:
    result = gpuwatch(tmp_path, "stacks", str(training.pid), "--seconds", SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    assert "hot_path" in result.stdout
    assert f"process {training.pid}, " in result.stdout


def test_the_collapsed_stacks_begin_at_the_module(training: subprocess.Popen[str], tmp_path: Path) -> None:
    result = gpuwatch(tmp_path, "stacks", str(training.pid), "--seconds", SECONDS, "--format", "collapsed")
    stack, _, looks = result.stdout.splitlines()[0].rpartition(" ")
    assert stack.split(";")[:2] == [f"process {training.pid}", f"<module> ({tmp_path}/train.py:10)"]
    assert int(looks) > 0


def test_the_speedscope_file_names_frames_and_lines(training: subprocess.Popen[str], tmp_path: Path) -> None:
    file = tmp_path / "out.speedscope.json"
    arguments = ("--seconds", SECONDS, "--format", "speedscope", "-o", str(file))
    result = gpuwatch(tmp_path, "stacks", str(training.pid), *arguments)
    assert (result.returncode, result.stdout) == (0, "")
    document = json.loads(file.read_text())
    assert {"name": f"train ({tmp_path}/train.py:8)", "file": f"{tmp_path}/train.py", "line": 8} in document["shared"][
        "frames"
    ]


def test_other_threads_are_shown_when_asked_for(training: subprocess.Popen[str], tmp_path: Path) -> None:
    result = gpuwatch(tmp_path, "stacks", str(training.pid), "--seconds", SECONDS, "--threads")
    assert f"process {training.pid} thread " in result.stdout


def test_what_is_no_python_process_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        result = gpuwatch(tmp_path, "stacks", str(cat.pid))
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not a Python process" in result.stderr
    assert result.stderr.count("\n") == 1
