"""What the hook costs a training: per step isolated, per step in a real loop, and at the start of a Python.

    python -m benchmarks.hook_cost [--rounds 5] [--blocks 8] [--steps 150]

A round starts a trainer of each kind anew; they take turns, block by block, so that what else the machine does hits
each of them alike. Of a block the 5th percentile of the step times counts, of a round the median over its blocks, and
of all the median over the rounds, because two processes of one kind differ by as much as the hook costs: that is what
"without, again" shows. TraceML runs beside them where `traceml-ai` is installed.
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

import psutil

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "gpuwatch" / "hook" / "site"
ISOLATED_LIMIT_US = 2.5
LOOP_LIMIT_US = 10.0
START_LIMIT_MS = 10.0
EVENTS = 20_000
PLAIN = "without the hook"
PATIENCE_SECONDS = 60.0


class Trainer:
    """One way to run the loop: its name, and the line to its process."""

    def __init__(self, name: str, doors: socket.socket) -> None:
        connection, _ = doors.accept()
        connection.settimeout(PATIENCE_SECONDS)
        self.name = name
        self._line = connection.makefile("rw")

    def block(self, steps: int) -> float:
        """The 5th percentile of the step times of one block, in microseconds."""
        self._line.write(f"{steps}\n")
        self._line.flush()
        return float(self._line.readline())


def train(address: str, tracer: str) -> None:
    """The trainer's side: a loop of about 1 ms a step that runs as many steps as it is told to."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64_000, 256), torch.randint(10, (64_000,)))
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    if tracer == "traceml":
        import traceml_ai

        traceml_ai.init()
        around = lambda: traceml_ai.trace_step(model)  # noqa: E731 - the one line that differs
    loader = DataLoader(data, batch_size=64)

    batches = iter(loader)
    clock = time.perf_counter_ns
    control = socket.socket(socket.AF_UNIX)
    control.connect(address)
    line = control.makefile("rw")
    for command in line:
        times: list[int] = []
        while len(times) < int(command):
            start = clock()
            try:
                inputs, labels = next(batches)
            except StopIteration:
                batches = iter(loader)
                continue
            with around():
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            times.append(clock() - start)
        line.write(f"{percentile_5(times) / 1000}\n")
        line.flush()


