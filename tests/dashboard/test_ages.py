"""What is old says how old it is, wherever it stands."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.dashboard.history import Trace
from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.hardware import gpu_row, host_row
from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.screens.processes import process_page
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations
from tests.dashboard.fake_monitor import SECOND_NS

LOOK = look()


def host(snapshot: Snapshot) -> str:
    return "\n".join(plain(host_row(snapshot, 2, columns(120), LOOK, Trace(), Trace())))


def processes(snapshot: Snapshot) -> str:
    return "\n".join(plain(process_page(View(snapshot), 120, LOOK)))


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
    assert "GPU 0: its processes are those of 62 s ago." in processes(aged(62))
    assert "of 62 s ago:" in details(aged(62))
