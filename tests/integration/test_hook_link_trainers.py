"""Trainers on real sockets: they come, speak, lose records, come back, and end."""

from __future__ import annotations

import array
import gc
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from link_monitor import LinkMonitor
from link_peer import HELLO, MS, RECORDS, WORKER, Peer, packet, start_ticks, steps

from gpuwatch.monitor.monitor import Source
from gpuwatch.samples import LinkLoss, RunFacts, StepEnd, TrainerEnded, WorkerFetch
from gpuwatch.sources.hook_link.server import INTRODUCTION_NS, Limits
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


SECOND = 1_000_000_000


def open_files() -> int:
    """How many there are, without those that earlier tests left to the garbage collector."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def is_closed(peer: Peer) -> bool:
    """Whether the monitor has hung up; it never sends, so an answer can only be the end."""
    peer.socket.setblocking(False)
    try:
        return peer.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


PID = os.getpid()
NAME = {"pid": PID, "start_ticks": start_ticks(PID)}


def hello(**facts: object) -> bytes:
    return packet(HELLO, json.dumps({**NAME, **facts}).encode())


GARBAGE: dict[str, bytes] = {
    "noise": bytes(range(256)),
    "wrong magic": b"XX" + hello()[2:],
    "wrong version": b"GW\x09" + hello()[3:],
    "records before any introduction": packet(RECORDS, bytes(40), 1),
    "no json": packet(HELLO, b"\xff\x00"),
    "a list": packet(HELLO, b"[]"),
    "deep json": packet(HELLO, b"[" * 50_000),
    "huge number": packet(HELLO, b'{"pid":' + b"9" * 50_000 + b"}"),
    "longer than announced": packet(HELLO, b"{}", 1),
    "no pid": packet(HELLO, b"{}"),
    "pid of init": packet(HELLO, json.dumps({"pid": 1, "start_ticks": start_ticks(1)}).encode()),
    "own pid, earlier process": packet(HELLO, json.dumps({"pid": PID, "start_ticks": 1}).encode()),
    "worker of init": packet(WORKER, b'{"pid":1,"parent":1,"parent_start_ticks":1,"worker":0}'),
    "worker of itself": packet(WORKER, json.dumps({"parent": PID, "parent_start_ticks": NAME["start_ticks"]}).encode()),
    "worker of nobody": packet(WORKER, b'{"parent":null}'),
    "nothing": b"",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_peer_that_does_not_introduce_itself_properly_is_dropped(
    data: bytes, folder: Path, monitor: LinkMonitor
) -> None:
    before = open_files()
    peer = Peer(folder)
    peer.socket.send(data)
    monitor.until(lambda: is_closed(peer))
    peer.close()
    assert open_files() == before
    assert monitor.of(RunFacts) == []
    honest = Peer(folder)
    honest.hello()
    monitor.until(lambda: bool(monitor.of(RunFacts)))
    monitor.collect(time.monotonic_ns() + 2 * SECOND)
    assert sum(loss.malformed for loss in monitor.of(LinkLoss)) == (1 if data else 0)


def test_trainer_that_turns_to_nonsense_is_dropped_and_named(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    peer.socket.send(packet(RECORDS, bytes(40), 3))
    monitor.until(lambda: is_closed(peer))
    (loss,) = monitor.of(LinkLoss)
    assert (loss.trainer, loss.malformed) == (f"{PID}.{NAME['start_ticks']}", 1)
    assert "3 records announced" in loss.detail
    assert monitor.of(TrainerEnded)[0].how == "lost"


def test_packet_of_unknown_kind_is_counted_and_skipped(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    peer.socket.send(packet(77, b"?"))
    peer.records(steps(4, time.monotonic_ns()))
    monitor.until(lambda: bool(monitor.of(StepEnd)))
    assert "unknown kind 77" in monitor.of(LinkLoss)[0].detail


def test_packet_over_the_limit_ends_its_sender(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
    peer.socket.send(packet(RECORDS, bytes(100_000), 2500))
    monitor.until(lambda: bool(monitor.of(LinkLoss)))
    assert is_closed(peer)
    assert "a packet that no trainer sends" in monitor.of(LinkLoss)[0].detail
    assert [ended.how for ended in monitor.of(TrainerEnded)] == ["lost"]


def test_files_sent_along_are_not_kept(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    monitor.until(lambda: bool(monitor.of(RunFacts)))
    before = open_files()
    rights = array.array("i", [0] * 100)
    peer.socket.sendmsg([hello()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    monitor.until(lambda: is_closed(peer))
    assert open_files() <= before


def test_second_link_of_one_process_is_refused_and_the_first_goes_on(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    double = Peer(folder)
    double.hello()
    monitor.until(lambda: is_closed(double))
    peer.records(steps(4, time.monotonic_ns()))
    monitor.until(lambda: len(monitor.of(StepEnd)) == 3)
    assert not is_closed(peer)
    assert monitor.of(TrainerEnded) == []


def test_ten_thousand_connections_are_bounded_and_told_in_a_few_words(folder: Path, monitor: LinkMonitor) -> None:
    honest = Peer(folder)
    honest.hello()
    monitor.settle()
    before = open_files()
    address = str(next(folder.glob("monitor-*.sock")))
    flood = [
        "import socket, sys",
        "kept = []",
        "for number in range(10_000):",
        "    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "    peer.connect(sys.argv[1])",
        "    kept = kept[-200:] + [peer]",
    ]
    most = 0
    with subprocess.Popen([sys.executable, "-c", "\n".join(flood), address]) as process:

        def flooded() -> bool:
            nonlocal most
            most = max(most, sum(1 for _ in Path("/proc/self/fd").iterdir()))
            return process.poll() is not None

        monitor.until(flooded, seconds=120)
    honest.records(steps(4, time.monotonic_ns()))
    monitor.until(lambda: bool(monitor.of(StepEnd)))
    monitor.until(lambda: sum(loss.malformed for loss in monitor.of(LinkLoss)) > 9000)
    assert most - before <= Limits().connections_per_process + 4
    assert len(monitor.of(LinkLoss)) < 200
    assert "opened more than 4 connections" in monitor.of(LinkLoss)[-1].detail


def test_silent_connections_are_closed_in_time_and_the_oldest_first(folder: Path) -> None:
    limits = Limits(strangers=3, connections_per_process=10)
    with LinkMonitor(HookLinkSource(folder, limits=limits)) as monitor:
        peers = [Peer(folder) for _ in range(4)]
        monitor.settle()
        assert [is_closed(peer) for peer in peers] == [True, False, False, False]
        monitor.collect(time.monotonic_ns() + INTRODUCTION_NS + SECOND)
        assert all(is_closed(peer) for peer in peers)


def test_peer_that_floods_is_read_slowly_and_loses_only_its_own(folder: Path) -> None:
    """Its sends fail once its buffer is full: what it then drops, it counts itself."""
    limits = Limits(bytes_per_second=100_000, burst_bytes=100_000)
    with LinkMonitor(HookLinkSource(folder, limits=limits)) as monitor:
        peer = Peer(folder)
        peer.hello()
        peer.socket.setblocking(False)
        data = packet(99, bytes(60_000))
        now = time.monotonic_ns()
        refused = False
        for _ in range(100):
            try:
                peer.socket.send(data)
            except BlockingIOError:
                refused = True
            monitor.collect(now)
        assert refused
        taken = len(monitor.of(LinkLoss))
        assert taken <= 3
        due = monitor.source.due_ns()
        assert due is not None
        assert due > now
        monitor.collect(now + 10 * SECOND)
        assert len(monitor.of(LinkLoss)) > taken


FLOOD = """
import sys, time
from pathlib import Path
from link_peer import RECORD, RECORDS, Peer, packet, steps
peer = Peer(Path(sys.argv[1]))
peer.hello()
records = [RECORD.pack(*record) for record in steps(300, time.monotonic_ns() - 10**9)]
data = packet(RECORDS, b"".join(records), len(records))
for number in range(int(sys.argv[2])):
    peer.socket.send(data)
    if number == 0:
        print("floods", flush=True)
