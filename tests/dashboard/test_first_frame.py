from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence

import psutil
import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.dashboard import first_numbers, terminal
from gpuwatch.dashboard.first_numbers import FirstNumbers, gpu_line, show_gpus
from gpuwatch.samples import GpuFacts, GpuSample
from tests.dashboard.piloting import driven


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(terminal, "_splash_shown", False)
    monkeypatch.setenv("COLUMNS", "120")
    return []


def rows(data: bytes) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode()).split("\r\n")


@pytest.mark.parametrize("label", ["LIVE", "SIMULATED starved"])
async def test_it_says_what_the_first_real_frame_says_at_the_same_places(written: list[bytes], label: str) -> None:
    terminal.show_splash(label, {"COLORTERM": "truecolor"}, written.append)
    painted = rows(written[0])
    async with driven(origin_label=label) as driver:
        assert driver.rows[0] == painted[0].rstrip()
        assert driver.rows[2].index(terminal.STARTING) == painted[2].index(terminal.STARTING)
        assert driver.rows[2].index("STARTING") == painted[2].index("STARTING")


def test_it_is_painted_once_and_the_screen_is_given_back(written: list[bytes]) -> None:
    terminal.show_splash("LIVE", {}, written.append)
    terminal.show_splash("LIVE", {}, written.append)
    assert len(written) == 1
    terminal.hide_splash(written.append)
    terminal.hide_splash(written.append)
    assert len(written) == 2
    assert written[1].endswith(b"\x1b[?1049l\x1b[?25h")


def test_once_textual_has_taken_over_it_leaves_the_screen_to_it(written: list[bytes]) -> None:
    terminal.show_splash("LIVE", {}, written.append)
    terminal.splash_taken_over()
    terminal.hide_splash(written.append)
    assert len(written) == 1


@pytest.mark.parametrize("environ", [{"COLORTERM": "truecolor", "NO_COLOR": "1"}, {"TERM": "linux"}, {}])
def test_it_has_no_colours_where_none_are_wanted_or_known(written: list[bytes], environ: dict[str, str]) -> None:
    terminal.show_splash("LIVE", environ, written.append)
    assert b"38;2;" not in written[0]


def test_lines_are_painted_on_it_as_far_as_the_terminal_has_room(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "6")
    terminal.show_splash("LIVE", {}, written.append)
    terminal.show_on_splash(4, ["first line that is long", "second", "third"], written.append)
    assert written[1] == b"\x1b[5;1Hfirst line\x1b[K\x1b[6;1Hsecond\x1b[K"


@pytest.mark.parametrize("end", [terminal.splash_taken_over, lambda: terminal.hide_splash(lambda data: None)])
def test_nothing_is_painted_where_it_is_not_on_the_screen(written: list[bytes], end: Callable[[], None]) -> None:
    terminal.show_on_splash(4, ["early"], written.append)
    terminal.show_splash("LIVE", {}, lambda data: None)
    end()
    terminal.show_on_splash(4, ["late"], written.append)
    assert written == []


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
    assert gpu_line(FACTS, SAMPLE).split() == ["1", "H100", "80GB", "HBM3", "57%", "619/700", "W", "65/80", "GiB"]
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