def percentile_5(values: list[int] | list[float]) -> float:
    """The value that one in twenty lies below: what a step takes when nobody disturbs it."""
    return sorted(values)[len(values) // 20]


def listen(folder: str) -> None:
    """A monitor that reads whatever trainers send, in a process of its own."""
    import selectors

    monitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monitor.bind(f"{folder}/monitor-{os.getpid()}.sock")
    monitor.listen()
    selector = selectors.DefaultSelector()
    selector.register(monitor, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is monitor:
                selector.register(monitor.accept()[0], selectors.EVENT_READ)
            elif not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                selector.unregister(key.fileobj)


def isolated_us() -> dict[str, float]:
    """The cost of each wrapper around a function that does nothing, without a monitor."""
    import torch

    import gpuwatch

    gpuwatch.watch()
    from gpuwatch.hook import steps, waits

    batch = [torch.zeros(8, 3), torch.zeros(8)]

    class Holder:
        """What the wrappers take for an iterator and an optimizer."""

        _index_sampler, _num_workers = None, 2

    holder, nothing = Holder(), ()
    before, after = steps._step_hooks(torch)
    plain_next: Callable[[object], object] = lambda iterator: batch  # noqa: E731 - as short as it can be
    plain_backward: Callable[[object], None] = lambda loss: None  # noqa: E731
    hooked_next = waits._timed(plain_next, torch.is_grad_enabled)
    hooked_backward = steps._timed(plain_backward)

    def optimizer_hooks(holder: object) -> None:
        before(holder, nothing, nothing)
        after(holder, nothing, nothing)

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


def environment_for(folder: Path, hooked: bool) -> dict[str, str]:
    """The environment of a trainer that meets monitors in a folder of its own."""
    folder.mkdir(mode=0o700, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{SITE}:{ROOT}" if hooked else str(ROOT)
    return {**inherited, "PYTHONPATH": path, "GPUWATCH_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def measure_loop(blocks: int, steps: int, scratch: Path) -> tuple[dict[str, list[float]], str]:
    """The step times of each trainer, block by block, and why TraceML is not among them."""
    names = [PLAIN, "without, again", "no monitor", "monitor", "stopped monitor"]
    excuse = "" if importlib.util.find_spec("traceml_ai") else "the package traceml-ai is not installed"
    results: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        doors = stack.enter_context(socket.socket(socket.AF_UNIX))
        address = str(scratch / "control")
        doors.bind(address)
        doors.listen()
        doors.settimeout(PATIENCE_SECONDS)
        trainers, monitors = [], []
        for number, name in enumerate(names):
            folder = scratch / str(number)
            environment = environment_for(folder, hooked=name.endswith("monitor"))
            if name in ("monitor", "stopped monitor"):
                monitors.append(stack.enter_context(running([__file__, "--listen", str(folder)], environment)))
            stack.enter_context(running([__file__, "--train", address, "none"], environment))
            trainers.append(Trainer(name, doors))
        if not excuse:
            stack.enter_context(running(traceml_command(address, scratch), environment_for(scratch / "t", False)))
            try:
                trainers.append(Trainer("TraceML", doors))
            except TimeoutError:
                excuse = f"its trainer did not start within {PATIENCE_SECONDS} s"
        for trainer in trainers:
            trainer.block(steps)
        monitors[-1].send_signal(signal.SIGSTOP)
        results = {trainer.name: [] for trainer in trainers}
        for block in range(blocks):
            for trainer in trainers if block % 2 else reversed(trainers):
                results[trainer.name].append(trainer.block(steps))
    return results, excuse


def traceml_command(address: str, scratch: Path) -> list[str]:
    """TraceML around the same loop, on a port of its own: its default one serves only one run per machine."""
    script = scratch / "traceml_loop.py"
    script.write_text(f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom benchmarks import hook_cost\n"
                      f"hook_cost.train({address!r}, 'traceml')\n")  # fmt: skip
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--train", nargs=2, metavar=("ADDRESS", "TRACER"), help=argparse.SUPPRESS)
    parser.add_argument("--listen", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return
    if arguments.listen:
        listen(arguments.listen)
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ["GPUWATCH_DIR"] = str(scratch / "isolated")
        environments = [environment_for(scratch / "start", hooked) for hooked in (False, True)]
        bare = start_ms(environments, "pass", rounds=40)
        costs = isolated_us()
        rounds, excuse = [], ""
        for number in range(arguments.rounds):
            place = scratch / f"round{number}"
            place.mkdir()
            times, excuse = measure_loop(arguments.blocks, arguments.steps, place)
            rounds.append({name: statistics.median(column) for name, column in times.items()})
    report(bare, costs, rounds, excuse)


def report(bare: list[float], costs: dict[str, float], rounds: list[dict[str, float]], excuse: str) -> None:
    """The table on stdout."""
    parts = ", ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
    print(f"isolated               {sum(costs.values()):7.2f} us/step  (limit {ISOLATED_LIMIT_US} us: {parts})")
    plain = statistics.median(times[PLAIN] for times in rounds)
    print(f"loop, {PLAIN:<17}{plain:7.1f} us/step")
    for name in (name for name in rounds[0] if name != PLAIN):
        extra = [times[name] - (times[PLAIN] + times["without, again"]) / 2 for times in rounds if name in times]
        limit = f"limit {LOOP_LIMIT_US:.0f} us" if name.endswith("monitor") else "for comparison"
        middle, spread = statistics.median(extra), f"rounds {min(extra):+.1f} to {max(extra):+.1f}"
        print(f"loop, {name:<17}{middle:+7.1f} us/step  ({limit}; {100 * middle / plain:+.2f} %; {spread})")
    if excuse:
        print(f"loop, TraceML          skipped: {excuse}")
    print(
        f"python start           {bare[1] - bare[0]:+7.1f} ms       (limit {START_LIMIT_MS:.0f} ms over {bare[0]:.1f})"
    )


if __name__ == "__main__":
    main()
