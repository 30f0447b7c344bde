"""`--attach` without a pid, against real processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from tests.integration.command_line import PATIENCE_SECONDS, gpuwatch, lonely_environment
from tests.integration.forked_python import ForkedPython
from tests.integration.process_groups import ended_by_its_input

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc, which only Linux has"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="the processes under test need torch: pip install torch"
    ),
]

TRAINING = """\
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
batches = iter(DataLoader(TensorDataset(torch.zeros(4000, 2)), batch_size=2, num_workers=2))
for _ in range(4): next(batches)
print("ready", flush=True)
sys.stdin.read()
"""

PATIENT = """\
import sys
from gpuwatch.cli import attach
attach._DRIVER_SECONDS = 60.0
from gpuwatch.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""The command with a driver that may take its time, as its child does on a busy machine."""

AMONG = """\
import sys
from gpuwatch.sources import discovery
discovery.all_pids = lambda proc_root: {pids}
from gpuwatch.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""The command on a machine that runs these processes only: on a real one others may train, too."""


@contextmanager
def training(folder: Path, *launcher: str) -> Iterator[int]:
    """A plain training script that holds still once its workers work."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    process = (subprocess.Popen if launcher else ForkedPython)(
        [sys.executable, *launcher, str(script)],
        env=lonely_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with ended_by_its_input(process):
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def among(folder: Path, pids: set[int], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that sees no other processes than these."""
    return subprocess.run(
        [sys.executable, "-c", AMONG.format(pids=pids or "set()"), *arguments],
        env=lonely_environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def row_of(out: str, pid: int) -> tuple[list[str], str]:
    """The words of a process's line, and the line below it."""
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == [str(pid)])
    return lines[at].split(), lines[at + 1].strip()


def test_running_training_is_listed_with_what_gave_it_away(tmp_path: Path) -> None:
    with training(tmp_path) as pid:
        done = gpuwatch(tmp_path, "--attach")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["PID", "GPU"]
    words, why = row_of(done.stdout, pid)
    assert words[1] == "-"
    assert words[-1].endswith("train.py")
    assert why == "has 2 DataLoader workers"
    assert "gpuwatch --attach PID" in done.stderr


def test_run_with_the_hook_is_listed_as_exact(tmp_path: Path) -> None:
    with training(tmp_path, "-m", "gpuwatch", "run", sys.executable) as pid:
        done = gpuwatch(tmp_path, "--attach")
    words, why = row_of(done.stdout, pid)
    assert "exact" in words
    assert why == "runs with gpuwatch's hook, has 2 DataLoader workers"


def test_gpu_of_a_process_is_reported_by_its_index(tmp_path: Path, simulated_driver: SimulatedDriver) -> None:
    if str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]":
        pytest.skip("in a container the host's pids, which NVML gives, cannot be mapped")
    with training(tmp_path) as pid:
        simulated_driver.write(f"process 1 {pid} 1500000000 70", gpus=2)
        done = subprocess.run(
            [sys.executable, "-c", PATIENT, "--attach"],
            env=lonely_environment(tmp_path, **simulated_driver.env),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    words, why = row_of(done.stdout, pid)
    assert words[1] == "1"
    assert why == "holds memory on 1 GPU with torch, has 2 DataLoader workers"


def test_nothing_that_trains_is_one_sentence_and_exit_code_two(tmp_path: Path) -> None:
    for arguments in (["--attach"], ["report", "--attach"], ["watch", "--attach"]):
        done = among(tmp_path, set(), *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert "gpuwatch demo" in done.stderr


def test_one_of_several_is_not_guessed_but_asked_for(tmp_path: Path) -> None:
    with training(tmp_path) as first, training(tmp_path) as second:
        done = among(tmp_path, {first, second}, "report", "--attach")
    assert (done.returncode, done.stdout) == (2, "")
    assert row_of(done.stderr, first)[0][-1].endswith("train.py")
    assert row_of(done.stderr, second)[0][-1].endswith("train.py")
    assert f"gpuwatch report --attach {first}" in done.stderr.splitlines()[-1]


def test_only_one_there_is_watched_without_asking(tmp_path: Path) -> None:
    with training(tmp_path) as pid:
        monitor = subprocess.Popen(
            [sys.executable, "-c", AMONG.format(pids={pid}), "watch", "--attach"],
            env=lonely_environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert monitor.stdout is not None
        line = monitor.stdout.readline()
        monitor.send_signal(signal.SIGINT)
        _, told = monitor.communicate(timeout=PATIENCE_SECONDS)
    assert line.count("|") >= 2
    assert f"attaching to train.py ({pid})" in told
    assert monitor.returncode == 130


def test_list_of_a_reader_that_goes_is_no_failure(tmp_path: Path) -> None:
    with training(tmp_path):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as gone:
            done = gpuwatch(tmp_path, "--attach", stdout=gone)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
