"""`gpuwatch trial` over real processes: small loops that step without torch, and one that loads with workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import PATIENCE_SECONDS, gpuwatch, lonely_environment

from gpuwatch.trial import process_guard

LOOP = """\
import os, sys, time
import gpuwatch

def given(name, usual):
    return type(usual)(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else usual

open("written.txt", "a").write(f"{os.getpid()} {os.environ.get('SPEED', '')}\\n")
pause = given("--pause", 0.004)
for step in range(given("--steps", 1_000_000)):
    if step == given("--fails-at", -1):
        raise ValueError("this arm cannot train")
    time.sleep(pause)
    gpuwatch.step(8)
"""
TRAINING = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.025)
        return torch.zeros(4)

if __name__ == "__main__":
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in DataLoader(Slow(), batch_size=4, num_workers=0):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "loop.py"
    path.parent.mkdir()
    path.write_text(LOOP)
    return path


def tried(script: Path, *words: str, behind: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A trial of the script with short runs, of which there may be ten."""
    command = [sys.executable, script.name, *behind]
    words = ("trial", "--steps", "40", *words, "--", *command)
    return gpuwatch(script.parent.parent, *words, cwd=script.parent, timeout=2 * PATIENCE_SECONDS)


def assert_gone(pids: Collection[int]) -> None:
    """What was killed may take the kernel, and init, a moment."""
    reached = time.monotonic() + PATIENCE_SECONDS
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < reached
        time.sleep(0.05)


def content(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.stdout, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_arm_that_steps_twice_as_often_is_called_faster(script: Path) -> None:
    """Often enough, and in enough runs that one which a busy machine holds for seconds does not hide it."""
    result = tried(script, "--arg", "pause=0.002", "--runs", "5", "--format", "json", behind=("--pause", "0.04"))
    assert result.returncode == 0, result.stderr
    told = content(result)
    first, arm = told["arms"]
    assert (first["label"], arm["label"], arm["verdict"]) == ("unchanged", "arg.pause=0.002", "faster")
    assert arm["interval"]["low"] > 1.5
    assert told["trial"]["metric"] == "samples_per_second"
    assert [each["place"] for each in first["runs"]] == [0, 3, 4, 7, 8]
    assert all(each["steps"] >= 40 for each in arm["runs"])
    assert told["by_hand"] == ["start it with --pause 0.002"]
    assert "first run (unchanged), not counted: " in result.stderr
    assert "run 10 of 10: arg.pause=0.002: " in result.stderr
    assert "KeyboardInterrupt" not in result.stderr
    pids = [int(line.split()[0]) for line in (script.parent / "written.txt").read_text().splitlines()]
    assert len(set(pids)) == 11
    assert_gone(pids)


def test_one_run_of_each_is_an_anecdote(script: Path) -> None:
    result = tried(script, "env.SPEED=2", "--runs", "1")
    assert result.returncode == 0, result.stderr
    assert "not significant" in result.stdout
    assert [line.split()[1:] for line in (script.parent / "written.txt").read_text().splitlines()] == [[], [], ["2"]]


def test_in_a_scratch_folder_nothing_is_left_where_the_user_works(script: Path) -> None:
    result = tried(script, "env.SPEED=2", "--runs", "1", "--scratch")
    assert result.returncode == 0, result.stderr
    assert not (script.parent / "written.txt").exists()
    assert "writes its checkpoints" not in result.stderr


def test_an_arm_that_fails_is_reported_with_its_last_lines_and_the_others_go_on(script: Path) -> None:
    result = tried(script, "--arm", "arg.fails-at=5", "--arm", "arg.pause=0.001", "--runs", "2")
    assert result.returncode == 0, result.stderr
    assert "exit code 1" in result.stdout and "ValueError: this arm cannot train" in result.stdout
    assert result.stderr.count("arg.fails-at=5") == 1
    row = next(line for line in result.stdout.splitlines() if line.strip().startswith("arg.pause"))
    assert "x [" in row or "% [" in row


def test_a_program_that_does_not_train_is_reported_in_a_sentence_with_its_last_lines(script: Path) -> None:
    result = tried(script, "env.SPEED=2", behind=("--fails-at", "0"))
    assert result.returncode == 2
    assert "gives no figure to compare with: it ended with exit code 1" in result.stderr
    assert "ValueError: this arm cannot train" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("patience", "command", "said"),
    [
        ("2", ["sleep", "600"], "it made no training step for 2 s and was stopped; no hook reported from it"),
        ("60", ["sh", "-c", "kill -9 $$"], "it was killed by SIGKILL"),
        ("60", ["sh", "-c", "trap '' INT TERM; echo stubborn; exit 7"], "it ended with exit code 7"),
    ],
)
def test_what_never_trains_is_distinguished_from_what_breaks(
    tmp_path: Path, patience: str, command: list[str], said: str
) -> None:
    result = gpuwatch(tmp_path, "trial", "env.A=1", "--patience", patience, "--", *command)
    assert result.returncode == 2
    assert said in result.stderr


def test_a_run_that_ends_by_itself_counts_if_it_has_settled_for_long_enough(script: Path) -> None:
    result = tried(script, "env.SPEED=2", "--runs", "1", "--seconds", "60", behind=("--steps", "80"))
    assert "argument --seconds: not allowed with argument --steps" in result.stderr
    # On a busy machine steps of a few milliseconds may never look alike.
    command = [sys.executable, script.name, "--pause", "0.02", "--steps", "200"]
    words = ("trial", "env.SPEED=2", "--runs", "1", "--seconds", "60", "--format", "json", "--", *command)
    told = content(gpuwatch(script.parent.parent, *words, cwd=script.parent))
    assert [each["runs"][0]["counts"] for each in told["arms"]] == [True, True]
    command[-1] = "20"
    result = gpuwatch(script.parent.parent, *words[:-6], *command, cwd=script.parent)
    assert result.returncode == 2 and "let it train longer" in result.stderr


def test_a_loader_change_without_a_loader_did_not_take_effect(script: Path) -> None:
    result = tried(script, "num_workers=2", "--runs", "2")
    assert result.returncode == 2
    assert "num_workers=2 did not take effect: no DataLoader was read in training" in result.stdout
    assert "no detectable change" not in result.stdout


def test_what_nobody_can_change_is_refused_before_any_run(script: Path) -> None:
    result = tried(script, "num_worker=2")
    assert result.returncode == 2
    assert "did you mean 'num_workers'" in result.stderr
    assert not (script.parent / "written.txt").exists()


def test_fail_if_makes_a_pull_request_fail(script: Path) -> None:
    result = tried(script, "--arg", "pause=0.04", "--runs", "5", "--fail-if", "slower", behind=("--pause", "0.002"))
    assert result.returncode == 1, result.stdout
    assert "slower" in result.stdout


def test_ctrl_c_ends_the_training_too_and_tells_what_is_known(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuwatch", "trial", "env.SPEED=2", "--runs", "50", "--steps", "40", "--"]
    trial = subprocess.Popen(
        [*command, sys.executable, script.name],
        env=lonely_environment(tmp_path),
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert trial.stderr is not None
    for line in trial.stderr:
        if line.startswith("run 4 of 100"):
            break
    trial.send_signal(signal.SIGINT)
    out, err = trial.communicate(timeout=PATIENCE_SECONDS)
    assert trial.returncode == 130
    assert out.startswith("INCOMPLETE") and "unchanged" in out
    assert "Traceback" not in err
    pids = [int(line.split()[0]) for line in (script.parent / "written.txt").read_text().splitlines()]
    assert_gone(pids)


RANKS = """\
import os, subprocess, sys
if sys.argv[1:] == ["rank"]:
    exec(open("loop.py").read())
open("written.txt", "a").write(f"{os.getpid()}\\n")
helper = subprocess.Popen(["sleep", "1000"])
open("written.txt", "a").write(f"{helper.pid}\\n")
subprocess.run([sys.executable, __file__, "rank"], start_new_session=True)
"""
"""A launcher with a rank in a session of its own, and a helper in its group."""


def test_a_trial_that_is_killed_takes_its_training_and_its_folders_along(script: Path, tmp_path: Path) -> None:
    (script.parent / "ranks.py").write_text(RANKS)
    temporary, kept = tmp_path / "temporary", tmp_path / "kept"
    for folder in (temporary, kept):
        folder.mkdir()
    (kept / "checkpoint.pt").write_text("precious")
    command = [sys.executable, "-m", "gpuwatch", "trial", "env.SPEED=2", "--runs", "2", "--seconds", "600", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "ranks.py"],
        env=lonely_environment(tmp_path, TMPDIR=str(temporary)),
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as trial:
        written = script.parent / "written.txt"
        reached = time.monotonic() + PATIENCE_SECONDS
        while not (written.exists() and len(written.read_text().splitlines()) == 3):
            assert trial.poll() is None and time.monotonic() < reached
            time.sleep(0.05)
        pids = [int(line.split()[0]) for line in written.read_text().splitlines()]
        training = [psutil.Process(pid) for pid in pids]
        folders = list(temporary.glob("gpuwatch-trial-*"))
        assert len(folders) == 2, "where its trainers meet it, and the run's own"
        for folder in folders:
            (folder / "link").symlink_to(kept)
        trial.kill()
    assert psutil.wait_procs(training, timeout=PATIENCE_SECONDS)[1] == []
    reached = time.monotonic() + PATIENCE_SECONDS
    while any(map(Path.exists, folders)):
        assert time.monotonic() < reached
        time.sleep(0.05)
    assert (kept / "checkpoint.pt").read_text() == "precious"


def test_a_link_in_the_place_of_a_trials_folder_is_not_followed(tmp_path: Path) -> None:
    kept, link, gone = tmp_path / "kept", tmp_path / "link", tmp_path / "gone"
    kept.mkdir()
    (kept / "checkpoint.pt").write_text("precious")
    link.symlink_to(kept)
    process_guard.remove(str(link))
    process_guard.remove(str(gone))
    assert (kept / "checkpoint.pt").read_text() == "precious"
    process_guard.remove(str(kept))
    assert not kept.exists()


def test_workers_make_a_slow_dataset_faster_and_reach_its_loader(tmp_path: Path) -> None:
    script = tmp_path / "work" / "train.py"
    script.parent.mkdir()
    script.write_text(TRAINING)
    result = tried(script, "--sweep", "num_workers=0,8", "--runs", "1", "--format", "json")
    assert result.returncode == 0, result.stderr
    told = content(result)
    assert [each["label"] for each in told["arms"]] == ["unchanged", "num_workers=8"]
    assert any("num_workers=0 is what the program does already" in note for note in told["notes"])
    arm = told["arms"][1]
    assert arm["change"] > 1.2 and arm["ineffective"] == []
    assert {each["steps"] >= 40 for each in arm["runs"]} == {True}


def test_a_run_gets_the_environment_that_it_was_given_and_no_more() -> None:
    waits, guard_end = os.pipe()
    try:
        started = subprocess.run(
            [sys.executable, "-I", "-S", process_guard.__file__, str(waits), "--", "env"],
            env={"PATH": os.environ["PATH"], "A": "1"},
            pass_fds=(waits,),
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
    finally:
        os.close(waits)
        os.close(guard_end)
    assert sorted(started.stdout.splitlines()) == ["A=1", f"PATH={os.environ['PATH']}"]
