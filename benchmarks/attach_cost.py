"""What looking costs: attaching, one look, and sampling one process or one with four workers.

    python -m benchmarks.attach_cost [--seconds 20]

CPU time is that of the whole sampling process (user and system) per second of wall time, so of one core. The rates are
those that were reached; a busy machine makes looks later, not more expensive. Exits 1 above a limit: 3% of a core for
one process, 6% for one with four workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.attach_accuracy import RATE_HZ, training
from gpuwatch.reader.attach import attach
from gpuwatch.reader.loaders import LoaderReader
from gpuwatch.samples import StackTally
from gpuwatch.sources.stacks import StackSource, StackTarget

LIMITS = {0: 0.03, 4: 0.06}
LOOKS = 400


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    above = False
    print(f"load {os.getloadavg()[0]:.1f}")
    for workers, limit in LIMITS.items():
        options = ("--workers", str(workers), "--eval-every", "0")
        with TemporaryDirectory() as folder, training(options, Path(folder)) as pid:
            if not workers:
                single_looks(pid)
            above |= sampling(pid, workers, args.seconds) > limit
    return int(above)


def single_looks(pid: int) -> None:
    """The price of the parts."""
    attaching, first = [], []
    for _ in range(10):
        start = time.perf_counter()
        interpreter = attach(pid)
        attaching.append(time.perf_counter() - start)
        interpreter.main_stack()
        first.append(time.perf_counter() - start)
        interpreter.close()
    alone, whole = 1e3 * statistics.median(attaching), 1e3 * statistics.median(first)
    print(f"attaching           {alone:7.2f} ms, with the first stack {whole:.2f} ms")
    interpreter = attach(pid)
    loaders = LoaderReader(interpreter)
    stack = interpreter.main_stack()
    depth = len(stack.frames) if stack else 0
    print(f"main thread's stack {cpu_us(interpreter.main_stack):7.1f} us of CPU ({depth} frames)")
    print(f"all threads' stacks {cpu_us(interpreter.stacks):7.1f} us of CPU ({len(interpreter.stacks())} threads)")

    def state() -> object:
        found = interpreter.main_stack()
        return found and loaders.state(found)

    print(f"stack and counter   {cpu_us(state):7.1f} us of CPU")
    interpreter.close()


def cpu_us(look: Callable[[], object]) -> float:
    """The median of one look, spread over time as sampling does."""
    costs = []
    for _ in range(LOOKS):
        time.sleep(0.002)
        start = time.thread_time_ns()
        look()
        costs.append((time.thread_time_ns() - start) / 1e3)
    return statistics.median(costs)


def sampling(pid: int, workers: int, seconds: float) -> float:
    """The share of a core that the source takes; prints it with the rates reached."""
    source = StackSource(lambda: [StackTarget(pid, hooked=False)], rate_hz=RATE_HZ)
    tallies: list[StackTally] = []
    try:
        for warm in (True, False):
            tallies.clear()
            start, start_cpu = time.monotonic(), time.process_time()
            while time.monotonic() < start + (3.0 if warm else seconds):
                tallies += [each for each in source.collect(time.monotonic_ns()) if isinstance(each, StackTally)]
                time.sleep(0.1)
            share = (time.process_time() - start_cpu) / (time.monotonic() - start)
    finally:
        source.close()
    covered = sum(tally.end_ns - tally.start_ns for tally in tallies) / 1e9
    main_hz = sum(tally.samples for tally in tallies) / covered
    line = f"{workers} workers: {100 * share:5.2f}% of a core (limit {100 * LIMITS[workers]:.0f}%)"
    line += f", training thread {main_hz:.0f} Hz"
    if workers:
        seen = max(tally.workers for tally in tallies)
        worker_hz = sum(tally.worker_samples for tally in tallies) / covered / seen
        line += f", each of {seen} workers {worker_hz:.1f} Hz"
    rejected = sum(tally.rejected + tally.worker_rejected for tally in tallies)
    looks = sum(tally.samples + tally.worker_samples for tally in tallies) + rejected
    print(f"{line}, torn {rejected} of {looks}", flush=True)
    return share


if __name__ == "__main__":
    raise SystemExit(main())
