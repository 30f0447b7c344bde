"""Whether the monitor stays as small as it began: trainings come and go, and its memory, descriptors, threads and
children are watched.

    python -m benchmarks.soak real [--minutes 30] [--trainings 500] [--at-once 20] [--log FILE]
    python -m benchmarks.soak virtual [--hours 24] [--trainings-per-hour 60] [--at-once 20] [--log FILE]

`real`: the dashboard in a pseudo-terminal, recording, over 8 simulated GPUs, and as many trainings as asked for, most
of them cheap loops that speak through `gpuwatch.loader` and `gpuwatch.step`, every 25th a torch training with workers;
every fourth is killed. What /proc says of the dashboard and its children is noted every 10 s.

`virtual`: the monitor's loop on a clock that jumps, over made-up trainings of every scenario, with rules, snapshots and
a recording that is limited to 64 MB; resident memory and what Python has allocated are noted every virtual minute.

In `real` the timeline's history of each GPU is still filling, which takes six hours: it grows by more than the limit
(+6.7 MB/h in 30 minutes), and only `virtual` shows that this ends (73.5 MB from the sixth hour on).

The slope is Theil and Sen's, with its 95% interval, over the medians of minutes after the warm-up. Exits 0 where the
whole interval is below 1 MB an hour and the counts did not grow, 2 where the interval holds 1 MB an hour, else 1.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gc
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineFacts,
    NvmlState,
    ProcessSample,
    Sample,
    TrainerEnded,
)
from gpuwatch.sources.simulator.scenarios import Scenario

ROOT = Path(__file__).parents[1]
TRAINER = ROOT / "benchmarks/scripts/soak_trainer.py"
MOST_MEGABYTES_PER_HOUR = 1.0
SAMPLE_SECONDS = 10.0
GPUS = 8
SLOWED = 20
_OF_THE_MACHINE = (GpuFacts, GpuHealth, GpuSample, GpuStatus, HostSample, MachineFacts, NvmlState)


@dataclass(frozen=True)
class Usage:
    """What the monitor and its children use at a moment; `seconds` are those that have passed for it."""

    seconds: float
    rss_megabytes: float
    pss_megabytes: float
    descriptors: int
    threads: int
    children: int
    started: int
    """Trainings so far."""


class Log:
    """The samples so far, also as rows of a file, so that a soak that is interrupted is not lost."""

    def __init__(self, path: Path | None) -> None:
        self.rows: list[Usage] = []
        self._file = path.open("w", encoding="utf-8") if path else None

    def add(self, usage: Usage) -> None:
        """Notes one."""
        self.rows.append(usage)
        if self._file is not None:
            self._file.write(",".join(str(getattr(usage, field.name)) for field in fields(Usage)) + "\n")
            self._file.flush()


class Trainings:
    """Starts them evenly over the time that there is, ends them, and kills every fourth.

    Args:
        environ: for them.
        count: how many in all.
        at_once: how many live at a time, in the mean.
        seconds: in which they come.
    """

    def __init__(self, environ: dict[str, str], count: int, at_once: int, seconds: float) -> None:
        self._environ = environ
        self._count = count
        self._every = seconds / count
        self._life = at_once * self._every
        self._random = random.Random(0)
        self._alive: dict[subprocess.Popen[bytes], float] = {}
        self.started = 0

    @property
    def pids(self) -> list[int]:
        """Those that live."""
        return [process.pid for process in self._alive]

    def advance(self, seconds: float) -> None:
        """Starts and kills those whose time has come by this many seconds after the beginning."""
        for process, kill_at in list(self._alive.items()):
            if process.poll() is not None:
                del self._alive[process]
            elif seconds >= kill_at:
                process.kill()
        while self.started < self._count and seconds >= self.started * self._every:
            self._start(seconds)

    def _start(self, seconds: float) -> None:
        self.started += 1
        life = self._life * self._random.uniform(0.5, 1.5)
        command = [sys.executable, str(TRAINER), f"{life:.1f}", f"{self._random.choice((2, 5, 20))}"]
        if self.started % 25 == 1:
            command.append("torch")
        kill_at = seconds + life * 0.7 if self.started % 4 == 0 else float("inf")
        process = subprocess.Popen(
            command, env=self._environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._alive[process] = kill_at

    def close(self) -> None:
        """Kills them all."""
        for process in self._alive:
            process.kill()
            process.wait()


class Dashboard:
    """The dashboard in a pseudo-terminal that is read as a terminal reads.

    Args:
        environ: for it.
        folder: that it runs in.
    """

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(sys.executable, [sys.executable, "-m", "gpuwatch"], environ)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.has_numbers = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):  # it has ended
            while select.select([self._master], [], [])[0]:
                if b"/700 W" in os.read(self._master, 65536):
                    self.has_numbers.set()

    def press(self, keys: bytes) -> None:
        """Presses keys."""
        os.write(self._master, keys)

    def close(self) -> None:
        """Ends it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def usage(pid: int, seconds: float, started: int) -> Usage:
    """What a process and its children use now."""
    parent = psutil.Process(pid)
    children = parent.children(recursive=True)
    rss = pss = 0
    for process in (parent, *children):
        info = process.memory_full_info()
        rss, pss = rss + info.rss, pss + info.pss
    family = (parent, *children)
    return Usage(
        seconds,
        rss / 1e6,
        pss / 1e6,
        sum(process.num_fds() for process in family),
        sum(process.num_threads() for process in family),
        len(children),
        started,
    )


