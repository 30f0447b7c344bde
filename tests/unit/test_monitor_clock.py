"""The clocks of a monitor: the machine's, a virtual one, one that catches up, a replay's; and waking a wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from gpuwatch.monitor.clock import CatchUpClock, ReplayClock, SystemClock, VirtualClock, Waker


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
    with pytest.raises(RuntimeError, match="forever"):
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


SECOND_NS = 1_000_000_000
PATIENCE_SECONDS = 30.0


class HandClock:
    """This machine's seconds, moved by tests."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wall(time_ns: int) -> float:
    return 1_700_000_000.0 + time_ns / 1e9


def test_it_jumps_up_to_the_moment_that_was_asked_for_and_shows_the_recorded_wall_time() -> None:
    clock = ReplayClock(0, 150 * SECOND_NS, wall, monotonic=HandClock())
    for second in (5, 100, 150):
        clock.wait((), second * SECOND_NS)
        assert clock.now_ns() == second * SECOND_NS
    assert clock.wall_time() == 1_700_000_150.0
    clock.close()


@pytest.mark.parametrize("speed", [0.25, 1.0, 60.0])
def test_then_time_passes_at_its_speed(speed: float) -> None:
    machine = HandClock()
    clock = ReplayClock(0, 150 * SECOND_NS, wall, speed, machine)
    clock.wait((), 150 * SECOND_NS)
    machine.now += 10 / speed
    clock.wait((), 160 * SECOND_NS)
    assert clock.now_ns() == 160 * SECOND_NS
    clock.close()


def test_a_change_of_speed_during_the_lead_counts_from_its_end() -> None:
    machine = HandClock()
    clock = ReplayClock(0, 150 * SECOND_NS, wall, 1.0, machine)
    clock.run(2.0)
    clock.wait((), 150 * SECOND_NS)
    machine.now += 1
    clock.wait((), 152 * SECOND_NS)
    assert clock.now_ns() == 152 * SECOND_NS
    clock.close()


def test_held_it_stands_until_it_is_let_go() -> None:
    machine = HandClock()
    clock = ReplayClock(0, 0, wall, 1.0, machine)
    clock.hold(True)
    clock.wait((), SECOND_NS)  # the wish itself ends a wait
    held = threading.Thread(target=clock.wait, args=((), SECOND_NS))
    held.start()
    machine.now += 1000
    clock.interrupt()
    held.join(PATIENCE_SECONDS)
    assert not held.is_alive()
    assert clock.now_ns() == 0
    clock.hold(False)
    machine.now += 1
    clock.wait((), SECOND_NS)
    assert clock.now_ns() == SECOND_NS
    clock.close()


def test_a_machine_that_cannot_follow_plays_slower_instead_of_in_bursts() -> None:
    machine = HandClock()
    clock = ReplayClock(0, 0, wall, 1.0, machine)
    machine.now += 60
    clock.wait((), SECOND_NS)
    assert clock.now_ns() == SECOND_NS
    woken = threading.Thread(target=clock.wait, args=((), 30 * SECOND_NS))
    woken.start()
    clock.interrupt()
    woken.join(PATIENCE_SECONDS)
    assert clock.now_ns() == SECOND_NS  # the debt of a minute is let off
    clock.close()
