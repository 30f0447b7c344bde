"""What the hook costs a training: per step isolated and in real loops, at start and import of torch, and in memory.

    python -m benchmarks.hook_cost [--rounds 4] [--pairs 20] [--steps 150] [--loops short,long,compiled,workers]

Two processes of one kind differ by as much as the hook costs, so each trainer is compared with itself: it runs pairs of
blocks, one with the hook's wrappers in torch and one without. Of a block the 5th percentile of the step times counts;
the flushes, of which a block of 150 steps has two or three, are timed on their own and shared out among the steps. Of
the pairs the median counts. "without, again" are pairs without the wrappers in either block: what this way of measuring
takes for a difference where there is none. A round restarts the trainers; within a round they take turns, pair by
pair. TraceML, where `traceml-ai` is installed, is a trainer of its own and compared with the plain one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.hook_trainer import percentile_5

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "gpuwatch" / "hook" / "site"
PROCESS = ("-m", "benchmarks.hook_trainer")
ISOLATED_LIMIT_US = 2.5
LOOP_LIMITS_US = {"no monitor": 3.0, "monitor": 8.0, "stopped monitor": 8.0}
LOOPS = {
    "short": ("512", "0", ""),
    "long": ("8192", "0", ""),
    "compiled": ("512", "0", "aot_eager"),
    "workers": ("512", "8", ""),
}
"""Width of the model, DataLoader workers, backend of torch.compile: steps of 1 ms, of 10 ms, compiled, 8 workers."""
START_LIMIT_MS = 10.0
EVENTS = 20_000
PLAIN = "without the hook"
TRACEML = "TraceML"
PAIRS_TO_FILL = 15
"""What a monitor that does not read takes in before the kernel refuses more: some 30 flushes, two or three a block."""
PATIENCE_SECONDS = 60.0


class Pair(NamedTuple):
    """The times per step of two blocks that ran one after the other, in microseconds."""

    without: float
    wrapped: float
    flushing: float

    @property
    def extra(self) -> float:
        """What the hook added to a step, with its share of the flushes."""
        return self.wrapped - self.without + self.flushing


class Trainer:
    """One way to run the loop: its name, and the line to its process."""

    def __init__(self, name: str, doors: socket.socket) -> None:
        connection, _ = doors.accept()
        connection.settimeout(PATIENCE_SECONDS)
        self.name = name
        self._line = connection.makefile("rw")

    def pair(self, steps: int) -> Pair:
        """Two blocks; which of them comes first changes from one pair to the next."""
        self._line.write(f"{steps}\n")
        self._line.flush()
        return Pair(*map(float, self._line.readline().split()))


def isolated_us(awake: bool) -> dict[str, float]:
    """The cost of each wrapper around a function that does nothing, while nothing is recorded or while it is."""
    import torch

    import gpuwatch

    gpuwatch.watch()
    from gpuwatch.hook import ring, steps, waits

    def empty(now_ns: int) -> None:
        ring.pending.clear()
        ring.pulse.due_ns = now_ns + ring.FLUSH_PERIOD_NS

    ring.pulse.awake, ring.pulse.flush = awake, empty

    batch = [torch.zeros(8, 3), torch.zeros(8)]

    class Holder:
        """What the wrappers take for an iterator and an optimizer."""

        _index_sampler, _num_workers = None, 2

    holder, nothing = Holder(), ()
    before, after = steps._step_hooks(torch)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    plain_next: Callable[[object], object] = lambda iterator: batch  # noqa: E731 - as short as it can be
    engine: Callable[..., None] = lambda loss, accumulate_grad: None  # noqa: E731
    plain_backward: Callable[[object], None] = lambda loss: engine(loss, accumulate_grad=True)  # noqa: E731
    hooked_next = waits._timed(plain_next, torch.is_grad_enabled)
    engine_call = steps._timed(engine)
    hooked_backward: Callable[[object], None] = lambda loss: engine_call(loss, accumulate_grad=True)  # noqa: E731

    def optimizer_hooks(holder: object) -> None:
        before(optimizer, nothing, nothing)
        after(optimizer, nothing, nothing)

    def cost(function: Callable[[object], object]) -> float:
        blocks = []
        for _ in range(40):
            start = time.perf_counter_ns()
            for _ in range(EVENTS // 10):
                function(holder)
            blocks.append((time.perf_counter_ns() - start) / (EVENTS // 10) / 1000)
        return percentile_5(blocks)

    return {
        "next": cost(hooked_next) - cost(plain_next),
        "backward": cost(hooked_backward) - cost(plain_backward),
        "optimizer": cost(optimizer_hooks) - cost(plain_backward),
    }


def start_ms(environments: list[dict[str, str]], code: str, rounds: int) -> list[float]:
    """How long a Python takes from start to end in each environment, taken in turns."""
    times: list[list[float]] = [[] for _ in environments]
    for _ in range(rounds):
        for column, environment in zip(times, environments, strict=True):
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
            column.append((time.perf_counter_ns() - start) / 1e6)
    return [percentile_5(column) for column in times]


def environment_for(hooked: bool) -> dict[str, str]:
    """The environment of a Python with or without the hook."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GPUWATCH_DIR")}
    path = f"{SITE}:{ROOT}" if hooked else str(ROOT)
    return {**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}


def resident_mib(environment: dict[str, str]) -> float:
    """The memory of a Python that has imported torch and built a loader and an optimizer, its own pages only."""
    code = (
        "import torch, psutil\n"
        "net = torch.nn.Linear(2, 2)\n"
        "torch.optim.SGD(net.parameters(), lr=1)\n"
        "list(torch.utils.data.DataLoader([1, 2]))\n"
        "print(psutil.Process().memory_full_info().uss)"
    )
    output = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout
    return int(output) / 2**20