def real(arguments: argparse.Namespace) -> int:
    """The soak of real processes."""
    from tests import nvml_sim

    seconds = arguments.minutes * 60
    log = Log(arguments.log)
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        driver = nvml_sim.SimulatedDriver(folder, nvml_sim.build(folder), gpus=GPUS)
        driver.write(*_load([]))
        rendezvous, home = folder / "gpuwatch", folder / "home"
        rendezvous.mkdir(mode=0o700)
        home.mkdir()
        environ = {**os.environ, **driver.env, "GPUWATCH_DIR": str(rendezvous), "PYTHONPATH": str(ROOT)}
        environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        dashboard = Dashboard(environ, home)
        cleanup.callback(dashboard.close)
        trainings = Trainings(environ, arguments.trainings, arguments.at_once, seconds)
        cleanup.callback(trainings.close)
        if not dashboard.has_numbers.wait(60):
            raise SystemExit("the dashboard never showed a number of a GPU")
        dashboard.press(b"r")
        began, next_sample = time.monotonic(), 0.0
        while (passed := time.monotonic() - began) < seconds:
            trainings.advance(passed)
            if passed >= next_sample:
                next_sample += SAMPLE_SECONDS
                driver.write(*_load(trainings.pids))
                log.add(usage(dashboard.pid, passed, trainings.started))
            time.sleep(0.2)
        if not list(home.glob("*.gpuwatch")):
            raise SystemExit("the dashboard wrote no recording")
    return report(log.rows, warmup_seconds=seconds * arguments.warmup)


