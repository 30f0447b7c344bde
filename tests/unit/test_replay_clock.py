from __future__ import annotations

import threading

import pytest

from gpuwatch.monitor.clock import ReplayClock

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
    assert clock.is_held
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
