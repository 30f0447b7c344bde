"""The GPUs' numbers on the splash: right, printable, from the source that the monitor then goes on with."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import psutil
import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.dashboard import first_numbers
from gpuwatch.dashboard.first_numbers import FirstNumbers, gpu_line, show_gpus
from gpuwatch.samples import GpuFacts, GpuSample

GIB = 1024**3
FACTS = GpuFacts(0, "GPU-b", 1, "NVIDIA H100 80GB HBM3", memory_total_bytes=80 * GIB, power_limit_watts=700.0)
SAMPLE = GpuSample(1, "GPU-b", utilization_percent=57.4, power_watts=619.2, memory_used_bytes=65 * GIB)
PATIENCE_SECONDS = 120.0


class Painted:
    """What would have been painted, and waiting for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, first_line: int, lines: Sequence[str]) -> None:
        with self._changed:
            self.lines = list(lines)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, PATIENCE_SECONDS), self.lines
            return self.lines


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Painted:
    painted = Painted()
    monkeypatch.setattr(first_numbers, "show_on_splash", painted)
    return painted


def test_a_line_gives_each_number_with_its_limit_and_a_dash_for_what_is_not_known() -> None:
    assert gpu_line(FACTS, SAMPLE).split() == ["1", "H100", "80GB", "HBM3", "57", "%", "619/700", "W", "65/80", "GiB"]
    assert gpu_line(FACTS, GpuSample(1, "GPU-b", power_watts=0.0)).split()[4:] == ["-", "0/700", "W", "-"]


def test_a_hostile_name_cannot_reach_the_terminal() -> None:
    line = gpu_line(GpuFacts(0, "GPU-a", 0, "\x1b]0;x\x07\r\u202e"), SAMPLE)
    assert line.isprintable() and "\\x1b]0;x" in line


def test_gpus_stand_in_the_order_of_their_indices_with_their_newest_sample(painted: Painted) -> None:
    first = GpuFacts(0, "GPU-a", 0, "A")
    older, newer = GpuSample(1, "GPU-a", power_watts=1.0), GpuSample(2, "GPU-a", power_watts=2.0)
    show_gpus([FACTS, SAMPLE, GpuSample(1, "GPU-unknown"), older, first, newer])
    assert [line.split()[0] for line in painted.lines] == ["0", "1"]
    assert "2 W" in painted.lines[0] and "1 W" not in painted.lines[0]


def test_the_monitor_goes_on_with_the_source_whose_first_samples_were_shown(
    simulated_driver: SimulatedDriver, painted: Painted
) -> None:
    simulated_driver.write("wave * power constant 310", gpus=2)
    with FirstNumbers(0.1, {**os.environ, **simulated_driver.env}) as numbers:
        lines = painted.wait_for(2)
        assert all("310/700 W" in line for line in lines)
        source, said = numbers.take()
    try:
        assert {sample.index for sample in said if isinstance(sample, GpuFacts)} == {0, 1}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(isinstance(sample, GpuSample) for sample in source.collect(time.monotonic_ns())):
            assert time.monotonic() < deadline, "the source says nothing any more"
            time.sleep(0.01)
    finally:
        source.close()


def test_a_source_that_nothing_took_ends(simulated_driver: SimulatedDriver, painted: Painted) -> None:
    before = set(psutil.Process().children())
    with FirstNumbers(0.1, {**os.environ, **simulated_driver.env}):
        painted.wait_for(1)
        assert len(set(psutil.Process().children()) - before) == 1
    assert set(psutil.Process().children()) <= before
