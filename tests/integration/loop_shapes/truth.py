"""What a training script itself knows of its time: the ground truth the derivation is compared with.

Every script of this folder is a loop as people write it, and tells this module when it waits for a batch, when a
step is done, and when it evaluates or saves. At exit the truth goes to the file that LOOP_TRUTH names.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils.data import Dataset

T = TypeVar("T")

LOAD_SECONDS = 0.008
COMPUTE_SECONDS = 0.020

_waits: list[tuple[int, int]] = []
_phases: list[tuple[str, int, int]] = []
_steps: list[int] = []


class SlowData(Dataset[torch.Tensor]):
    """Samples that take two milliseconds each to load."""

    def __init__(self, length: int = 64) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(LOAD_SECONDS / 4)
        return torch.full((8,), index / self._length)


class SlowNet(torch.nn.Module):
    """A model whose forward takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(COMPUTE_SECONDS)
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


def waits(batches: Iterable[T]) -> Iterator[T]:
    """The batches; the time to get each of them is a wait."""
    begun = time.monotonic_ns()
    iterator = iter(batches)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            _waits.append((begun, time.monotonic_ns()))
        yield batch
        begun = time.monotonic_ns()


@contextmanager
def wait() -> Iterator[None]:
    """One wait that is no `next`."""
    begun = time.monotonic_ns()
    yield
    _waits.append((begun, time.monotonic_ns()))


@contextmanager
def phase(kind: str) -> Iterator[None]:
    """An evaluation or a checkpoint."""
    begun = time.monotonic_ns()
    yield
    _phases.append((kind, begun, time.monotonic_ns()))


def step() -> None:
    """The step is done."""
    _steps.append(time.monotonic_ns())


def until_heard(workers: int) -> None:
    """Waits until the monitor has heard of this many worker processes: whose one ended unheard, nobody knows."""
    heard = Path(os.environ["LOOP_HEARD"])
    while int(heard.read_text()) < workers:
        time.sleep(0.005)


def _write() -> None:
    begun = _waits[0][0]
    steps = []
    for end in _steps:
        waited = sum(stop - start for start, stop in _waits if begun <= start and stop <= end)
        outside = sum(stop - start for _, start, stop in _phases if begun <= start and stop <= end)
        steps.append({"wait_seconds": waited / 1e9, "train_seconds": (end - begun - outside) / 1e9})
        begun = end
    content = {"steps": steps, "phases": [[kind, (stop - start) / 1e9] for kind, start, stop in _phases]}
    Path(os.environ["LOOP_TRUTH"]).write_text(json.dumps(content))


atexit.register(_write)
torch.manual_seed(0)
