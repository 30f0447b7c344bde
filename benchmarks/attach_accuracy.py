"""Truth against report: a plain training script writes down what it does while gpuwatch looks at it from outside.

    python -m benchmarks.attach_accuracy [--how source report] [--seconds 20] [--runs NAME ...]

`source` asks the stack source itself at 100 Hz, `report` runs `gpuwatch report --attach PID --format json`. The truth
(`benchmarks/scripts/augmented.py` with TRUTH set) is cut to the same stretch of CLOCK_MONOTONIC. Limits: seven phases
of the training thread and the lines of the augmentation with a mean error of at most 1 point and none above 5, steps/s
within 2%, and the true hot line first. Exits 1 when one is missed.

On a machine whose cores are taken by other work gpuwatch lowers its rate to keep to 5% of a core: with two workers a
worker is then looked at 3 to 5 times a second, and 20 s give its lines an error of 1 to 2 points by chance alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.attach_truth import Truth

SCRIPT = Path(__file__).parent / "scripts" / "augmented.py"
MEAN_LIMIT, WORST_LIMIT, PACE_LIMIT = 0.01, 0.05, 0.02
WARM_STEPS = 10
RATE_HZ = 100.0

REPORT_TAKES_NS = 2_000_000_000
"""From the end of what a report is about to the end of the command; it says the first to the second only."""

SEVEN = ("wait", "forward", "backward", "optimizer", "item", "eval", "save")
CALLED = {"start": "wait", "sync": "item", "copy": "other", "log": "other", "compile": "other"}
"""What gpuwatch tells apart and the truth does not, or names differently."""

SLOW = ("--batch-size", "32", "--eval-every", "20", "--eval-batches", "2", "--save-every", "10")
FAST = ("--size", "32", "--width", "16", "--depth", "1")
RUNS: dict[str, tuple[str, ...]] = {
    "5/s, 0 workers": (*SLOW, "--workers", "0"),
    "5/s, 2 workers": (*SLOW, "--workers", "2", "--width", "48"),
    "25/s, 0 workers, saves": ("--workers", "0", "--norms", "20", "--save-every", "10"),
    "30/s, 2 workers, enumerate": (
        "--workers",
        "2",
        "--loop",
        "enumerate",
        "--eval-every",
        "20",
        "--eval-batches",
        "4",
    ),
    "35/s, 2 workers, accumulation": ("--workers", "2", "--accumulate", "4", "--noise", "12"),
    "50/s, 2 workers, tqdm": ("--workers", "2", "--loop", "tqdm", "--batch-size", "4", "--clip", "48"),
    "40/s, 0 workers, two loaders": ("--workers", "0", "--loop", "zip", "--batch-size", "2"),
    "80/s, 0 workers": (*FAST, "--workers", "0", "--batch-size", "4", "--norms", "5"),
    "80/s, 2 workers": (*FAST, "--workers", "2", "--batch-size", "2", "--noise", "24"),
    "80/s, 0 workers, next": (*FAST, "--workers", "0", "--batch-size", "4", "--loop", "next"),
}
"""The rate is what they reached on two cores, for orientation."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was said about one run: shares, lines of the script by their share, steps per second."""

    start_ns: int
    end_ns: int
    phases: Mapping[str, float]
    lines: Mapping[int, float]
    pace: float | None
    looks: int
    counted_ns: tuple[int, int] | None = None  # the stretch that the pace is of, where it is another one
    cpu_share: float | None = None
    end_unsure_ns: int = 0  # the stretch may have ended so much earlier


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", nargs="+", default=["source", "report"], choices=["source", "report"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", nargs="+", default=[*RUNS], metavar="NAME", help=", ".join(map(repr, RUNS)))
    parser.add_argument("--verbose", action="store_true", help="each line of the augmentation too")
    args = parser.parse_args()
    missed = 0
    for how in args.how:
        print(f"\n{how}, {args.seconds:g} s per run, load {os.getloadavg()[0]:.1f}")
        print(f"{'':31}{'steps/s':>17} {'error':>7}  {'phases mean/max':>16}  {'lines mean/max':>15}  hot line")
        errors: list[float] = []
        for name in args.runs:
            with tempfile.TemporaryDirectory() as folder:
                missed += not one_run(name, how, args.seconds, Path(folder), errors, args.verbose)
        print(f"all phases: mean {100 * statistics.mean(errors):.2f}, max {100 * max(errors):.2f} points")
    return int(missed > 0)


