"""Trainers on real sockets: they come, speak, lose records, come back, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from link_monitor import LinkMonitor
from link_peer import Peer, start_ticks, steps

from gpuwatch.monitor.monitor import Source
from gpuwatch.samples import LinkLoss, RunFacts, StepEnd, TrainerEnded, WorkerFetch
from gpuwatch.sources.hook_link.source import HookLinkSource

ME = f"{os.getpid()}.{start_ticks(os.getpid())}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gpuwatch"


@pytest.fixture
def monitor(folder: Path) -> Iterator[LinkMonitor]:
    with LinkMonitor(HookLinkSource(folder)) as running:
        yield running


@contextmanager
def trainer(folder: Path, ending: str) -> Iterator[subprocess.Popen[str]]:
    """A trainer process of its own that has sent all it will send."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("link_peer.py")), str(folder), ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_link_is_a_source(monitor: LinkMonitor) -> None:
    source: Source = monitor.source
    assert source.name == "hook"


def test_facts_and_steps_of_a_trainer_arrive(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello(device="cpu", loaders=[{"loader": 0, "file": "a.py", "line": 3}])
    peer.records(steps(6, time.monotonic_ns()))
    monitor.until(lambda: bool(monitor.of(StepEnd)))
    first = monitor.of(RunFacts)[0]
    assert (first.trainer, first.pid, first.command) == (ME, os.getpid(), ("python", "train.py"))
    assert {step.wait_seconds for step in monitor.of(StepEnd)} == {0.004}
    monitor.until(lambda: monitor.of(RunFacts)[-1].loaders != ())
    (loader,) = monitor.of(RunFacts)[-1].loaders
    assert (loader.file, loader.line, loader.role) == ("a.py", 3, "train")


def test_last_step_of_a_trainer_that_fell_silent_comes_without_further_input(
    folder: Path, monitor: LinkMonitor
) -> None:
    peer = Peer(folder)
    peer.hello()
    end_ns = time.monotonic_ns()
    peer.records(steps(4, end_ns))
    monitor.until(lambda: len(monitor.of(StepEnd)) == 3)
    assert monitor.of(StepEnd)[-1].end_ns == end_ns


def test_changed_facts_are_merged_over_the_first(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello(rank=2, device=None)
    peer.send(3, {"device": "cuda", "phases": ["data"]})
    monitor.until(lambda: len(monitor.of(RunFacts)) == 2)
    assert (monitor.of(RunFacts)[-1].rank, monitor.of(RunFacts)[-1].device) == (2, "cuda")


def test_lost_records_are_reported_and_no_step_spans_them(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    now = time.monotonic_ns()
    peer.records(steps(5, now - 500_000_000), dropped=40)
    peer.records(steps(5, now), dropped=47)
    peer.bye()
    monitor.until(lambda: bool(monitor.of(TrainerEnded)))
    assert [(loss.trainer, loss.dropped) for loss in monitor.of(LinkLoss)] == [(ME, 7)]
    periods = {step.end_ns - step.start_ns for step in monitor.of(StepEnd)}
    assert periods == {10_000_000}
    assert len(monitor.of(StepEnd)) == 3 + 4, "the first of a stretch has no beginning, the one at the loss no end"


def test_trainer_that_comes_back_is_not_counted_twice(folder: Path, monitor: LinkMonitor) -> None:
    sent = steps(10, time.monotonic_ns())
    first = Peer(folder)
    first.hello()
    first.records(sent[:18])
    first.close()
    monitor.until(lambda: bool(monitor.of(TrainerEnded)))
    assert monitor.of(TrainerEnded)[0].how == "lost"
    again = Peer(folder)
    again.hello()
    again.records(sent[6:])
    again.bye()
    monitor.until(lambda: len(monitor.of(TrainerEnded)) == 2)
    numbers = [step.number for step in monitor.of(StepEnd)]
    ends = [step.end_ns for step in monitor.of(StepEnd)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert ends == sorted(set(ends))
    assert ends[-1] == sent[-1][5]
    assert len(ends) >= 8


def test_two_monitors_see_the_same_trainer(folder: Path) -> None:
    sources = [HookLinkSource(folder)]
    (folder / next(folder.glob("monitor-*.sock")).name).rename(folder / "monitor-1.sock")
    sources.append(HookLinkSource(folder))
    with LinkMonitor(sources[0]) as one, LinkMonitor(sources[1]) as two:
        names = sorted(folder.glob("monitor-*.sock"))
        assert len(names) == 2
        for _ in names:
            peer = Peer(folder)
            peer.hello()
            peer.socket.detach()
            next(folder.glob("monitor-*.sock")).unlink()
        for monitor in (one, two):
            monitor.until(lambda monitor=monitor: bool(monitor.of(RunFacts)))  # type: ignore[misc]


def test_goodbye_means_exited(folder: Path, monitor: LinkMonitor) -> None:
    with trainer(folder, "bye") as process:
        monitor.until(lambda: bool(monitor.of(TrainerEnded)))
        (end,) = monitor.of(TrainerEnded)
        assert (end.trainer.split(".")[0], end.how) == (str(process.pid), "exited")
    assert len(monitor.of(StepEnd)) == 4, "the last step is given although no batch follows it"


def test_death_without_goodbye_means_killed(folder: Path, monitor: LinkMonitor) -> None:
    with trainer(folder, "hang") as process:
        monitor.until(lambda: bool(monitor.of(RunFacts)))
        process.send_signal(signal.SIGKILL)
        monitor.until(lambda: bool(monitor.of(TrainerEnded)))
    assert monitor.of(TrainerEnded)[0].how == "killed"
    assert len(monitor.of(StepEnd)) == 4


def test_death_is_seen_although_another_process_holds_the_socket(folder: Path, monitor: LinkMonitor) -> None:
    script = (
        "import os, sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from link_peer import *\n"
        "peer = Peer(Path(sys.argv[1])); peer.hello(); peer.records(steps(5, time.monotonic_ns()))\n"
        "if os.fork() == 0: sys.stdin.read(); os._exit(0)\n"
        "os._exit(4)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(Path(__file__).parent)], stdin=subprocess.PIPE
    ) as process:
        monitor.until(lambda: bool(monitor.of(TrainerEnded)))
        assert monitor.of(TrainerEnded)[0].how == "killed"
        assert len(monitor.of(StepEnd)) == 4
        assert process.stdin is not None
        process.stdin.close()


def test_broken_link_of_a_living_trainer_means_lost(folder: Path, monitor: LinkMonitor) -> None:
    with trainer(folder, "close"):
        monitor.until(lambda: bool(monitor.of(TrainerEnded)))
    assert monitor.of(TrainerEnded)[0].how == "lost"


def test_worker_of_a_trainer_reports_its_batches(folder: Path, monitor: LinkMonitor) -> None:
    with trainer(folder, "worker") as process:
        monitor.until(lambda: bool(monitor.of(WorkerFetch)))
        fetch = monitor.of(WorkerFetch)[0]
        assert (fetch.trainer, fetch.worker_pid, fetch.worker) == (ME, process.pid, 3)
        assert (fetch.end_ns - fetch.start_ns, fetch.cpu_seconds) == (20_000_000, 0.015)
    monitor.settle()
    assert monitor.of(TrainerEnded) == []


def test_worker_that_ended_before_it_was_read_is_no_fault_of_the_link(folder: Path, monitor: LinkMonitor) -> None:
    with trainer(folder, "worker"):
        pass
    monitor.settle()
    monitor.collect(time.monotonic_ns() + 2_000_000_000)  # refusals are told once a second
    assert monitor.samples == []


def test_closing_removes_the_socket_and_is_quiet_afterwards(folder: Path) -> None:
    source = HookLinkSource(folder)
    assert list(folder.glob("monitor-*.sock"))
    source.close()
    source.close()
    assert list(folder.iterdir()) == []
    assert source.fileno() is None
    assert source.collect(time.monotonic_ns()) == []
