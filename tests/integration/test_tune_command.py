"""`gpuwatch tune` over real trainings, with git where it applies its patch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import PATIENCE_SECONDS, gpuwatch, lonely_environment
from test_trial_command import LOOP, TRAINING, assert_gone


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A git work tree with both programs."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    (folder / "loop.py").write_text(LOOP)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-q", "-m", "one")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def tuned(folder: Path, *words: str, script: str = "train.py") -> subprocess.CompletedProcess[str]:
    """Runs as short as the rules allow: a wait is certain after a few tens of steps."""
    words = ("tune", *words, "--", sys.executable, script)
    return gpuwatch(folder.parent, *words, cwd=folder, timeout=4 * PATIENCE_SECONDS)


def test_a_slow_dataset_gets_workers_and_the_patch_is_applied(work: Path) -> None:
    result = tuned(work, "loader", "--steps", "30", "--runs", "2", "--yes-apply", "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    first = found["attempts"][0]
    assert first["outcome"] == "kept" and first["predicted"] is not None, found
    workers = found["kept"]["num_workers"]
    assert workers > 0 and found["total"]["verdict"] == "faster"
    assert found["total"]["interval"]["low"] > 1.0
    assert f"num_workers={workers}" in (work / "train.py").read_text()
    assert git(work, "diff", "--stat").startswith(" train.py")
    assert "the patch is applied" in result.stderr


def test_where_no_finding_advises_a_setting_there_is_nothing_to_gain(work: Path) -> None:
    result = tuned(work, "--steps", "40", script="loop.py")
    assert result.returncode == 0, result.stderr
    assert "Result: nothing to gain: no finding of the first run" in result.stdout
    assert len((work / "written.txt").read_text().splitlines()) == 1, "one run"


def test_a_patch_is_applied_only_where_it_can_be_taken_back(work: Path) -> None:
    (work / "train.py").write_text(TRAINING + "# an own change\n")
    changed = tuned(work, "--yes-apply")
    assert (changed.returncode, changed.stdout) == (2, "")
    assert "commit or stash" in changed.stderr
    outside = work.parent / "outside"
    outside.mkdir()
    (outside / "train.py").write_text(TRAINING)
    assert "needs a git work tree" in tuned(outside, "--yes-apply").stderr


def test_a_program_that_does_not_train_is_reported_with_its_last_lines(work: Path) -> None:
    (work / "loop.py").write_text("print('no data')\nraise SystemExit(3)\n")
    result = tuned(work, script="loop.py")
    assert (result.returncode, result.stdout) == (2, "")
    assert "exit code 3" in result.stderr and "no data" in result.stderr


def test_ctrl_c_ends_the_training_too(work: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuwatch", "tune", "--seconds", "600", "--", sys.executable, "loop.py"]
    with subprocess.Popen(
        command,
        env=lonely_environment(tmp_path),
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tune:
        assert tune.stderr is not None
        written = work / "written.txt"
        for _ in tune.stderr:  # the first line comes before the first run
            break
        while not (written.exists() and written.read_text()):
            assert tune.poll() is None
            time.sleep(0.05)
        tune.send_signal(signal.SIGINT)
        out, err = tune.communicate(timeout=PATIENCE_SECONDS)
    assert tune.returncode == 130
    assert "INCOMPLETE: stopped before its end" in out and "Traceback" not in err
    assert_gone([int(line.split()[0]) for line in written.read_text().splitlines()])
