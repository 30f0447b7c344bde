"""The fuzz driver finds each kind of fault, and every target passes a short run of it."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tests.fuzz

ROOT = Path(__file__).parents[2]
DRIVER = ("__main__", "mutation")
TARGETS = sorted(module.name for module in pkgutil.iter_modules(tests.fuzz.__path__) if module.name not in DRIVER)

FAULTS = {
    "exception": "raise KeyError('escaped')",
    "crash": "os.kill(os.getpid(), 11)",
    "hang": "while True: pass",
    "memory": "bytearray(200 << 20)",
}


def fuzz(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments, "--failures", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def write_target(folder: Path, name: str, body: str) -> None:
    lines = ["import os", "KEPT = []", "def seeds(): return [b'a seed']", "def run(data):", "    if data != b'a seed':"]
    (folder / f"{name}.py").write_text("\n".join([*lines, f"        {body}", ""]))


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_is_found_saved_and_made_again_by_its_seed(kind: str, tmp_path: Path) -> None:
    write_target(tmp_path, f"faulty_{kind}", FAULTS[kind])
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / f"faulty_{kind}.py").rename(tmp_path / "package" / f"faulty_{kind}.py")
    command = (f"package.faulty_{kind}", "--inputs", "3", "--hang-seconds", "0.5", "--input-mib", "300", "--seed", "7")
    runs = [fuzz(tmp_path, *command) for _ in range(2)]
    assert [run.returncode for run in runs] == [1, 1], runs[0].stdout + runs[0].stderr
    assert f"{kind} at input 1" in runs[0].stdout
    final = runs[0].stdout.splitlines()[-1]
    assert ", seed 7, " in final
    assert " 0 faults" not in final
    saved = (tmp_path / f"faulty_{kind}" / f"{kind}-7-1.bin").read_bytes()
    assert saved != b"a seed"
    again = fuzz(tmp_path, f"package.faulty_{kind}", "--inputs", "2", "--seed", "7", "--hang-seconds", "0.5")
    assert (tmp_path / f"faulty_{kind}" / f"{kind}-7-1.bin").read_bytes() == saved, again.stdout


def test_memory_that_is_kept_is_found(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write_target(tmp_path / "package", "growing", "import time; KEPT.append(b'x' * (1 << 20)); time.sleep(0.03)")
    run = fuzz(tmp_path, "package.growing", "--inputs", "150", "--growth-mib", "8", "--input-mib", "2000")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "growth from" in run.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_target_survives_its_first_mutations(target: str, tmp_path: Path) -> None:
    inputs = "60" if target == "recordings" else "200"  # each is read in several ways
    run = fuzz(tmp_path, target, "--inputs", inputs, "--seconds", "200", "--seed", "1", "--hang-seconds", "20")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " inputs, 0 faults, seed 1" in run.stdout.splitlines()[-1], run.stdout
