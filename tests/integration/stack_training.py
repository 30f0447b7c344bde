"""A training script as users write them, that also logs where its time went; and a source that looks at it."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from gpuwatch.samples import Sample, StackTally
from gpuwatch.sources.stacks import StackSource, StackTarget
from tests.integration.command_line import PATIENCE_SECONDS
from tests.integration.forked_python import ForkedPython
from tests.integration.process_groups import kill_group

TRAINING = """
import json, sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

clock = time.perf_counter
spent = {}
torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self, count, augment):
        self.count, self.augment = count, augment

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = np.full((32, 32, 3), index % 255, dtype=np.float32)
        if self.augment:
            image = np.sort(np.random.rand(60_000))[:3072].reshape(32, 32, 3).astype(np.float32)  # HOT
            image = np.roll(image, 3, axis=0) + np.random.rand(32, 32, 3).astype(np.float32)
        return torch.from_numpy(image.reshape(-1)), index % 10


class Clock:
    def __init__(self):
        self.last = clock()

    def lap(self, name):
        now = clock()
        spent[name] = spent.get(name, 0.0) + now - self.last
        self.last = now


@torch.no_grad()
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct


def train(model, loader, validation, optimizer, steps_to_log, state):
    lap = Clock()
    batches = 0
    while True:
        for x, y in loader:
            lap.lap("wait")
            loss = nn.functional.cross_entropy(model(x), y)
            lap.lap("forward")
            loss.backward()
            lap.lap("backward")
            optimizer.step()
            optimizer.zero_grad()
            lap.lap("optimizer")
            batches += 1
            if batches % 25 == 0:
                evaluate(model, validation)
                lap.lap("eval")
            if batches % 20 == 0:
                torch.save(model.state_dict(), state)
                lap.lap("save")
            if batches % 5 == 0:
                print(json.dumps([time.monotonic_ns(), batches, spent]), flush=True)
            lap.last = clock()
        lap.lap("wait")


def main():
    workers, state = int(sys.argv[1]), sys.argv[2]
    model = nn.Sequential(nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Images(4000, True), batch_size=4, num_workers=workers)
    validation = DataLoader(Images(640, False), batch_size=32)
    train(model, loader, validation, optimizer, 5, state)


main()
"""


def line_of(text: str, part: str) -> int:
    """The number of the first line with `part` in it."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


class Log:
    """What the script says of itself: (time, batches, seconds by phase). A full pipe would hold it: it never is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._records: list[tuple[int, int, dict[str, float]]] = []
        self._news = threading.Condition()
        self._over = False
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, until_ns: int = 0) -> tuple[int, int, dict[str, float]]:
        """The first record at or after a time."""
        with self._news:
            assert self._news.wait_for(
                lambda: self._over or (self._records and self._records[-1][0] >= until_ns), PATIENCE_SECONDS
            ), "the training says nothing"
            assert self._records and self._records[-1][0] >= until_ns, "the training ended"
            return self._records[bisect.bisect_left(self._records, until_ns, key=lambda record: record[0])]

    def batches_at(self, time_ns: int) -> tuple[int, int]:
        """The least and the most batches that were done at a time after the first record."""
        self.wait(time_ns)
        before = max(batches for stamp, batches, _ in self._records if stamp <= time_ns)
        return before, min(batches for stamp, batches, _ in self._records if stamp >= time_ns)

    def spent(self, spans: Iterable[tuple[int, int]]) -> dict[str, float]:
        """The seconds of each phase in these stretches, after the first record."""
        total: Counter[str] = Counter()
        for start_ns, end_ns in spans:
            total.update(self._spent_by(end_ns))
            total.subtract(self._spent_by(start_ns))
        return dict(total)

    def _spent_by(self, time_ns: int) -> dict[str, float]:
        """Between two records, as much of what was spent there as time had passed."""
        self.wait(time_ns)
        index = max(1, bisect.bisect_left(self._records, time_ns, key=lambda record: record[0]))
        (start_ns, _, before), (end_ns, _, after) = self._records[index - 1 : index + 1]
        part = (time_ns - start_ns) / (end_ns - start_ns)
        return {phase: before.get(phase, 0.0) + part * (after[phase] - before.get(phase, 0.0)) for phase in after}

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # it was closed, or killed within a line
            for line in self._process.stdout:
                with self._news:
                    self._records.append(tuple(json.loads(line)))
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


def undisturbed(tallies: Sequence[StackTally]) -> list[StackTally]:
    """Those with about as many looks as they usually have.

    A machine that stands still for half a second holds the training where it is, and the looks: nobody counts them
    twice afterwards, but the training's own clock counts the time.
    """
    rates = [tally.samples / (tally.end_ns - tally.start_ns) for tally in tallies]
    return [tally for tally, rate in zip(tallies, rates, strict=True) if rate >= 0.7 * median(rates)]


@contextmanager
def started(folder: Path, code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Runs a script by plain python until the test is done with it; its workers end with it."""
    script = folder / "train.py"
    script.write_text(code)
    past = time.time() - 60
    os.utime(script, (past, past))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = ForkedPython(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process, script
    finally:
        kill_group(process)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def watching(*targets: StackTarget) -> Iterator[StackSource]:
    """A source over the targets, closed in the end."""
    source = StackSource(lambda: targets)
    try:
        yield source
    finally:
        source.close()


def collect_until(source: StackSource, done: Callable[[list[Sample]], bool]) -> list[Sample]:
    """All samples until enough of them are there."""
    samples: list[Sample] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while not done(samples):
        assert time.monotonic() < until, f"not seen, but {Counter(type(s).__name__ for s in samples)}"
        samples.extend(source.collect(time.monotonic_ns()))
        time.sleep(0.02)
    return samples


def looks_of(samples: list[Sample]) -> int:
    """Usable looks at the training thread."""
    return sum(sample.samples for sample in samples if isinstance(sample, StackTally))


def looking() -> list[threading.Thread]:
    """The threads of sources here that look."""
    return [thread for thread in threading.enumerate() if thread.name == "gpuwatch-stacks"]


def lines_of(samples: list[Sample], phase: str, of_workers: bool = False) -> Counter[int]:
    """Samples of one phase by line."""
    lines: Counter[int] = Counter()
    for tally in samples:
        if isinstance(tally, StackTally):
            for line in tally.worker_lines if of_workers else tally.lines:
                if line.phase == phase:
                    lines[line.line] += line.samples
    return lines
