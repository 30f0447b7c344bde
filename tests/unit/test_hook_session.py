"""What a session sends to a monitor that does not read, and how it goes on after a signal handler raised in it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpuwatch.hook import facts, pauses, ring, wire
from gpuwatch.hook.session import HISTORY, Link, Session

SECOND_NS = 1_000_000_000


class Monitor:
    """The other end of a session's only link; it reads when told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.facts: dict[str, Any] = {}
        self.records = self.dropped = 0

    def read(self) -> None:
        """Takes what the kernel holds."""
        while True:
            try:
                packet = self._connection.recv(wire.PACKET_LIMIT)
            except BlockingIOError:
                return
            _, _, kind, count, self.dropped = wire.HEADER.unpack_from(packet)
            if kind == wire.RECORDS:
                self.records += count
            else:
                self.facts.update(json.loads(packet[wire.HEADER.size :]))


class Run:
    """A session that flushes once a second, with a hundred records each time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._now_ns = 0
        self.recorded = 0

    def flush(self, times: int) -> None:
        """Records and flushes that often."""
        for _ in range(times):
            self._now_ns += SECOND_NS
            for _ in range(100):
                ring.emit((wire.USER_STEP, 0, 0, 0, self._now_ns, self._now_ns, 1, 0))
            self.recorded += 100
            self.session.flush(self._now_ns)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """An entry for each time that facts were collected, whether on the training thread; each time they are others."""
    times: list[bool] = []

    def collect(on_training_thread: bool) -> dict[str, Any]:
        times.append(on_training_thread)
        return {"pid": 7, "collected": len(times)}

    monkeypatch.setattr(facts, "collect", collect)
    ring.forget()
    yield times
    ring.forget()


@pytest.fixture
def linked() -> Iterator[tuple[Run, Monitor]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        session = Session()
        session._begun = True
        link = session._links["monitor-1.sock"] = Link(ours, 1, 0, 0)
        link.greet(wire.HELLO, {"pid": 7})
        yield Run(session), Monitor(theirs)


def test_no_facts_are_collected_for_a_monitor_that_does_not_read(
    linked: tuple[Run, Monitor], collected: list[bool]
) -> None:
    run, monitor = linked
    run.flush(1000)  # more than the kernel keeps
    before = len(collected)
    run.flush(1000)
    assert len(collected) == before
    monitor.read()
    run.flush(1)
    assert len(collected) == before + 1
    monitor.read()
    assert monitor.facts["collected"] == len(collected), "what changed meanwhile is told at once"


def test_what_a_monitor_that_did_not_read_has_lost_is_reported_when_it_reads(
    linked: tuple[Run, Monitor], collected: list[bool]
) -> None:
    run, monitor = linked
    run.flush(1000)
    monitor.read()
    kept = monitor.records
    run.flush(1)
    monitor.read()
    assert monitor.records == kept + HISTORY
    assert monitor.records + monitor.dropped == run.recorded


def test_a_flush_that_a_signal_handler_cut_off_as_it_began_is_the_last_one_cut_off(
    linked: tuple[Run, Monitor], collected: list[bool]
) -> None:
    run, monitor = linked
    run.session._lock.acquire()  # and then the handler raised
    run.flush(1)
    monitor.read()
    assert monitor.records == 100
    assert not run.session._lock._is_owned()


def test_whoever_comes_second_goes_on_at_once_and_gets_in_later() -> None:
    session, inside, leave = Session(), threading.Event(), threading.Event()
    done: list[str] = []

    def hold() -> None:
        inside.set()
        leave.wait()
        done.append("first")

    first = threading.Thread(target=session._alone, args=(hold,))
    first.start()
    inside.wait()
    session._alone(lambda: done.append("second"))
    assert done == []
    leave.set()
    first.join()
    session._alone(lambda: done.append("later"))
    assert done == ["first", "later"]


def test_a_lock_that_a_signal_handler_left_behind_keeps_no_other_thread_out() -> None:
    session, done = Session(), ["nothing"]
    session._lock.acquire()
    session._alone(lambda: done.append("here"))
    other = threading.Thread(target=session._alone, args=(lambda: done.append("there"),))
    other.start()
    other.join()
    assert done == ["nothing", "here", "there"]


def test_a_flush_within_a_flush_does_nothing(
    linked: tuple[Run, Monitor], collected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, monitor = linked
    inner: list[int] = []

    def interrupted() -> bool:
        run.session.flush(0)  # as a signal handler that saves a checkpoint does
        inner.append(len(ring.pending))
        return False

    monkeypatch.setattr(pauses, "drain_gc_pauses", interrupted)
    run.flush(1)
    monitor.read()
    assert inner == [100]
    assert monitor.records == 100


def test_a_flush_beside_that_of_another_thread_does_nothing(
    linked: tuple[Run, Monitor], collected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, monitor = linked
    entered, leave = threading.Event(), threading.Event()

    def slow() -> bool:
        entered.set()
        return not leave.wait(60)

    with monkeypatch.context() as patched:
        patched.setattr(pauses, "drain_gc_pauses", slow)
        thread = threading.Thread(target=run.session.flush, args=(0,))
        thread.start()
        assert entered.wait(60)
        run.flush(1)
        assert len(ring.pending) == 100
        leave.set()
        thread.join(60)
    monitor.read()
    assert monitor.records == 100
