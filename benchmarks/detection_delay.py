"""How long a starved run stays unnamed: seconds from its eighth step to the first finding on `gpuwatch watch`.

    python -m benchmarks.detection_delay [--runs 3]

The run's steps are taken from the script's own log, the finding from the time its line arrives on standard error.
Exits 1 when a delay is over 8 s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gain import SCRIPT, start, stop
from gpuwatch.diagnosis.advice.starvation import EARLY_STEPS as STEP

LIMIT_SECONDS = 8.0
PATIENCE_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    delays = []
    for number in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            delays.append(one_run(Path(folder)))
        print(f"run {number + 1}: named {delays[-1]:.1f} s after step {STEP}", flush=True)
    return int(max(delays) > LIMIT_SECONDS)


def one_run(folder: Path) -> float:
    """Starts the script and a watch beside it; seconds until the watch says `data-starvation`."""
    log = folder / "steps.log"
    gpuwatch = [sys.executable, "-m", "gpuwatch"]
    training = start(
        [*gpuwatch, "run", "--", sys.executable, str(SCRIPT), "--kind", "sleep", "--log", str(log)], folder
    )
    watch = subprocess.Popen(
        [*gpuwatch, "watch", "--attach", str(training.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stderr is not None
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        for line in watch.stderr:
            if "data-starvation" in line:
                return time.monotonic() - time_of_step(log)
            if time.monotonic() > deadline:
                return PATIENCE_SECONDS
        raise SystemExit("gpuwatch watch ended before it named the run")
    finally:
        stop(watch)
        stop(training)


def time_of_step(log: Path) -> float:
    """When the script ended its step, on the monotonic clock that it logs."""
    lines = log.read_text().splitlines()
    return float(lines[STEP - 1].split()[0]) if len(lines) >= STEP else time.monotonic()


if __name__ == "__main__":
    raise SystemExit(main())
