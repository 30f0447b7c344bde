from __future__ import annotations

import time

import pytest

from gpuwatch.sources.stacks import StackSource, StackTarget
from gpuwatch.sources.stacks.sampler import Sampler

PATIENCE_SECONDS = 60


def test_a_fault_of_the_thread_that_looks_is_raised_where_its_samples_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Sampler, now_ns: int) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Sampler, "_supervise", broken)
    source = StackSource(lambda: [StackTarget(2**22 + 1, hooked=False)])
    until = time.monotonic() + PATIENCE_SECONDS
    with pytest.raises(RuntimeError, match="sampling stacks has ended: ZeroDivisionError"):
        while time.monotonic() < until:
            source.collect(time.monotonic_ns())
    source.close()