"""
"""Of more packets than a busy machine takes within the test, which kills it."""
CHURN = """
import sys
from pathlib import Path
from link_peer import Peer
for number in range(int(sys.argv[2])):
    peer = Peer(Path(sys.argv[1]))
    try:
        peer.hello(command=["python", f"{number}.py" * 50])
    except OSError:
        pass
    peer.close()
"""


def hostile(program: str, folder: Path, count: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(count)], env=environment, stdout=subprocess.PIPE
    )


def own_steps(monitor: LinkMonitor) -> list[StepEnd]:
    return [step for step in monitor.of(StepEnd) if step.trainer == f"{PID}.{NAME['start_ticks']}"]


def test_flooding_peer_leaves_the_others_their_turn(folder: Path, monitor: LinkMonitor) -> None:
    """Valid packets as fast as they are taken: the other's steps come in order, each within a few polls."""
    peer = Peer(folder)
    peer.hello()
    monitor.settle()
    flood = hostile(FLOOD, folder, 1_000_000)
    try:
        assert flood.stdout is not None and flood.stdout.readline() == b"floods\n"
        monitor.until(lambda: len(monitor.of(StepEnd)) > 100)
        began = time.monotonic_ns() - 5 * SECOND
        peer.records(steps(4, began))
        monitor.until(lambda: len(own_steps(monitor)) > 0)
        first, polls = len(own_steps(monitor)), []
        for count in range(1, 51):
            peer.records(steps(1, began + count * 10 * MS))
            waited = 0
            while len(own_steps(monitor)) < first + count and flood.poll() is None and waited < 100:
                monitor.collect()
                waited += 1
            polls.append(waited)
        assert flood.poll() is None, "the others were served after the flood, not beside it"
        assert max(polls) <= 3, "polls that a step waited for"
        numbers = [step.number for step in own_steps(monitor)]
        assert numbers == list(range(numbers[0], numbers[0] + first + 50))
        assert not is_closed(peer)
    finally:
        flood.kill()
        flood.communicate()


