"""Does the training notice that it is read? A thread in the target records every pause of itself over 20 us.

    python -m benchmarks.attach_gaps [--threads 2 20 60] [--rounds 12] [--seconds 0.4]

The arms take turns in an order that changes with every round, each for one short block, because whatever else the
machine does makes pauses too; "no monitor, again" shows how much that is. As root the recorder is a real-time thread,
which only the target's own stops, interrupts and the hypervisor interrupt. Compared are differences within a round:
their median and its 95% interval (bootstrap). py-spy stops its target at each sample unless told `--nonblocking`.
Exits 1 when the reader's pauses are more than the noise.

With --pages 16 the recorder also maps, touches and unmaps memory, --maps-per-second times or all the time, and pauses
count from 200 us. process_vm_readv holds the memory map while it copies, and a reader that waited for it holds it
until the scheduler lets it run: a thread that does nothing but map memory is held up by that, one that computes never.

Measured on two busy virtual cores (load 5), stopped share more than without a monitor: the reader -0.24, -0.07 and
+0.20 points with 2, 20 and 60 threads, no monitor again -0.03, -0.22 and +0.16, py-spy 12, 89 and 93. With 1,000
mappings a second: the reader +0.07 and +0.05 with 2 and 60 threads, all threads' stacks +0.7 and +24, py-spy
--nonblocking +2.5 and +37. With mappings all the time and 2 threads: the reader 13, py-spy --nonblocking 31.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.gap_recorder import build

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "integration" / "attach_targets" / "gap_target.py"
RATE_HZ = 100
NONE, AGAIN, MAIN, ALL = "no monitor", "no monitor, again", "reader", "reader, all threads"
STOPPING, NONBLOCKING = "py-spy", "py-spy --nonblocking"


@dataclass(frozen=True, slots=True)
class Block:
    """One arm's turn."""

    pauses_per_second: float
    stopped_share: float
    loops_per_second: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 20, 60])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--pages", type=int, default=0)
    parser.add_argument("--maps-per-second", type=float, default=0.0, help="with --pages; 0: without a pause")
    parser.add_argument("--arms", nargs="+", default=[NONE, AGAIN, MAIN, ALL, STOPPING, NONBLOCKING])
    parser.add_argument("--read", nargs=2, metavar=("PID", "ARM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        read(int(args.read[0]), args.read[1])
        return 0
    if not shutil.which("py-spy", path=search_path()):
        args.arms = [arm for arm in args.arms if not arm.startswith("py-spy")]
        print("without py-spy: pip install py-spy")
    noticed = False
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        print(f"load {os.getloadavg()[0]:.1f}, {args.rounds} blocks of {args.seconds} s per arm, {RATE_HZ} samples/s")
        for threads in args.threads:
            with running_target(library, threads) as target:
                blocks = take_turns(target, args)
            noticed |= show(threads, blocks)
    return int(noticed)


def take_turns(target: subprocess.Popen[str], args: argparse.Namespace) -> dict[str, list[Block]]:
    """All blocks of all arms; the same place in each list is the same round."""
    shuffle = random.Random(0).sample
    blocks: dict[str, list[Block]] = {arm: [] for arm in args.arms}
    for _ in range(args.rounds):
        for arm in shuffle(args.arms, len(args.arms)):
            with monitored(arm, target.pid):
                blocks[arm].append(record(target, f"{args.seconds} {args.pages} {args.maps_per_second}"))
    return blocks


def record(target: subprocess.Popen[str], wanted: str) -> Block:
    assert target.stdin is not None
    assert target.stdout is not None
    target.stdin.write(f"{wanted}\n")
    target.stdin.flush()
    return Block(*(float(figure) for figure in target.stdout.readline().split()))


@contextlib.contextmanager
def running_target(library: Path, threads: int) -> Iterator[subprocess.Popen[str]]:
    """The target; its recorder has a core for itself, as far as the machine's other work leaves it one."""
    cpus = sorted(os.sched_getaffinity(0))
    command = [sys.executable, str(TARGET), str(library), str(threads), str(cpus[-1]), str(cpus[0])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def monitored(arm: str, pid: int) -> Iterator[None]:
    """The arm's monitor at work on the target, on the core that is not the recorder's."""
    if arm in (NONE, AGAIN):
        time.sleep(0.2)  # as long as the others take to start: the cores are as warm
        yield
        return
    cpu = sorted(os.sched_getaffinity(0))[0]
    monitor = subprocess.Popen(
        ["taskset", "-c", str(cpu), *command_of(arm, pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    try:
        assert monitor.stdout is not None
        for line in monitor.stdout:
            if line.startswith("ready") or "Sampling process" in line:
                break
        else:
            raise SystemExit(f"{arm} ended with {monitor.wait()} before it sampled")
        time.sleep(0.1)
        yield
        if monitor.poll() is not None:
            raise SystemExit(f"{arm} ended with {monitor.returncode} while it sampled")
    finally:
        monitor.send_signal(signal.SIGINT)
        monitor.communicate(timeout=20)


def command_of(arm: str, pid: int) -> list[str]:
    if arm.startswith("py-spy"):
        py_spy = shutil.which("py-spy", path=search_path()) or "py-spy"
        options = ["--nonblocking"] if arm == NONBLOCKING else []
        return [
            py_spy,
            "record",
            "-r",
            str(RATE_HZ),
            "-d",
            "600",
            "-f",
            "raw",
            "-o",
            os.devnull,
            "-p",
            str(pid),
            *options,
        ]
    return [sys.executable, "-m", "benchmarks.attach_gaps", "--read", str(pid), arm]


def search_path() -> str:
    """Beside this Python, then as usual."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def read(pid: int, arm: str) -> None:
    """The reader's arm: samples until Ctrl-C, and says how well on the way out."""
    from gpuwatch.reader.attach import attach

    interpreter = attach(pid)
    look = interpreter.stacks if arm == ALL else interpreter.main_stack
    if not look():
        raise SystemExit("no stack could be read")
    print("ready", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        due = time.monotonic()
        while True:
            look()
            due += random.uniform(0.5, 1.5) / RATE_HZ
            time.sleep(max(0.0, due - time.monotonic()))


def show(threads: int, blocks: dict[str, list[Block]]) -> bool:
    """One table; whether the reader was noticed."""
    print(
        f"\n{f'{threads} threads':23}pauses/s (quartiles)     stopped (quartiles)       more than none [95%]     loops"
    )
    intervals = {}
    for arm, turns in blocks.items():
        rates = [turn.pauses_per_second for turn in turns]
        shares = [turn.stopped_share for turn in turns]
        line = f"{arm:21}{spread(rates, '{:7.1f}')}   {spread([100 * share for share in shares], '{:7.3f}')}%"
        if arm != NONE:
            more = [share - none.stopped_share for share, none in zip(shares, blocks[NONE], strict=True)]
            intervals[arm] = interval(more)
            low, high = intervals[arm]
            line += f"   {100 * statistics.median(more):+8.3f} [{100 * low:+.3f}, {100 * high:+.3f}] %".ljust(34)
            pairs = zip(turns, blocks[NONE], strict=True)
            fewer = statistics.median(turn.loops_per_second / none.loops_per_second for turn, none in pairs) - 1
            line += f"{100 * fewer:+8.2f}%"
        print(line, flush=True)
    noise = max(0.0, intervals[AGAIN][1]) if AGAIN in intervals else 0.0
    return any(intervals[arm][0] > noise for arm in (MAIN, ALL) if arm in intervals)


def spread(values: list[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{form.format(middle)} ({form.format(low).strip()}-{form.format(high).strip()})".ljust(24)


def interval(values: list[float]) -> tuple[float, float]:
    """The 95% interval of the median, by 2,000 resamples."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2_000))
    return medians[50], medians[-51]


if __name__ == "__main__":
    raise SystemExit(main())