def one_run(name: str, how: str, seconds: float, folder: Path, errors: list[float], verbose: bool) -> bool:
    """Measures one run and prints its row; whether it kept the limits."""
    with training(RUNS[name], folder) as pid:
        seen = (from_source if how == "source" else from_report)(pid, seconds)
    truth = Truth(folder, pid)
    stretch = seen.start_ns, seen.end_ns
    phases = truth.phase_shares(*stretch)
    lines = truth.worker_line_shares(*stretch) if truth.workers() else truth.main_line_shares(*stretch)
    pace = truth.batches_per_second(*(seen.counted_ns or stretch))
    phase_errors = [abs(seen.phases.get(phase, 0.0) - phases[phase]) for phase in SEVEN]
    line_errors = [abs(seen.lines.get(line, 0.0) - share) for line, share in lines.items()]
    errors += phase_errors
    if seen.end_unsure_ns and seen.pace:
        pace = closest_pace(truth, seen)
    pace_error = None if seen.pace is None else seen.pace / pace - 1
    hot, said = max(lines, key=lines.__getitem__), max(seen.lines, key=seen.lines.__getitem__, default=None)
    kept = (
        max(statistics.mean(phase_errors), statistics.mean(line_errors)) <= MEAN_LIMIT
        and max(*phase_errors, *line_errors) <= WORST_LIMIT
        and (pace_error is not None and abs(pace_error) <= PACE_LIMIT)
        and hot == said
    )
    paces = f"{pace:8.2f} {seen.pace or float('nan'):8.2f} {(pace_error or 0) if seen.pace else float('nan'):+7.1%}"
    verdict = ("=" if hot == said else f"but {said}") + ("" if kept else "  MISSED")
    print(f"{name:31}{paces}  {pair(phase_errors)}  {pair(line_errors)}  {hot} {verdict}")
    rows = {phase: (phases[phase], seen.phases.get(phase, 0.0)) for phase in SEVEN}
    print("   phases  " + table(rows) + f"  ({seen.looks} looks)")
    if verbose:
        print("   lines   " + table({str(line): (share, seen.lines.get(line, 0.0)) for line, share in lines.items()}))
    sys.stdout.flush()
    return kept


def closest_pace(truth: Truth, seen: Seen) -> float:
    """The true pace of the stretch, of those that it may have been, that is closest to what was said."""
    assert seen.pace is not None
    shifts = range(0, seen.end_unsure_ns + 1, 50_000_000)
    paces = [truth.batches_per_second(seen.start_ns - shift, seen.end_ns - shift) for shift in shifts]
    return min(paces, key=lambda pace: abs(pace / (seen.pace or 1.0) - 1))


def pair(errors: list[float]) -> str:
    return f"{100 * statistics.mean(errors):6.2f} / {100 * max(errors):5.2f}"


def table(rows: Mapping[str, tuple[float, float]]) -> str:
    """Truth > report, in percent."""
    return "  ".join(f"{name} {100 * truth:.1f}>{100 * said:.1f}" for name, (truth, said) in rows.items())


