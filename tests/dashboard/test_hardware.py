from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.charts import Trace
from gpuwatch.dashboard.panels.hardware import gpu_header, gpu_row, host_row
from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.screens.processes import process_reasons
from gpuwatch.dashboard.themes import ASCII, look
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations
from tests.dashboard.fake_monitor import SECOND_NS, later

LOOK = look()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def trace(*values: float | None) -> Trace:
    return Trace(values, values, values)


def rows(snapshot: Snapshot, width: int = 120, height: int = 1, index: int = 0) -> list[str]:
    cells = columns(width)
    buckets = cells.chart_width * 2
    util = trace(*[96.0 if bucket % 8 < 4 else 3.0 for bucket in range(buckets)])
    power = trace(*[600.0 if bucket % 8 < 4 else 120.0 for bucket in range(buckets)])
    view = View(snapshot)
    lines = gpu_row(snapshot.gpus[index], view, height, cells, LOOK, util, power)
    assert all(sum(segment.cell_length for segment in line) == width for line in lines)
    return plain([gpu_header(view, cells, LOOK), *lines])


def test_a_gpu_in_one_line_at_120_columns() -> None:
    assert rows(situations.starved()) == [
        " GPU             util 60 s power 60s      memory   temp SM clock throttle "
        "  util 0-100%, 2 min    power 0-700 W",
        " 0 H100 80GB       58% ±31 402/700 W 61.2/80 GiB  61 °C 1755 MHz none"
        "       ⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶ ⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶",
    ]


def test_a_gpu_at_80_columns_has_one_chart_with_power_below_utilization() -> None:
    assert rows(situations.starved(), 80, 2) == [
        " GPU     util 60 s power 60s    memory  temp SM clock throt. util,power 2 min",
        " 0 H100    58% ±31 402/700 W 61/80 GiB 61 °C 1755 MHz none   ⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶",
        "         4711 ana 60.8 GiB 17 h train.py                     ⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶⣀⣀⣶⣶",
    ]


def test_higher_rows_have_details_and_higher_charts() -> None:
    lines = rows(situations.starved(), 120, 4)[1:]
    assert [line[17:76].rstrip() for line in lines[1:]] == [
        "4711 ana 60.8 GiB 17 h train.py",
        "SM active 44% · tensor 21% · memory busy 31%",
        "memory clock 2619 MHz · PCIe 5 x16 · power: instant",
    ]
    assert [line[76:78] for line in lines] == ["⣤⣤", "⣿⣿", "⣿⣿", "⣿⣿"]


def test_a_wide_terminal_shows_a_meter() -> None:
    assert rows(situations.starved(), 200)[1][:75] == (
        " 0 H100 80GB HBM3        █████▊────    58% ±31    402/700 W    61.2/80 GiB "
    )


def test_a_lost_gpu_is_said_in_words_with_its_time_and_no_numbers() -> None:
    line = rows(situations.lost(), index=1)[1]
    assert line[:76].rstrip() == " 1 H100 80GB     LOST since 13:58: XID 79, fallen off the bus; restart the"
    wrapped = rows(situations.lost(), height=2, index=1)
    assert "machine" in wrapped[2]
    assert " W" not in line[:76]


def test_a_stale_gpu_repeats_no_old_number() -> None:
    line = rows(later(situations.stale(), 12), height=2)[1]
    assert "STALE since 14:03, last reading 12 s ago: the driver has" in line
    assert "402" not in line


def test_a_reading_older_than_two_polls_says_its_age() -> None:
    assert "old" not in rows(later(situations.starved(), 1.0))[1]
    assert "4 s old" in rows(later(situations.starved(), 3.0))[1]


def test_unknown_is_a_dash_and_a_known_nothing_is_not() -> None:
    gpu = situations.gpu()
    assert gpu.latest is not None
    nothing = replace(
        gpu.latest, power_watts=None, memory_used_bytes=None, temperature_celsius=None, event_reasons=None
    )
    unknown = replace(gpu, latest=nothing, utilization_mean_percent=None, utilization_sigma_percent=None)
    unknown = replace(unknown, latest=replace(nothing, utilization_percent=None))
    assert rows(situations.snapshot(gpus=(unknown,)))[1][:72].split() == [
        *("0", "H100", "80GB", "-", "-", "-/80", "GiB", "-", "1755", "MHz", "-"),
    ]


def test_what_slows_a_gpu_down_is_said_in_words() -> None:
    hot = situations.gpu(throttled_by=("power", "thermal"))
    assert "power, t…" in rows(situations.snapshot(gpus=(hot,)))[1]
    assert "power, thermal" in rows(situations.snapshot(gpus=(hot,)), 200)[1]


def test_nothing_but_ascii_without_unicode() -> None:
    plain_look = look(glyphs=ASCII)
    snapshot = situations.starved()
    lines = gpu_row(snapshot.gpus[0], View(snapshot), 3, columns(120), plain_look, trace(1.0, 99.0), trace(5.0))
    assert all(line.isascii() for line in plain(lines))
    assert "58% +-31" in plain(lines)[0]


def test_without_a_gpu_the_header_says_why() -> None:
    snapshot = situations.cpu_run()
    said = plain([gpu_header(View(snapshot), columns(80), LOOK)])
    assert said == [" no GPU: no NVIDIA driver is loaded (libnvidia-ml.so.1 not found)"]


def host(snapshot: Snapshot) -> str:
    return "\n".join(plain(host_row(snapshot, 2, columns(120), LOOK, Trace(), Trace())))


def processes(snapshot: Snapshot) -> str:
    return "\n".join(plain(process_reasons(snapshot, View(snapshot), 1, 120, LOOK)))


def details(snapshot: Snapshot) -> str:
    return "\n".join(plain(gpu_row(snapshot.gpus[0], View(snapshot), 5, columns(150), LOOK, Trace(), Trace())))


def aged(seconds: float) -> Snapshot:
    """A machine whose host and whose GPU's status were read so long ago, though its GPU is polled."""
    now = situations.snapshot()
    assert now.host is not None and now.gpus[0].latest_status is not None and now.gpus[0].latest is not None
    old_ns = now.time_ns - round(seconds * SECOND_NS)
    gpu = replace(now.gpus[0], latest_status=replace(now.gpus[0].latest_status, time_ns=old_ns))
    return replace(now, host=replace(now.host, time_ns=old_ns), gpus=(gpu,))


def test_what_was_read_just_now_says_no_age() -> None:
    fresh = aged(1)
    assert " old" not in host(fresh) and " ago" not in processes(fresh) + details(fresh)


def test_the_host_of_a_minute_ago_is_not_shown_as_that_of_now() -> None:
    assert "62 s old" in host(aged(62))


def test_processes_and_status_of_a_minute_ago_are_not_shown_as_those_of_now() -> None:
    assert "GPU 0: its processes were read 62 s ago." in processes(aged(62))
    assert "of 62 s ago:" in details(aged(62))
