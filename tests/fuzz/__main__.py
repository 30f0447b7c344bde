"""Runs mutated inputs in a child process and watches it for escaped exceptions, crashes, hangs and growth."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tests.fuzz.mutation import Target, make_input

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20
_STATE = struct.Struct("<qqq")  # number of the input that runs, inputs done, faults that the child saved itself
_WARMING = -1
_BLOCKED_FACTOR = 12  # wall seconds for each CPU second of the limit: the machine may be busy
_RSS_PERIOD_SECONDS = 0.5
_MAX_FAULTS = 50


@dataclass(frozen=True)
class Options:
    seconds: float
    inputs: int | None
    seed: int
    workers: int
    failures: Path
    hang_seconds: float
    input_mib: int
    growth_mib: int


@dataclass
class Worker:
    """One child and what is known of it. Inputs are dealt out in turn: this one has every `step`-th."""

    first: int
    step: int
    shared: mmap.mmap
    pid: int = 0
    number: int = -1
    moved_at: float = 0.0
    moved_cpu: float = 0.0
    resident: list[int] = field(default_factory=list)
    sampled_at: float = 0.0

    def state(self) -> tuple[int, int, int]:
        return cast("tuple[int, int, int]", _STATE.unpack_from(self.shared))


class Driver:
    """A run over one target."""

    def __init__(self, name: str, target: Target, options: Options) -> None:
        self._name = name
        self._target = target
        self._options = options
        self._corpus = target.seeds()
        self._faults = 0
        self._first_resident = 0
        self._last_resident = 0
        if not self._corpus:
            raise SystemExit(f"{name} has no seeds")

    def run(self) -> int:
        """Runs until the time or the inputs are over; 1 if there was a fault."""
        begin = time.monotonic()
        workers = [Worker(each, self._options.workers, mmap.mmap(-1, 4096)) for each in range(self._options.workers)]
        for worker in workers:
            self._start(worker, worker.first)
        try:
            while any(worker.pid for worker in workers) and self._total_faults(workers) < _MAX_FAULTS:
                if time.monotonic() - begin >= self._options.seconds:
                    break
                time.sleep(0.02)
                for worker in workers:
                    self._watch(worker)
        finally:
            for worker in workers:
                self._end(worker)
        for worker in workers:
            self._judge_growth(worker)
        faults = self._total_faults(workers)
        inputs = sum(worker.state()[1] for worker in workers)
        print(
            f"{self._name}: {inputs} inputs, {faults} faults, seed {self._options.seed}, "
            f"{time.monotonic() - begin:.0f} s, RSS first {self._first_resident / _MIB:.1f} MiB, "
            f"last {self._last_resident / _MIB:.1f} MiB",
            flush=True,
        )
        return 1 if faults or not inputs else 0

    def _total_faults(self, workers: Sequence[Worker]) -> int:
        return self._faults + sum(worker.state()[2] for worker in workers)

    # ---- the parent

    def _start(self, worker: Worker, number: int) -> None:
        limit = self._options.inputs
        if limit is not None and number >= limit:
            return
        _STATE.pack_into(worker.shared, 0, _WARMING, *worker.state()[1:])
        sys.stdout.flush()
        worker.pid = os.fork()
        if not worker.pid:
            code = 1
            try:
                self._child(worker, number)
                code = 0
            except BaseException:  # noqa: BLE001 - the child must not return into the parent's code
                traceback.print_exc()
            finally:
                os._exit(code)
        worker.number, worker.moved_at, worker.moved_cpu = _WARMING, time.monotonic(), 0.0
        worker.resident = []

    def _watch(self, worker: Worker) -> None:
        if not worker.pid:
            return
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        number = worker.state()[0]
        if pid:
            worker.pid = 0
            if status:
                how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "its own exit"
                self._judge_growth(worker)
                self._fail(worker, number, "crash", f"the child ended by {how}\n")
            return
        now, cpu, resident = time.monotonic(), *_usage(worker.pid)
        if number != worker.number:
            worker.number, worker.moved_at, worker.moved_cpu = number, now, cpu
        elif cpu - worker.moved_cpu > self._options.hang_seconds or (
            now - worker.moved_at > self._options.hang_seconds * _BLOCKED_FACTOR
        ):
            os.kill(worker.pid, signal.SIGABRT)  # faulthandler prints where it hangs
            os.waitpid(worker.pid, 0)
            worker.pid = 0
            seconds = f"{cpu - worker.moved_cpu:.1f} CPU seconds, {now - worker.moved_at:.1f} seconds"
            self._fail(worker, number, "hang", f"no end after {seconds}\n")
            return
        if number != _WARMING and now - worker.sampled_at >= _RSS_PERIOD_SECONDS and resident:
            worker.sampled_at = now
            worker.resident.append(resident)

    def _end(self, worker: Worker) -> None:
        if worker.pid:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
            worker.pid = 0

    def _judge_growth(self, worker: Worker) -> None:
        """The resident memory after a fifth of the child's life, compared with its last."""
        if len(worker.resident) < 2:
            return
        settled = worker.resident[len(worker.resident) // 5 :]
        tenth = max(1, len(settled) // 10)
        # The least of a stretch: what an input takes for a moment is judged by itself.
        first, last = min(settled[:tenth]), min(settled[-tenth:])
        self._first_resident, self._last_resident = first, last
        if last - first > self._options.growth_mib * _MIB:
            self._faults += 1
            print(f"{self._name}: growth from {first / _MIB:.1f} to {last / _MIB:.1f} MiB", flush=True)
        worker.resident = []

    def _fail(self, worker: Worker, number: int, kind: str, text: str) -> None:
        """Notes what ended a child, and goes on behind it."""
        self._faults += 1
        if number == _WARMING:
            print(f"{self._name}: {kind} among the seeds: {text}", flush=True)
            return
        self._write(number, kind, text)
        self._start(worker, number + worker.step)

    # ---- the child

    def _child(self, worker: Worker, number: int) -> None:
        log = (self._folder() / f"log-{worker.first}.txt").open("w")
        faulthandler.enable(log, all_threads=True)
        for target in self._corpus:
            self._target.run(target)  # warm: what is loaded or cached once is no growth; a seed must not fail
        gc.collect()
        gc.freeze()
        limit = _virtual_bytes() + self._options.input_mib * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while self._options.inputs is None or number < self._options.inputs:
            _, done, faults = worker.state()
            _STATE.pack_into(worker.shared, 0, number, done, faults)
            try:
                self._target.run(make_input(self._target, self._corpus, self._options.seed, number))
            except Exception:  # noqa: BLE001 - all that escapes is a fault
                faults += 1
                self._write(number, "exception", traceback.format_exc())
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if used - peak > self._options.input_mib * 1024 // 2:
                faults += 1
                self._write(number, "memory", f"one input raised the peak from {peak} to {used} KiB\n")
            peak = max(peak, used)
            _STATE.pack_into(worker.shared, 0, number, done + 1, faults)
            number += worker.step
            if faults >= _MAX_FAULTS:
                return

    def _folder(self) -> Path:
        folder = self._options.failures / self._name.rpartition(".")[2]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write(self, number: int, kind: str, text: str) -> None:
        data = make_input(self._target, self._corpus, self._options.seed, number)
        stem = self._folder() / f"{kind}-{self._options.seed}-{number}"
        stem.with_suffix(".bin").write_bytes(data)
        stem.with_suffix(".txt").write_text(text)
        last = text.strip().rpartition("\n")[2]
        print(f"{self._name}: {kind} at input {number}: {last[:300]} ({stem}.bin)", flush=True)


def _usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes; zeros for a process that is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0
    return (int(words[11]) + int(words[12])) / _TICKS_PER_SECOND, int(words[21]) * _PAGE_BYTES


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES


def _target(name: str) -> Target:
    return cast("Target", importlib.import_module(name if "." in name else f"tests.fuzz.{name}"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 without faults, 1 with some, 2 for a bad command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", help="a module of tests/fuzz (packets, recordings, ...), or a dotted name")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of the run (default: %(default)s)")
    parser.add_argument("--inputs", type=int, help="end after this many inputs")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs")
    parser.add_argument("--workers", type=int, default=1, help="child processes at a time")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where failing inputs are saved")
    parser.add_argument("--hang-seconds", type=float, default=10.0, help="CPU seconds that one input may take")
    parser.add_argument("--input-mib", type=int, default=512, help="memory that one input may take")
    parser.add_argument("--growth-mib", type=int, default=32, help="growth of the resident memory over the run")
    parser.add_argument("--replay", type=Path, help="run one saved input, in this process")
    options = parser.parse_args(arguments)
    target = _target(options.target)
    if options.replay is not None:
        target.run(options.replay.read_bytes())
        return 0
    chosen = Options(
        options.seconds,
        options.inputs,
        options.seed,
        max(1, options.workers),
        options.failures,
        options.hang_seconds,
        options.input_mib,
        options.growth_mib,
    )
    return Driver(options.target, target, chosen).run()


if __name__ == "__main__":
    sys.exit(main())
