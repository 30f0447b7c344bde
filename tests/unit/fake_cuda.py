"""A torch.cuda for tests: a GPU whose clock is set by hand and that finishes what it is told to finish."""

from __future__ import annotations

from typing import Any


class FakeCuda:
    """What the hook asks of torch.cuda. Work is queued up to `queued_ms` and done up to `done_ms`."""

    def __init__(self) -> None:
        self.initialized = True
        self.capturing = False
        self.failing = False
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.calls: list[str] = []
        self.statistics: dict[str, int] = {}

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def memory_stats(self) -> dict[str, int]:
        self.calls.append("memory_stats")
        return self.statistics

    def Event(self, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        self.calls.append("Event")
        return FakeEvent(self)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the hook must not touch torch.cuda.{name}")


class FakeEvent:
    """An event of the fake: it happens when the GPU reaches the point in the queue at which it was recorded."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._at_ms: float | None = None

    def record(self) -> None:
        self._use("record")
        self._at_ms = self._cuda.queued_ms

    def query(self) -> bool:
        self._use("query")
        assert self._at_ms is not None
        return self._cuda.done_ms >= self._at_ms

    def elapsed_time(self, other: FakeEvent) -> float:
        self._use("elapsed_time")
        assert self.query(), "elapsed_time of an event that has not happened waits for it"
        assert other.query()
        assert self._at_ms is not None and other._at_ms is not None
        return other._at_ms - self._at_ms

    def synchronize(self) -> None:
        raise AssertionError("the hook never synchronises")

    def _use(self, name: str) -> None:
        assert not self._cuda.capturing, f"{name} during a capture breaks it"
        self._cuda.calls.append(name)
        if self._cuda.failing:
            raise RuntimeError("CUDA error: device-side assert triggered")