@contextlib.contextmanager
def training(arguments: tuple[str, ...], folder: Path) -> Iterator[int]:
    """The script at work, past its first steps; gives its pid."""
    options = ["--threads", "1", "--output", str(folder / "checkpoint.pt"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TRUTH": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not has_stepped(process.pid, folder):
            if process.poll() is not None:
                raise SystemExit(f"the training ended with {process.returncode}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def has_stepped(pid: int, folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return Truth(folder, pid).batches() >= WARM_STEPS
    return False


def from_source(pid: int, seconds: float) -> Seen:
    """Asks the stack source itself."""
    from gpuwatch.samples import BatchCount, StackTally
    from gpuwatch.sources.stacks import StackSource, StackTarget

    source = StackSource(lambda: [StackTarget(pid, hooked=False)], rate_hz=RATE_HZ)
    tallies: list[StackTally] = []
    counts: list[BatchCount] = []
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            for sample in source.collect(time.monotonic_ns()):
                if isinstance(sample, StackTally):
                    tallies.append(sample)
                elif isinstance(sample, BatchCount) and sample.role == "train":
                    counts.append(sample)
            time.sleep(0.1)
    finally:
        source.close()
    phases: Counter[str] = Counter()
    lines: Counter[int] = Counter()
    in_workers = any(tally.workers for tally in tallies)
    for tally in tallies:
        phases.update({CALLED.get(name, name): 0 for name in tally.phases})
        for name, samples in tally.phases.items():
            phases[CALLED.get(name, name)] += samples
        for line in tally.worker_lines if in_workers else tally.lines:
            if Path(line.file) == SCRIPT and line.phase == ("item" if in_workers else "wait"):
                lines[line.line] += line.samples
    by_loader: dict[int, list[BatchCount]] = {}
    for count in counts:
        by_loader.setdefault(count.loader, []).append(count)
    first, last = max(
        ((each[0], each[-1]) for each in by_loader.values()), key=lambda ends: ends[1].batches, default=(None, None)
    )
    pace = None
    if first and last and last.time_ns > first.time_ns:
        pace = (last.batches - first.batches) / ((last.time_ns - first.time_ns) / 1e9)
    return Seen(
        start_ns=tallies[0].start_ns,
        end_ns=tallies[-1].end_ns,
        phases={name: samples / phases.total() for name, samples in phases.items()},
        lines=of_the_augmentation(lines),
        pace=pace,
        counted_ns=(first.time_ns, last.time_ns) if first and last else None,
        looks=phases.total(),
        cpu_share=sum(tally.cpu_seconds for tally in tallies) / seconds,
    )


def from_report(pid: int, seconds: float) -> Seen:
    """Runs the command, as a user does."""
    command = [sys.executable, "-m", "gpuwatch", "report", "--attach", str(pid), "--duration", f"{seconds:g}"]
    output = subprocess.run([*command, "--format", "json"], stdout=subprocess.PIPE, check=True, text=True).stdout
    end_ns = time.monotonic_ns()
    report: dict[str, Any] = json.loads(output)
    (run,) = (each for each in report["runs"] if each["pid"] == pid)
    stacks = run["stacks"]
    phases: Counter[str] = Counter()
    for name, share in stacks["phases"].items():
        phases[CALLED.get(name, name)] += share["share"]
    in_workers = stacks["workers"] > 0
    lines: Counter[int] = Counter()
    for line in stacks["worker_lines"] if in_workers else stacks["lines"]:
        if Path(line["file"]) == SCRIPT and line["phase"] == ("item" if in_workers else "wait"):
            lines[line["line"]] += line["samples"]
    hot = run["hot_line"]
    if hot and Path(hot["file"]) == SCRIPT:
        lines[hot["line"]] += 0  # it is named whatever the table holds
    return Seen(
        start_ns=end_ns - round(1e9 * stacks["seconds"]),
        end_ns=end_ns,
        phases=phases,
        lines=of_the_augmentation(lines),
        pace=run["steps_per_second"],
        looks=stacks["samples"],
        cpu_share=stacks["cpu_share"],
        end_unsure_ns=REPORT_TAKES_NS,
    )


def of_the_augmentation(samples: Counter[int]) -> dict[int, float]:
    """Shares among the lines that make one sample: those of the datasets, not of the loop that asks for it."""
    inside = {line: count for line, count in samples.items() if line in dataset_lines()}
    return {line: count / sum(inside.values()) for line, count in inside.items()}


def dataset_lines() -> range:
    text = SCRIPT.read_text().splitlines()
    return range(text.index("class Photos(Dataset):") + 1, text.index("def make_photos(folder, count=48, size=160):"))


if __name__ == "__main__":
    raise SystemExit(main())
