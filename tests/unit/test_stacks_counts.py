"""Batches of one loop, over iterators that come and go between looks."""

from __future__ import annotations

from stack_looks import loader_state

from gpuwatch.sources.stacks.counts import BatchCounter, first_round

LOOK_NS = 10_000_000


class Looks:
    """Looks at a counter, 10 ms apart."""

    def __init__(self) -> None:
        self.counter = BatchCounter()
        self.now_ns = 0

    def see(self, *counts: int, iterator: int = 1, length: int | None = None, workers: int = 0) -> None:
        for count in counts:
            self.now_ns += LOOK_NS
            state = loader_state(count, iterator=iterator, length=length, workers=workers)
            self.counter.see(state, self.now_ns)


def test_counting_begins_with_the_first_look() -> None:
    looks = Looks()
    looks.see(500, 501, 503)
    assert (looks.counter.batches, looks.counter.epochs, looks.counter.exact) == (3, 0, True)


def test_a_new_iterator_goes_on_from_the_old_one() -> None:
    looks = Looks()
    looks.see(0, 5, 9)
    looks.see(1, 4, iterator=2)
    assert (looks.counter.batches, looks.counter.epochs) == (13, 1)


def test_the_last_batches_of_an_epoch_are_added_where_its_length_is_known() -> None:
    looks = Looks()
    looks.see(*range(99), length=100)
    looks.see(0, 1, iterator=2, length=100)
    assert looks.counter.batches == 101


def test_the_length_of_earlier_epochs_serves_where_the_loader_has_none() -> None:
    looks = Looks()
    looks.see(*range(101))
    looks.see(*range(100), iterator=2)
    looks.see(0, iterator=3)
    assert looks.counter.batches == 200


def test_a_persistent_iterator_that_starts_again_is_a_new_epoch() -> None:
    looks = Looks()
    looks.see(*range(50), length=50)
    looks.see(0, 1, length=50)
    assert (looks.counter.batches, looks.counter.epochs) == (51, 1)


def test_two_iterators_that_are_read_in_turn_are_each_counted_once() -> None:
    looks = Looks()
    for number in range(40, 60):
        looks.see(number, iterator=1, length=100)
        looks.see(number + 500, iterator=2, length=1000)
    assert (looks.counter.batches, looks.counter.epochs) == (19 + 540 + 19, 0)


def test_an_iterator_that_is_returned_to_before_it_moved_on_adds_nothing() -> None:
    looks = Looks()
    looks.see(0, 5)
    looks.see(0, 1, iterator=2)
    looks.see(5, 6)
    assert looks.counter.batches == 5 + 1 + 1


def test_an_iterator_made_at_the_address_of_an_ended_one_starts_over() -> None:
    looks = Looks()
    looks.see(*range(51), length=50)
    looks.see(*range(51), iterator=2, length=50)
    looks.see(1, 50, iterator=1, length=50)
    assert (looks.counter.batches, looks.counter.epochs) == (150, 2)


def test_iterators_are_remembered_up_to_a_bound() -> None:
    looks = Looks()
    for number in range(100):
        looks.see(1, 2, iterator=number)
    assert looks.counter.batches == 1 + 2 * 99
    assert len(looks.counter._left) < 10


def test_batches_that_could_not_have_passed_in_the_time_are_not_added() -> None:
    looks = Looks()
    looks.see(*range(50), length=1000)  # the loop was left by a break
    looks.see(0, iterator=2, length=1000)
    assert looks.counter.batches == 49


def test_entries_into_next_are_counted_where_no_counter_can_be_read() -> None:
    counter = BatchCounter()
    for waits in (True, True, False, True, False, False, True):
        counter.see_wait(waits)
    assert (counter.batches, counter.exact) == (3, False)


def test_a_loader_rebuilt_for_an_epoch_continues_the_count() -> None:
    first, second = Looks(), Looks()
    first.see(*range(100), length=100)
    second.now_ns = first.now_ns
    second.see(2, 3, iterator=9, length=100)
    second.counter.go_on_from(first.counter, 100)
    assert (second.counter.batches, second.counter.epochs) == (103, 1)


def test_the_first_batch_of_each_worker_may_wait_for_its_start() -> None:
    rounds = [first_round(loader_state(0, length=length, workers=4)) for length in (None, 100, 6, 1)]
    assert rounds == [4, 4, 3, 1]
    assert first_round(loader_state(0, workers=0)) == 0