def test_two_thousand_introductions_and_goodbyes_leave_nothing_behind(folder: Path, monitor: LinkMonitor) -> None:
    peer = Peer(folder)
    peer.hello()
    monitor.settle()
    before = open_files()
    began = time.monotonic_ns() - 60 * SECOND
    peer.records(steps(4, began))
    monitor.until(lambda: len(own_steps(monitor)) > 0)
    first, sent, most = len(own_steps(monitor)), 0, 0
    tracemalloc.start()
    try:
        at_first = tracemalloc.get_traced_memory()[0]
        churn = hostile(CHURN, folder, 2000)
        while churn.poll() is None:
            if sent < len(own_steps(monitor)) - first + 1 and sent < 5000:
                sent += 1
                peer.records(steps(1, began + sent * 10 * MS))
            monitor.collect()
            most = max(most, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        churn.communicate()
        monitor.settle()
        monitor.collect(time.monotonic_ns() + 10 * SECOND)
        assert len(own_steps(monitor)) >= first + sent > first, "steps of the other"
        assert monitor.of(TrainerEnded), "the hostile one was introduced"
        monitor.samples.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - at_first
    finally:
        tracemalloc.stop()
    assert not is_closed(peer)
    assert most - before <= 2 * Limits().connections_per_process + 8, "descriptors while they came and went"
    assert open_files() <= before
    assert grown < 1 << 20, "bytes that 2,000 peers left behind"


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="acting as another user takes root and setpriv (util-linux)",
)


@needs_root
def test_process_of_another_user_is_refused(folder: Path, monitor: LinkMonitor) -> None:
    address = next(folder.glob("monitor-*.sock"))
    # The folder's mode keeps other users out already; the check behind it is what is tested.
    for path in (address, *folder.parents[:2], folder):
        path.chmod(0o777)
    script = (
        "import socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "peer.connect(sys.argv[1])\n"
        "print(peer.recv(1))\n"
    )
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", script]
    reached = Path("/proc/self/cwd") / address.name
    with subprocess.Popen([*command, str(reached)], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        monitor.until(lambda: process.poll() is not None)
        assert process.stdout is not None
        assert process.stdout.read() == "b''\n"
    monitor.until(lambda: bool(monitor.of(LinkLoss)))
    assert "user 65534" in monitor.of(LinkLoss)[0].detail


def test_worker_cannot_speak_for_a_trainer_that_is_not_above_it(folder: Path, monitor: LinkMonitor) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        peer = Peer(folder)
        peer.worker(stranger.pid)
        monitor.until(lambda: is_closed(peer))
        assert stranger.stdin is not None
        stranger.stdin.write(b"\n")
    assert monitor.of(WorkerFetch) == []


def test_listener_without_free_descriptors_recovers(folder: Path, monitor: LinkMonitor) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    peer = Peer(folder)
    peer.hello()
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 32, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        monitor.collect()
        assert monitor.of(RunFacts) == []
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    monitor.until(lambda: bool(monitor.of(RunFacts)))
    assert any("no room" in loss.detail for loss in monitor.of(LinkLoss))
