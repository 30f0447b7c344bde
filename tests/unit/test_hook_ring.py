"""The records of the hot path: whose they are, and in which order they are taken."""

from __future__ import annotations

import threading
from _thread import get_ident, get_native_id
from collections.abc import Callable, Iterator

import pytest

from gpuwatch.hook import ring, wire

NEVER_NS = 1 << 62


@pytest.fixture(autouse=True)
def awake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ring.forget()
    ring.trained.clear()
    monkeypatch.setattr(ring.pulse, "awake", True)
    monkeypatch.setattr(ring.pulse, "due_ns", NEVER_NS)
    yield
    ring.forget()
    ring.trained.clear()


def taken() -> list[wire.Record]:
    return [wire.RECORD.unpack(record) for record in ring.take(in_order=True)]  # type: ignore[misc]


def elsewhere(action: Callable[[], object]) -> int:
    """Runs it on a thread of its own; that thread's native id."""
    ids: list[int] = []

    def run() -> None:
        ids.append(get_native_id())
        action()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ids[0]


def test_each_record_has_its_own_thread_whoever_flushes() -> None:
    def both() -> tuple[int, list[int]]:
        ring.record(wire.SAVE, 1)
        other = elsewhere(lambda: ring.record(wire.SAVE, 2))
        return other, [record[3] for record in taken()]

    for _ in range(2):  # the second time it is known who flushes
        other, threads = both()
        assert threads == [get_native_id(), other]
    elsewhere(lambda: ring.take(in_order=True))
    ring.record(wire.SAVE, 1)
    assert [record[3] for record in taken()] == [get_native_id()]


def test_a_thread_that_got_the_identity_of_one_that_ended_is_not_taken_for_it_after_a_flush() -> None:
    ring.natives[get_ident()] = 1
    ring.record(wire.SAVE, 1)
    assert [record[3] for record in taken()] == [1]
    ring.record(wire.SAVE, 1)
    assert [record[3] for record in taken()] == [get_native_id()]


def test_records_of_several_threads_are_taken_in_the_order_of_their_ends() -> None:
    taken()
    elsewhere(lambda: ring.record(wire.SAVE, 1))
    ring.append((wire.NEXT, 0, 1, 7, 0, 5, 1, 8))
    assert [record[0] for record in taken()] == [wire.NEXT, wire.SAVE]


def test_a_thread_trains_once_it_has_run_a_backward_or_a_step() -> None:
    for kind in (wire.NEXT, wire.SAVE):
        ring.record(kind, 1)
        taken()
        assert not ring.trains()
    elsewhere(lambda: ring.record(wire.BACKWARD, 1))
    taken()
    assert not ring.trains()
    ring.record(wire.USER_STEP, 1)
    taken()
    assert ring.trains()