class SimulatedTrainings:
    """The monitor's source of the virtual soak: 8 GPUs and a host, and trainings that come, end and are killed.

    Each training is played by a simulator of its own, of every scenario in turn, slower than in the demo; it
    is given a pid of its own and one of the GPUs, and of what its simulator says only what concerns the run is passed.

    Args:
        start_ns: the monitor's time at the beginning.
        every_seconds: between two that come.
        life_seconds: of each, in the mean.
    """

    name = "trainings"

    def __init__(self, start_ns: int, every_seconds: float, life_seconds: float) -> None:
        from gpuwatch.sources.simulator.source import SimulatorSource

        self._machine = SimulatorSource("eight-gpus", start_ns=start_ns)
        self._every_ns, self._life_seconds = round(every_seconds * 1e9), life_seconds
        self._next_ns = start_ns
        self._random = random.Random(0)
        self._alive: list[_SimulatedTraining] = []
        self._due_ns = start_ns
        self.started = 0

    def fileno(self) -> int | None:
        """No file: only the clock moves it."""
        return None

    def due_ns(self) -> int | None:
        """Once a second, as packets that come in bursts: one by one they cost three times as much."""
        return self._due_ns

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples up to `now_ns`."""
        self._due_ns = now_ns + 1_000_000_000
        samples = [each for each in self._machine.collect(now_ns) if isinstance(each, _OF_THE_MACHINE)]
        while now_ns >= self._next_ns:
            self._alive.append(_SimulatedTraining(self.started, self._next_ns, self._life_ns()))
            self.started += 1
            self._next_ns += self._every_ns
        for training in list(self._alive):
            samples += training.collect(now_ns)
            if now_ns >= training.end_ns:
                self._alive.remove(training)
        return samples

    def _life_ns(self) -> int:
        return round(self._life_seconds * self._random.uniform(0.5, 1.5) * 1e9)

    def close(self) -> None:
        """Ends them."""
        self._alive.clear()


class _SimulatedTraining:
    """One of them."""

    def __init__(self, number: int, start_ns: int, life_ns: int) -> None:
        from gpuwatch.sources.simulator.scenarios import SCENARIOS
        from gpuwatch.sources.simulator.source import SimulatorSource, gpu_uuid

        scenarios = [scenario for scenario in SCENARIOS.values() if not scenario.attached]
        self._simulator = SimulatorSource(_slowed(scenarios[number % len(scenarios)]), seed=number, start_ns=start_ns)
        self._pid_offset = 1000 * (number + 1)
        self._uuids = (gpu_uuid(number % GPUS),)
        self._is_killed = number % 4 == 0
        self.end_ns = start_ns + life_ns
        self._trainers: set[str] = set()

    def collect(self, now_ns: int) -> list[Sample]:
        samples = [
            self._renamed(each)
            for each in self._simulator.collect(min(now_ns, self.end_ns))
            if hasattr(each, "trainer") or isinstance(each, ProcessSample)
        ]
        if now_ns >= self.end_ns:
            how: Literal["killed", "exited"] = "killed" if self._is_killed else "exited"
            samples += [TrainerEnded(trainer, self.end_ns, how) for trainer in sorted(self._trainers)]
        return samples

    def _renamed(self, sample: Any) -> Sample:
        changes: dict[str, Any] = {}
        if hasattr(sample, "pid"):
            changes["pid"] = sample.pid + self._pid_offset
        if hasattr(sample, "worker_pid"):
            changes["worker_pid"] = sample.worker_pid + self._pid_offset
        if hasattr(sample, "gpu_uuids"):
            changes["gpu_uuids"] = self._uuids
        if getattr(sample, "group", None):
            changes["group"] = f"{sample.group}-{self._pid_offset}"
        if getattr(sample, "workers", None):
            changes["workers"] = tuple(replace(each, pid=each.pid + self._pid_offset) for each in sample.workers)
        if hasattr(sample, "trainer"):
            pid, _, ticks = sample.trainer.partition(".")
            changes["trainer"] = f"{int(pid) + self._pid_offset}.{ticks}"
            self._trainers.add(changes["trainer"])
        return replace(sample, **changes)  # type: ignore[no-any-return]


def _slowed(scenario: Scenario) -> Scenario:
    """With steps that take this many times as long, so that a day of them can be played in minutes."""
    loader, compute = scenario.loader, scenario.compute
    return replace(
        scenario,
        loader=replace(loader, batch_seconds=SLOWED * loader.batch_seconds, batches_per_epoch=200),
        compute=replace(compute, gpu_seconds=SLOWED * compute.gpu_seconds),
        phases=tuple(replace(phase, every_steps=max(10, phase.every_steps // SLOWED)) for phase in scenario.phases),
    )


def virtual(arguments: argparse.Namespace) -> int:
    """The soak on a clock that jumps."""
    from gpuwatch.diagnosis.engine import Engine
    from gpuwatch.monitor.clock import VirtualClock
    from gpuwatch.monitor.monitor import Monitor
    from gpuwatch.monitor.snapshot import Origin

    log = Log(arguments.log)
    clock = VirtualClock(86_400_000_000_000, time.time())
    start_ns = clock.now_ns()
    every = 3600 * arguments.hours / arguments.trainings
    source = SimulatedTrainings(start_ns, every, every * arguments.at_once)
    monitor = Monitor(
        [source],
        origin=Origin("simulated", "SIMULATED soak"),
        clock=clock,
        engine=Engine(),
        evaluate_every_seconds=arguments.evaluate_every,
    )
    me = os.getpid()
    snapshots = {}
    with tempfile.TemporaryDirectory() as folder:
        monitor.record(Path(folder, "soak.gpuwatch"), max_bytes=64 << 20)
        for minute in range(1, round(arguments.hours * 60) + 1):
            monitor.run_until(start_ns + minute * 60_000_000_000)
            log.add(usage(me, minute * 60.0, source.started))
            if arguments.allocations and minute in (120, round(arguments.hours * 60)):
                gc.collect()
                snapshots[minute] = tracemalloc.take_snapshot()
        recorded = monitor.snapshot().recording
        print(
            f"recorded {recorded.bytes / 1e6:.1f} MB, {recorded.problem or 'no problem'}"
            if recorded
            else "no recording"
        )
        monitor.stop()
    if len(snapshots) == 2:
        first, last = snapshots.values()
        for difference in last.compare_to(first, "lineno")[:25]:
            print(difference)
    return report(log.rows, warmup_seconds=arguments.warmup * arguments.hours * 3600)


def _load(pids: Iterable[int]) -> Iterator[str]:
    """The simulated driver's scenario: trainings that starve, each on a GPU."""
    yield "wave * utilization square 5 98 0.9 0.55"
    yield "wave * power square 140 610 0.9 0.55"
    for number, pid in enumerate(pids):
        yield f"process {number % GPUS} {pid} 3000000000 20"


