from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from gpuwatch.monitor.clock import CatchUpClock, SystemClock, VirtualClock, Waker


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_system_clock_returns_the_files_that_have_input(pipe: tuple[int, int]) -> None:
    read, write = pipe
    other, other_write = os.pipe()
    os.write(write, b"x")
    assert SystemClock().wait((read, other), None) == {read}
    os.close(other)
    os.close(other_write)


def test_system_clock_does_not_wait_for_what_is_past(pipe: tuple[int, int]) -> None:
    clock = SystemClock()
    assert clock.wait((pipe[0],), clock.now_ns() - 1) == frozenset()


def test_system_clock_wakes_no_earlier_than_asked(pipe: tuple[int, int]) -> None:
    clock = SystemClock()
    until = clock.now_ns() + 3_500_000
    clock.wait((pipe[0],), until)
    assert clock.now_ns() >= until


def test_closed_file_ends_the_wait_instead_of_hiding(pipe: tuple[int, int]) -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    assert SystemClock().wait((read, pipe[0]), None) == {read}


def test_virtual_clock_jumps_and_never_goes_back() -> None:
    clock = VirtualClock(100, 50.0)
    assert clock.wait((), 1_000_000_100) == frozenset()
    assert (clock.now_ns(), clock.wall_time()) == (1_000_000_100, 51.0)
    clock.wait((), 5)
    assert clock.now_ns() == 1_000_000_100


def test_virtual_clock_refuses_to_wait_for_ever() -> None:
    with pytest.raises(RuntimeError, match="for ever"):
        VirtualClock().wait((), None)


def test_catching_up_jumps_through_the_past_and_then_sleeps(pipe: tuple[int, int]) -> None:
    before = time.time()
    clock = CatchUpClock(60_000_000_000)
    after = time.time()
    start = clock.now_ns()
    assert time.monotonic_ns() - start >= 60_000_000_000
    for second in range(1, 60):
        clock.wait((pipe[0],), start + second * 1_000_000_000)
        assert clock.now_ns() == start + second * 1_000_000_000
    assert before - 1.1 < clock.wall_time() < after - 0.9
    os.write(pipe[1], b"x")
    assert clock.wait((pipe[0],), time.monotonic_ns() + 60_000_000_000) == {pipe[0]}
    assert time.monotonic_ns() <= clock.now_ns(), "it is the machine's by now"


def test_waker_ends_a_wait_in_another_thread() -> None:
    waker = Waker()
    woken: list[frozenset[int]] = []
    thread = threading.Thread(target=lambda: woken.append(SystemClock().wait((waker.fileno(),), None)))
    thread.start()
    waker.wake()
    thread.join(10)
    assert woken == [{waker.fileno()}]
    waker.drain()
    assert SystemClock().wait((waker.fileno(),), 0) == frozenset()
    waker.close()


def test_waker_takes_any_number_of_wakes_and_outlives_its_close() -> None:
    waker = Waker()
    for _ in range(100_000):
        waker.wake()
    assert SystemClock().wait((waker.fileno(),), None) == {waker.fileno()}
    waker.close()
    read, write = os.pipe()  # has the numbers that the waker gave back
    waker.wake()
    waker.close()
    os.write(write, b"x")
    assert os.read(read, 10) == b"x"
    os.close(read)
    os.close(write)
