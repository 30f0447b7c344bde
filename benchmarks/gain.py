"""Is the advice worth what it says? Runs a slow script, takes the report's own patch, applies it, measures again.

    python -m benchmarks.gain [--seconds 20] [--kinds sleep cpu mixed]

For each kind of dataset: the unmodified script under `gpuwatch run`, `gpuwatch report --attach PID --format json`, the
patch of the finding that carries one applied to a copy of the script, and the patched script run without gpuwatch. Both
speeds are samples per second from the script's own log. Prints one row per kind; exits 1 when a prediction misses the
measurement by more than 15%.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "scripts" / "slow_dataset.py"
WARM_STEPS = 30
TOLERANCE = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kinds", nargs="+", default=["sleep", "cpu", "mixed"])
    args = parser.parse_args()
    print(f"{'kind':8} {'before/s':>9} {'after/s':>9} {'measured':>9} {'predicted':>13} {'error':>7}  change")
    missed = False
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            missed |= not one_kind(kind, Path(folder), args.seconds)
    return int(missed)


def one_kind(kind: str, folder: Path, seconds: float) -> bool:
    """Measures one kind of dataset; whether the prediction was within the tolerance."""
    script = folder / "train.py"
    shutil.copy(SCRIPT, script)
    gpuwatch = [sys.executable, "-m", "gpuwatch"]
    before = folder / "before.log"
    training = start(
        [*gpuwatch, "run", "--", sys.executable, str(script), "--kind", kind, "--log", str(before)], folder
    )
    try:
        wait_for_steps(before, WARM_STEPS, training)
        command = [*gpuwatch, "report", "--attach", str(training.pid), "--duration", f"{seconds:g}", "--format", "json"]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    finally:
        stop(training)
    finding = next((one for one in report["findings"] if (one["fix"] or {}).get("diff") and one["gain"]), None)
    if finding is None:
        print(f"{kind:8} no finding with a patch and a gain: {[one['rule'] for one in report['findings']]}")
        return False
    subprocess.run(["git", "apply", "-"], input=finding["fix"]["diff"], text=True, cwd=folder, check=True)
    after = folder / "after.log"
    training = start([sys.executable, str(script), "--kind", kind, "--log", str(after)], folder)
    try:
        wait_for_steps(after, WARM_STEPS, training)
        training_until = time.monotonic() + seconds
        while time.monotonic() < training_until and training.poll() is None:
            time.sleep(0.2)
    finally:
        stop(training)
    return compare(kind, samples_per_second(before), samples_per_second(after), finding)


def compare(kind: str, before: float, after: float, finding: dict[str, Any]) -> bool:
    """Prints one row; the error is against the middle of the predicted range."""
    measured = after / before
    low, high = finding["gain"]["low"], finding["gain"]["high"]
    error = (low + high) / 2 / measured - 1
    change = f"{finding['rule']}: {finding['fix']['value']}"
    print(
        f"{kind:8} {before:9.0f} {after:9.0f} {measured:8.2f}x {low:5.2f}-{high:.2f}x {error:+7.0%}  {change}",
        flush=True,
    )
    return abs(error) <= TOLERANCE


def start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def stop(training: subprocess.Popen[Any]) -> None:
    training.terminate()
    try:
        training.wait(timeout=10)
    except subprocess.TimeoutExpired:
        training.kill()
        training.wait()


def wait_for_steps(log: Path, steps: int, training: subprocess.Popen[bytes]) -> None:
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        if training.poll() is not None:
            raise SystemExit(f"the training ended with {training.returncode} before {steps} steps")
        time.sleep(0.1)


def samples_per_second(log: Path) -> float:
    """Over all steps but the first ones."""
    rows = [line.split() for line in log.read_text().splitlines() if line.endswith(tuple("0123456789"))][WARM_STEPS:-1]
    return sum(int(samples) for _, samples in rows[1:]) / (float(rows[-1][0]) - float(rows[0][0]))


if __name__ == "__main__":
    raise SystemExit(main())
