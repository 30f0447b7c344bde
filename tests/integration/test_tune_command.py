"""`gpuwatch tune` over real trainings, with git where it applies its patch."""

from __future__ import annotations

import json
import os
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


SIZED = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Wide(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.zeros(1 << 18)  # 1 MiB

if __name__ == "__main__":
    torch.set_num_threads(1)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        for batch in DataLoader(Wide(), batch_size=8):
            time.sleep(0.05)
            optimizer.zero_grad()
            net(batch[:, :1]).sum().backward()
            optimizer.step()
"""
"""A step takes 50 ms and 1 ms for each sample, a batch 1 MiB for each."""


def test_the_batch_size_is_found_that_a_memory_budget_allows(work: Path) -> None:
    (work / "sized.py").write_text(SIZED)
    unbounded = tuned(work, "batch-size", "--steps", "12", "--most", "8", "--format", "json", script="sized.py")
    (alone,) = json.loads(unbounded.stdout)["sizes"]
    budget = (alone["host_peak_bytes"] + (100 << 20)) / 0.9
    result = tuned(
        work, "batch-size", "--steps", "12", "--memory", f"{budget / 2**20:.0f}M", "--format", "json", script="sized.py"
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    sizes = {each["size"]: each for each in found["sizes"]}
    too_large = [size for size, each in sizes.items() if each["outcome"] != "passed"]
    assert too_large and found["batch_size"]["own"] == 8
    recommended = sizes[found["batch_size"]["recommended"]]
    assert 8 < recommended["size"] < min(too_large), sizes
    assert recommended["samples_per_second"] > alone["samples_per_second"]
    assert recommended["host_peak_bytes"] <= 0.9 * budget


def test_a_loop_without_a_loader_is_asked_where_its_size_goes(work: Path) -> None:
    refused = tuned(work, "batch-size", "--steps", "40", script="loop.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no DataLoader was read in training: write {} in the command" in refused.stderr


def test_a_configuration_is_copied_with_what_the_machine_gives_a_reason_for(work: Path) -> None:
    (work / "train.yaml").write_bytes(b"num_workers: 4096  # many\r\nlr: 1\r\n")
    words = ("tune", "config", "train.yaml")
    result = gpuwatch(work.parent, *words, cwd=work)
    assert result.returncode == 0 and "too-many-workers" in result.stdout and "only this machine" in result.stderr
    (work / "train.yaml").write_bytes(b"num_workers: 1 \r\nlr: 1")
    assert gpuwatch(work.parent, *words, "-o", "copy.yaml", cwd=work).returncode == 0
    assert (work / "copy.yaml").read_bytes() == (work / "train.yaml").read_bytes()
    assert "give another file" in gpuwatch(work.parent, *words, "-o", "train.yaml", cwd=work).stderr


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("train.txt", b"num_workers: 1", "no .yaml, .json or .toml file"),
        ("train.yaml", b"num_workers: \xff\xfe", "not UTF-8"),
        ("train.yaml", b"num_workers: 1\nnum_workers: 2", "num_workers twice"),
        ("train.yaml", b"lr: 1", "no key that gpuwatch could change"),
    ],
    ids=["kind", "bytes", "double", "unknown"],
)
def test_a_configuration_of_which_nothing_can_be_made_is_one_sentence(
    work: Path, name: str, content: bytes, why: str
) -> None:
    (work / name).write_bytes(content)
    result = gpuwatch(work.parent, "tune", "config", name, cwd=work)
    assert (result.returncode, result.stdout) == (2, "")
    assert why in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("config", "pipe.yaml"), "pipe.yaml is not a file"),
        (("config", "train.yaml", "--yes-apply"), "--yes-apply and --format have no meaning"),
        (("config", "train.yaml", "--", "true"), "name the configuration and no command"),
        (("--attach", "1", "--", "true"), "are for `gpuwatch tune config FILE`"),
    ],
    ids=["pipe", "option", "command", "attach"],
)
def test_what_does_not_go_with_a_configuration_is_refused_at_once(work: Path, words: tuple[str, ...], why: str) -> None:
    os.mkfifo(work / "pipe.yaml")
    (work / "train.yaml").write_text("num_workers: 1\n")
    result = gpuwatch(work.parent, "tune", *words, cwd=work)
    assert (result.returncode, result.stdout) == (2, "")
    assert why in result.stderr and result.stderr.count("\n") == 1


def test_keys_are_called_unread_only_where_all_sources_were_read(work: Path) -> None:
    (work / "train.yaml").write_text("num_workers: 1\nuse_amp: false\n")
    (work / "reads.py").write_text("config['num_workers']\n")
    unread = "no Python file here mentions use_amp"
    assert unread in gpuwatch(work.parent, "tune", "config", "train.yaml", cwd=work).stderr
    (work / ".venv").mkdir()
    (work / ".venv" / "other.py").write_text("use_amp\n")
    assert unread in gpuwatch(work.parent, "tune", "config", "train.yaml", cwd=work).stderr
    (work / "reads.py").write_text("config['num_workers']\n" + "# much\n" * 50_000)
    assert unread not in gpuwatch(work.parent, "tune", "config", "train.yaml", cwd=work).stderr


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