def report(rows: list[Usage], warmup_seconds: float) -> int:
    """The slopes and the counts, and the exit code."""
    from scipy import stats

    warm = [row for row in rows if row.seconds >= warmup_seconds]
    hours = (warm[-1].seconds - warm[0].seconds) / 3600
    print(f"{len(warm)} samples over {hours:.2f} h after a warm-up of {warmup_seconds / 60:.0f} min; ", end="")
    print(f"{rows[-1].started} trainings came; load {os.getloadavg()[0]:.1f}")
    verdicts = []
    for name in ("rss_megabytes", "pss_megabytes"):
        minutes: dict[int, list[float]] = {}
        for row in warm:
            minutes.setdefault(int(row.seconds // 60), []).append(getattr(row, name))
        values = [statistics.median(minutes[minute]) for minute in sorted(minutes)]
        found = stats.theilslopes(values, [minute / 60 for minute in sorted(minutes)])
        print(f"{name}: {values[0]:.1f} at first, {values[-1]:.1f} at last; ", end="")
        print(f"slope {found.slope:+.2f} MB/h, 95% interval {found.low_slope:+.2f} to {found.high_slope:+.2f}")
        too_steep = found.low_slope > MOST_MEGABYTES_PER_HOUR
        verdicts.append(0 if found.high_slope < MOST_MEGABYTES_PER_HOUR else 1 if too_steep else 2)
    third = len(warm) // 3
    for name in ("descriptors", "threads", "children"):
        values = [getattr(row, name) for row in warm]
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        print(f"{name}: {min(values)} to {max(values)}; median {first:g} in the first third, {last:g} in the last")
        # Not the median alone: a short-lived thread was there in a third of the samples of the first 16 h and in two
        # thirds of the last 8, never more than one.
        verdicts.append(1 if last > first and max(values[-third:]) > max(values[:third]) else 0)
    code = 1 if 1 in verdicts else max(verdicts)
    print({0: "holds", 1: "grows", 2: "undecided: the interval holds the limit; soak for longer"}[code])
    return code


def main() -> int:
    """Runs one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_real = commands.add_parser("real")
    of_real.add_argument("--minutes", type=float, default=30.0)
    of_real.add_argument("--trainings", type=int, default=500)
    of_real.set_defaults(run=real)
    of_virtual = commands.add_parser("virtual")
    of_virtual.add_argument("--hours", type=float, default=24.0)
    of_virtual.add_argument("--trainings", type=int, default=500)
    of_virtual.add_argument("--evaluate-every", type=float, default=60.0, metavar="SECONDS", help="virtual ones")
    of_virtual.add_argument(
        "--allocations", action="store_true", help="what Python allocated between hour 2 and the end"
    )
    of_virtual.set_defaults(run=virtual)
    again = commands.add_parser("report", help="judge a log again")
    again.set_defaults(run=lambda arguments: report(read_log(arguments.log), arguments.warmup_minutes * 60))
    again.add_argument("--warmup-minutes", type=float, default=10.0)
    for command in (of_real, of_virtual):
        command.add_argument("--at-once", type=int, default=20 if command is of_real else 8)
        command.add_argument("--warmup", type=float, default=0.33, help="share of the time that is not judged")
    for command in (of_real, of_virtual, again):
        command.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    if getattr(arguments, "allocations", False):
        tracemalloc.start()
    return arguments.run(arguments)  # type: ignore[no-any-return]


def read_log(path: Path) -> list[Usage]:
    """The samples of a log."""
    with path.open(encoding="utf-8") as file:
        return [Usage(*map(float, row[:3]), *map(int, row[3:])) for row in csv.reader(file)]


if __name__ == "__main__":
    sys.exit(main())
