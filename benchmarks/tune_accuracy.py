"""Does `gpuwatch tune` find the best setting? Against a full grid, and on a program that nothing makes faster.

    python -m benchmarks.tune_accuracy [--seconds 6] [--kinds sleep cpu mixed] [--nulls 20]

For each kind of dataset: `gpuwatch tune loader`, a `gpuwatch trial` of every combination of the grid, and one of the
two winners against each other. The patch of tune is applied, and the program measured again without gpuwatch, from its
own log, before and after. Then as many searches as `--nulls` says on a program of which one process at a time reads or
trains, where each "faster" is a false win. Exits 1 when a choice is more than 5% slower than the grid's best or took
more than a third of its runs, or when more than one search in twenty ends with a false win.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gain import SCRIPT, samples_per_second, start, stop

WORKERS = (1, 2, 3, 4, 6, 8)
PREFETCH = (2, 4)
GRID_RUNS = 3  # as many as tune gives to what it keeps
WITHIN = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of settled training per run")
    parser.add_argument("--kinds", nargs="*", default=["sleep", "cpu", "mixed"])
    parser.add_argument("--nulls", type=int, default=20)
    args = parser.parse_args()
    missed = False
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            missed |= not one_kind(kind, Path(folder), args.seconds)
    if args.nulls:
        missed |= not all_nulls(args.nulls, args.seconds)
    return int(missed)


def one_kind(kind: str, folder: Path, seconds: float) -> bool:
    """Compares the choice with the grid's, and its factor with the program's own log; prints a block."""
    prepare(folder)
    program = [sys.executable, "slow_dataset.py", "--kind", kind]
    found = gpuwatch(folder, "tune", "loader", "--seconds", f"{seconds:g}", "--", *program)
    grid = gpuwatch(
        folder, "trial", *grid_arms(), "--runs", f"{GRID_RUNS}", "--seconds", f"{seconds:g}", "--", *program
    )
    runs = sum(len(arm["runs"]) for arm in grid["arms"])
    best = max(grid["arms"], key=lambda arm: mean([each["samples_per_second"] for each in arm["runs"]]))
    chosen = " ".join(f"{name}={str(value).lower()}" for name, value in found["kept"].items())
    ratio = ratio_of(folder, chosen, best["label"], seconds, program)
    print(
        f"{kind}: tune {chosen or 'keeps the program'}, {found['tune']['runs']} runs; grid {best['label']}, {runs} runs"
    )
    print(f"  tune's choice runs at {ratio:.2f} of the grid's best")
    is_in = True
    if found["patch"]:
        before = measured(folder, program, seconds)
        subprocess.run(["git", "apply", "-"], input=found["patch"], text=True, cwd=folder, check=True)
        factor = measured(folder, program, seconds) / before
        low, high = found["total"]["interval"]["low"], found["total"]["interval"]["high"]
        is_in = low <= factor <= high
        print(f"  {found['total']['change']:.2f}x [{low:.2f}, {high:.2f}]; patched and without gpuwatch {factor:.2f}x")
    print(f"  {'fine' if is_in else 'OUTSIDE the interval'}", flush=True)
    return ratio >= WITHIN and found["tune"]["runs"] <= runs / 3


def grid_arms() -> list[str]:
    """Every number of workers, each with every prefetch factor that it takes."""
    pairs = [(count, factor) for count in WORKERS for factor in PREFETCH if count]
    return [word for count, factor in pairs for word in ("--arm", f"num_workers={count} prefetch_factor={factor}")]


def ratio_of(folder: Path, chosen: str, best: str, seconds: float, program: list[str]) -> float:
    """How fast the choice is against the grid's best, alternating."""
    if chosen == best or (not chosen and best == "unchanged"):
        return 1.0
    arms = [word for arm in (best, chosen) if arm not in ("", "unchanged") for word in ("--arm", arm)]
    both = gpuwatch(folder, "trial", *arms, "--runs", "3", "--seconds", f"{seconds:g}", "--", *program)
    rate = {arm["label"]: mean([each["samples_per_second"] for each in arm["runs"]]) for arm in both["arms"]}
    return rate[chosen or "unchanged"] / rate[best]


def all_nulls(count: int, seconds: float) -> bool:
    """Searches where nothing helps."""
    wins, most_runs = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        program = [sys.executable, "slow_dataset.py", "--kind", "locked"]
        for _ in range(count):
            found = gpuwatch(folder, "tune", "--seconds", f"{seconds:g}", "--", *program)
            wins += bool(found["kept"])
            most_runs = max(most_runs, found["tune"]["runs"])
    print(f"nothing helps: {wins} false wins in {count} searches, {most_runs} runs at most", flush=True)
    return wins <= math.ceil(count / 20) and most_runs <= 5


def prepare(folder: Path) -> None:
    """A git work tree with the script in it."""
    shutil.copy(SCRIPT, folder)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def gpuwatch(folder: Path, *words: str) -> Any:
    """The JSON document of a search or a trial."""
    at = words.index("--")
    command = [sys.executable, "-m", "gpuwatch", *words[:at], "--format", "json", *words[at:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measured(folder: Path, program: list[str], seconds: float) -> float:
    """Samples per second by the program's own log, without gpuwatch: the mean of three runs."""
    rates = []
    for number in range(3):
        log = folder / f"{time.monotonic_ns()}.{number}.log"
        training = start([*program, "--log", str(log)], folder)
        try:
            while not log.exists() or not log.read_text():
                time.sleep(0.05)
            time.sleep(seconds + 1.0)
        finally:
            stop(training)
        rates.append(samples_per_second(log))
    return mean(rates)


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    raise SystemExit(main())
