"""The monitor's loop around a hook link, waiting for what a test expects."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from gpuwatch.samples import Sample
from gpuwatch.sources.hook_link.source import HookLinkSource

T = TypeVar("T", bound=Sample)


class LinkMonitor:
    """Collects a source's samples as the monitor does: sleeping until input or its due time."""

    def __init__(self, source: HookLinkSource) -> None:
        self.source = source
        self.samples: list[Sample] = []

    def __enter__(self) -> LinkMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.source.close()

    def of(self, kind: type[T]) -> list[T]:
        return [sample for sample in self.samples if isinstance(sample, kind)]

    def collect(self, now_ns: int | None = None) -> None:
        self.samples += self.source.collect(time.monotonic_ns() if now_ns is None else now_ns)

    def until(self, reached: Callable[[], bool], seconds: float = 60) -> None:
        """Runs until the expectation holds; `seconds` only bounds a failing test."""
        deadline = time.monotonic_ns() + int(seconds * 1e9)
        self.collect()
        while not reached():
            now = time.monotonic_ns()
            assert now < deadline, f"not reached; the last samples: {self.samples[-5:]}"
            due = self.source.due_ns()
            assert due is not None
            descriptor = self.source.fileno()
            assert descriptor is not None
            select.select([descriptor], [], [], max(0, min(due, deadline) - now) / 1e9)
            self.collect()

    def settle(self) -> None:
        """Takes everything that was sent so far."""
        descriptor = self.source.fileno()
        assert descriptor is not None
        self.collect()
        while select.select([descriptor], [], [], 0)[0]:
            self.collect()
