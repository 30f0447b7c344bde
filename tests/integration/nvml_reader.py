"""Reads an NvmlSource as the monitor does: asleep in select until it has something to say."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import nvml_sim

from gpuwatch.samples import GpuSample, Sample
from gpuwatch.sources.nvml.source import Activity, Message, NvmlSource, PollPlan

BRISK = PollPlan(
    slow_seconds=0.4,
    rare_seconds=0.8,
    retry_seconds=0.3,
    init_seconds=60.0,
    silence_seconds=30.0,
    starting_seconds=60.0,
)
"""Short lanes, and long patience: a child that a busy machine holds for seconds is not silent yet."""
HASTY = replace(BRISK, silence_seconds=3.0)
"""For drivers that do hang: so long each hang takes here."""
DEADLINE_SECONDS = 120.0

Kind = TypeVar("Kind")


class Reader:
    """All samples of a source so far, and waiting for the next one of a kind."""

    def __init__(self, source: NvmlSource) -> None:
        self.source = source
        self.seen: list[Sample] = []
        self._next = 0

    def until(self, kind: type[Kind], fits: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """The first sample of this kind that fits and was not looked at before."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            while self._next < len(self.seen):
                sample = self.seen[self._next]
                self._next += 1
                if isinstance(sample, kind) and fits(sample):
                    return sample
            left = deadline - time.monotonic()
            assert left > 0, f"no such {kind.__name__}; the last samples were {self.seen[-5:]}"
            due = self.source.due_ns()
            pause = left if due is None else max(0.0, min(left, due / 1e9 - time.monotonic()))
            select.select([self.source.fileno()], [], [], pause)
            self.seen += self.source.collect(time.monotonic_ns())

    def sample(self, uuid: str, **values: object) -> GpuSample:
        """The next GpuSample of a GPU in which these fields have these values."""
        return self.until(
            GpuSample,
            lambda sample: (
                sample.uuid == uuid and all(getattr(sample, name) == value for name, value in values.items())
            ),
        )

    def each(self, kind: type[Kind]) -> list[Kind]:
        """All samples of a kind so far."""
        return [sample for sample in self.seen if isinstance(sample, kind)]


@contextmanager
def reading(driver: nvml_sim.SimulatedDriver, env: Mapping[str, str] | None = None, **options: Any) -> Iterator[Reader]:
    """A source over a simulated driver, with short lanes; closed at the end."""
    options.setdefault("plan", BRISK)
    options.setdefault("kernel_log", None)
    source = NvmlSource(
        options.pop("interval_seconds", 0.1), env={**os.environ, **driver.env, **(env or {})}, **options
    )
    try:
        yield Reader(source)
    finally:
        source.close()


class SilentChild:
    """Stands in for a child process that says nothing, and lives on whatever is sent to it.

    Its activities are given one after the other, the last for ever.
    """

    pid = 4711

    def __init__(self, options: Mapping[str, Any], *activities: Activity) -> None:
        self.options = options
        self.killed = False
        self._activities = list(activities)

    def filenos(self) -> Sequence[int]:
        return []

    def messages(self) -> list[Message]:
        return []

    def exit_code(self) -> int | None:
        return None

    def last_call(self) -> tuple[str, str] | None:
        return ("GPU-a", "nvmlDeviceGetFanSpeed")

    def call_began(self) -> float:
        return 0.0

    def activity(self) -> Activity:
        return self._activities.pop(0) if len(self._activities) > 1 else self._activities[0]

    def error(self) -> str:
        return ""

    def kill(self) -> None:
        self.killed = True

    def release(self, timeout_seconds: float) -> None:
        pass


def launching(started: list[SilentChild], *activities: Activity) -> Callable[[Mapping[str, Any]], SilentChild]:
    """A `launch` for NvmlSource, which notes the children that it starts."""

    def launch(options: Mapping[str, Any]) -> SilentChild:
        started.append(SilentChild(options, *activities))
        return started[-1]

    return launch


def child_pids(of: int) -> set[int]:
    """The running children of a process."""
    text = Path(f"/proc/{of}/task/{of}/children").read_text(encoding="ascii")
    return {int(word) for word in text.split()}


def wait_until(fits: Callable[[], bool]) -> None:
    """Looks every 20 ms: for what happens in another process and wakes nobody here."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not fits():
        assert time.monotonic() < deadline
        time.sleep(0.02)