def measure_loop(loop: str, pairs: int, steps: int, scratch: Path) -> tuple[dict[str, list[Pair]], str]:
    """The pairs of each trainer, and why TraceML is not among them."""
    names = [PLAIN, "no monitor", "monitor", "stopped monitor"]
    excuse = "" if importlib.util.find_spec("traceml_ai") else "the package traceml-ai is not installed"
    if loop != "short":
        excuse = "it is measured in the short loop"
    with contextlib.ExitStack() as stack:
        doors = stack.enter_context(socket.socket(socket.AF_UNIX))
        address = str(scratch / "control")
        doors.bind(address)
        doors.listen()
        doors.settimeout(PATIENCE_SECONDS)
        trainers, monitors = [], []
        for name in names:
            folder = scratch / name
            folder.mkdir(mode=0o700)
            environment = environment_for(hooked=name != PLAIN)
            if name in ("monitor", "stopped monitor"):
                monitors.append(stack.enter_context(running([*PROCESS, "listen", str(folder)], environment)))
            stack.enter_context(running([*PROCESS, "train", address, "none", str(folder), *LOOPS[loop]], environment))
            trainers.append(Trainer(name, doors))
        if not excuse:
            stack.enter_context(running(traceml_command(address, scratch), environment_for(hooked=False)))
            try:
                trainers.append(Trainer(TRACEML, doors))
            except TimeoutError:
                excuse = f"its trainer did not start within {PATIENCE_SECONDS} s"
        for trainer in trainers:
            trainer.pair(steps)
        monitors[-1].send_signal(signal.SIGSTOP)
        for _ in range(PAIRS_TO_FILL):
            trainers[names.index("stopped monitor")].pair(steps)
        results: dict[str, list[Pair]] = {trainer.name: [] for trainer in trainers}
        for number in range(pairs):
            for trainer in trainers if number % 2 else reversed(trainers):
                results[trainer.name].append(trainer.pair(steps))
    return results, excuse


def traceml_command(address: str, scratch: Path) -> list[str]:
    """TraceML around the same loop, on a port of its own: its default one serves only one run per machine."""
    script = scratch / "traceml_loop.py"
    script.write_text(f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom benchmarks import hook_trainer\n"
                      f"hook_trainer.train({address!r}, 'traceml', {str(scratch)!r})\n")  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ["--logs-dir", str(scratch / "logs"), "--aggregator-port", port]
    return ["-m", "traceml_ai.launcher.cli", "run", *options, str(script)]


@contextlib.contextmanager
def running(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that is gone after the block, whatever state it is in."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        tree = psutil.Process(process.pid)
        for member in [*tree.children(recursive=True), tree]:  # TraceML's processes have sessions of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--loops", default=",".join(LOOPS), help="which of them, separated by commas")
    arguments = parser.parse_args()
    environments = [environment_for(hooked) for hooked in (False, True)]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ["GPUWATCH_DIR"] = str(scratch / "isolated")
        bare = start_ms(environments, "pass", rounds=40)
        print(
            f"python start           {bare[1] - bare[0]:+7.1f} ms  (limit {START_LIMIT_MS:.0f} ms over {bare[0]:.1f})"
        )
        imported = start_ms(environments, "import torch", rounds=5)
        print(f"import of torch        {imported[1] - imported[0]:+7.1f} ms  (over {imported[0]:.1f})")
        memory = [statistics.median(resident_mib(each) for _ in range(3)) for each in environments]
        print(f"memory                 {memory[1] - memory[0]:+7.2f} MiB (over {memory[0]:.1f})")
        for awake, label in ((False, "asleep"), (True, "awake")):
            costs = isolated_us(awake)
            parts = ", ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
            print(f"isolated, {label:<13}{sum(costs.values()):7.2f} us/step  (limit {ISOLATED_LIMIT_US} us: {parts})")
        for loop in arguments.loops.split(","):
            rounds, excuse = [], ""
            for number in range(arguments.rounds):
                place = scratch / f"{loop}{number}"
                place.mkdir()
                pairs, excuse = measure_loop(loop, arguments.pairs, arguments.steps, place)
                rounds.append(pairs)
            report(loop, rounds, excuse)


def report(loop: str, rounds: list[dict[str, list[Pair]]], excuse: str) -> None:
    """One loop's part of the table, on stdout."""
    plain = statistics.median(pair.without for pairs in rounds for pair in pairs[PLAIN])
    print(f"{loop}, {PLAIN:<17}{plain:9.1f} us/step, load {os.getloadavg()[0]:.1f}")
    for name in rounds[0]:
        differences = [extra_us(name, pairs) for pairs in rounds if name in pairs]
        middle = statistics.median(value for column in differences for value in column)
        medians = [statistics.median(column) for column in differences]
        limit = f"limit {LOOP_LIMITS_US[name]:.0f} us" if name in LOOP_LIMITS_US else "for comparison"
        spread = f"rounds {min(medians):+.1f} to {max(medians):+.1f}"
        flushing = statistics.median(pair.flushing for pairs in rounds for pair in pairs.get(name, ()))
        label = "without, again" if name == PLAIN else name
        print(f"{loop}, {label:<17}{middle:+9.1f} us/step  ({limit}; flushes {flushing:.1f}; {spread})")
    if excuse:
        print(f"{loop}, TraceML          skipped: {excuse}")


def extra_us(name: str, pairs: dict[str, list[Pair]]) -> list[float]:
    """What each pair of a trainer took longer; TraceML cannot be taken out, so the plain trainer is its reference."""
    if name == TRACEML:
        return [own.wrapped - plain.without for own, plain in zip(pairs[name], pairs[PLAIN], strict=True)]
    return [pair.extra for pair in pairs[name]]


if __name__ == "__main__":
    main()
