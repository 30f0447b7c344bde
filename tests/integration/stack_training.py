"""A training script as users write them, that also logs where its time went; and a source that looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwatch.samples import Sample, StackTally
from gpuwatch.sources.stacks import StackSource, StackTarget
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
    """What the script said of itself: (time, batches, seconds by phase)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._batches: list[tuple[int, int]] = []

    def wait(self, until_ns: int = 0) -> tuple[int, int, dict[str, float]]:
        """The first record after a time."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            stamp, batches, spent = json.loads(line)
            self._batches.append((stamp, batches))
            if stamp >= until_ns:
                return stamp, batches, spent
        raise AssertionError("the training ended")

    def batches_at(self, time_ns: int) -> tuple[int, int]:
        """The least and the most batches that were done at a time after the first record."""
        if not self._batches or self._batches[-1][0] < time_ns:
            self.wait(time_ns)
        before = max(batches for stamp, batches in self._batches if stamp <= time_ns)
        return before, min(batches for stamp, batches in self._batches if stamp >= time_ns)


@contextmanager
def started(folder: Path, code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Runs a script by plain python until the test is done with it; its workers end with it."""
    script = folder / "train.py"
    script.write_text(code)
    past = time.time() - 60
    os.utime(script, (past, past))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
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
def watching(*targets: StackTarget, **options: object) -> Iterator[StackSource]:
    """A source over the targets, closed in the end."""
    source = StackSource(lambda: targets, **options)  # type: ignore[arg-type]
    try:
        yield source
    finally:
        source.close()


def collect_until(source: StackSource, done: Callable[[list[Sample]], bool], seconds: float = 60.0) -> list[Sample]:
    """All samples until enough of them are there."""
    samples: list[Sample] = []
    until = time.monotonic() + seconds
    while not done(samples):
        assert time.monotonic() < until, (
            f"not seen within {seconds} s, but {Counter(type(s).__name__ for s in samples)}"
        )
        samples.extend(source.collect(time.monotonic_ns()))
        time.sleep(0.02)
    return samples


def looks_of(samples: list[Sample]) -> int:
    """Usable looks at the training thread."""
    return sum(sample.samples for sample in samples if isinstance(sample, StackTally))


def lines_of(samples: list[Sample], phase: str, of_workers: bool = False) -> Counter[int]:
    """Samples of one phase by line."""
    lines: Counter[int] = Counter()
    for tally in samples:
        if isinstance(tally, StackTally):
            for line in tally.worker_lines if of_workers else tally.lines:
                if line.phase == phase:
                    lines[line.line] += line.samples
    return lines
