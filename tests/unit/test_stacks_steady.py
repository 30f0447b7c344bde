"""How often the reader is asked about loops, and that a change of loop is told at once."""

from __future__ import annotations

from dataclasses import replace

from stack_looks import loader_state, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Stack
from gpuwatch.sources.stacks.classify import Reading
from gpuwatch.sources.stacks.counts import CONFIRM_NS, SteadyCounters

TRAIN, EVALUATE = Reading("forward", None, around=1), Reading("forward", None, around=2)
LOOK_NS = 10_000_000
STACK = stack(("/app/train.py", "train", 4), ("/app/train.py", "<module>", 9))


class FakeCounters:
    """A reader whose answer is set by hand."""

    def __init__(self) -> None:
        self.now: LoaderState | None = loader_state(0, 0)
        self.asked = self.counted = 0

    def state(self, stack: Stack) -> LoaderState | None:
        self.asked += 1
        return self.now

    def recheck(self, state: LoaderState) -> int | None:
        self.counted += 1
        return self.now.batches_yielded if self.now is not None and self.now.iterator == state.iterator else None


def test_a_loop_is_asked_for_ten_times_a_second_and_its_count_twenty_times() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    for number in range(100):
        counters.now = loader_state(number, 0)
        state = steady.state(STACK, TRAIN, number * LOOK_NS)
        assert state is not None
        assert number - 5 <= state.batches_yielded <= number
    assert counters.asked <= 11
    assert counters.asked + counters.counted <= 21


def test_other_lines_are_asked_for_at_once_and_known_lines_again_after_the_loop_changed() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    training = steady.state(STACK, TRAIN, LOOK_NS)
    counters.now = loader_state(3, 0, iterator=2)
    evaluation = steady.state(STACK, EVALUATE, 2 * LOOK_NS)
    counters.now = training
    assert evaluation is not None
    assert evaluation.iterator == 2
    assert steady.state(STACK, TRAIN, 3 * LOOK_NS) == training


def test_a_loop_over_another_loader_on_the_same_lines_is_reported_soon() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    steady.state(STACK, TRAIN, 0)
    counters.now = loader_state(3, 0, iterator=2)
    found = steady.state(STACK, TRAIN, CONFIRM_NS)
    assert found is not None
    assert found.iterator == 2


def test_after_iter_the_new_iterator_is_recognized_by_the_next_look() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    steady.state(STACK, TRAIN, 0)
    assert steady.state(STACK, replace(TRAIN, phase="start"), LOOK_NS) is None
    counters.now = loader_state(0, 0, iterator=2)
    found = steady.state(STACK, TRAIN, 2 * LOOK_NS)
    assert found is not None
    assert found.iterator == 2


def test_the_frame_of_the_loop_is_recognized_by_its_distance_from_the_root() -> None:
    steady = SteadyCounters(FakeCounters())
    steady.state(STACK, TRAIN, 0)
    deeper = Stack(STACK.thread, STACK.is_main, (STACK.frames[0], *STACK.frames))
    found = steady.state(deeper, TRAIN, LOOK_NS)
    assert found is not None
    assert found.frame == 1
