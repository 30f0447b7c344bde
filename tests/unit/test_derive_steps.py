"""What a step is, for every shape of training loop."""

from __future__ import annotations

import pytest
from record_stream import MS, RecordStream, derive, periods_ms, steps_of, waits_ms

from gpuwatch.hook import wire
from gpuwatch.sources.hook_link.run import RunDerivation


def test_plain_loop_gives_each_step_with_its_parts() -> None:
    loop = RecordStream()
    loop.iter(milliseconds=50, workers=2)
    for _ in range(5):
        loop.step()
    steps = steps_of(derive(loop))
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert periods_ms(steps) == [60, 10, 10, 10, 10]
    assert waits_ms(steps) == [54, 4, 4, 4, 4]
    assert [step.epoch_position for step in steps] == [0, 1, 2, 3, 4]
    assert {step.samples for step in steps} == {8}
    last = steps[-1]
    assert (last.loader, last.batches, last.phase_seconds) == (0, 1, 0.0)
    assert (last.forward_seconds, last.backward_seconds, last.optimizer_seconds) == (0.002, 0.003, 0.001)
    assert last.copy_seconds is None


def test_step_is_given_as_soon_as_the_next_batch_is_there() -> None:
    loop = RecordStream()
    loop.iter()
    loop.step()
    derivation = RunDerivation("1.1")
    assert steps_of(derivation.feed(loop.records, loop.now_ns)) == []
    before = len(loop.records)
    loop.next()
    assert len(steps_of(derivation.feed(loop.records[before:], loop.now_ns))) == 1


def test_step_of_a_loop_that_fell_silent_is_given_after_a_second() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.step()
    derivation = RunDerivation("1.1")
    assert len(steps_of(derivation.feed(loop.records, loop.now_ns))) == 2
    assert derivation.due_ns() == loop.now_ns + 1000 * MS
    assert steps_of(derivation.check(loop.now_ns + 900 * MS)) == []
    assert [step.number for step in steps_of(derivation.check(loop.now_ns + 1100 * MS))] == [3]
    assert derivation.due_ns() is None


def test_packets_that_had_to_wait_are_not_taken_for_silence() -> None:
    """A monitor that was stopped reads a minute later what the trainer sent without a pause."""
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        loop.next()
        loop.backward()
        loop.optimizer(ident=0)
        loop.optimizer(ident=1)
    later = loop.now_ns + 60_000 * MS
    derivation = RunDerivation("1.1")
    given = []
    for record in loop.records:
        given += derivation.feed([record], later) + derivation.check(later)
    assert len(steps_of(given)) == 3
    assert len(steps_of(derivation.check(later + 1100 * MS))) == 1


def test_silence_inside_a_step_of_two_optimizers_does_not_split_it() -> None:
    loop = RecordStream()
    loop.iter()
    derivation = RunDerivation("1.1")
    given = []
    for _ in range(3):
        loop.next()
        loop.backward()
        loop.optimizer(ident=0)
        given += derivation.feed(loop.records, loop.now_ns)
        loop.records.clear()
        loop.work(3000)
        given += derivation.check(loop.now_ns)
        loop.backward()
        loop.optimizer(ident=1)
    given += derivation.feed(loop.records, loop.now_ns) + derivation.finish(loop.now_ns)
    assert len(steps_of(given)) == 3


def test_gradient_accumulation_is_one_step_of_several_batches() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        for _ in range(3):
            loop.next()
            loop.work(2)
            loop.backward()
        loop.optimizer()
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [28] * 4
    assert waits_ms(steps) == [12] * 4
    assert [(step.batches, step.samples, step.epoch_position) for step in steps] == [
        (3, 24, 0),
        (3, 24, 3),
        (3, 24, 6),
        (3, 24, 9),
    ]
    assert steps[0].forward_seconds == pytest.approx(0.006)


def test_batches_read_ahead_of_their_backwards_are_one_accumulation_step() -> None:
    """The Hugging Face Trainer reads all batches of an accumulation before the first forward."""
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        for _ in range(4):
            loop.next()
        for _ in range(4):
            loop.work(1)
            loop.backward()
        loop.optimizer()
    steps = steps_of(derive(loop))
    assert waits_ms(steps) == [16] * 4
    assert [step.batches for step in steps] == [4] * 4


def test_batches_read_ahead_with_a_step_each_are_several_steps() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        for _ in range(4):
            loop.next()
        for _ in range(4):
            loop.backward()
            loop.optimizer()
    steps = steps_of(derive(loop))
    assert len(steps) == 12
    assert waits_ms(steps) == [16, 0, 0, 0] * 3
    assert [step.batches for step in steps] == [1] * 12
    assert [step.epoch_position for step in steps] == list(range(12))


def test_two_optimizers_after_one_backward_are_one_step() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        loop.next()
        loop.backward()
        loop.optimizer(ident=0)
        loop.work(0.5)
        loop.optimizer(ident=1)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [9.5] * 4
    assert steps[0].optimizer_seconds == pytest.approx(0.002)


def test_gan_folds_both_networks_into_the_batch() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        loop.next()
        for network in (0, 1):
            loop.work(1)
            loop.backward()
            loop.optimizer(ident=network)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [14] * 4
    assert steps[0].backward_seconds == pytest.approx(0.006)


def test_closure_that_runs_backward_inside_the_optimizer_is_subtracted() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.next()
        with loop.around(wire.OPTIMIZER, a=1):
            loop.work(0.25)
            for _ in range(4):
                loop.work(1)
                loop.backward()
            loop.work(0.75)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [21] * 3
    assert steps[0].backward_seconds == pytest.approx(0.012)
    assert steps[0].forward_seconds == pytest.approx(0.00425)
    assert steps[0].optimizer_seconds == pytest.approx(0.00075)
    assert waits_ms(steps) == [4] * 3


def test_optimizer_step_inside_a_step_counts_once() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.next()
        loop.backward()
        with loop.around(wire.OPTIMIZER):
            loop.work(0.5)
            loop.optimizer(milliseconds=1)
            loop.work(0.5)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [9] * 3
    assert steps[0].optimizer_seconds == pytest.approx(0.002)


def test_optimizer_that_raised_ends_no_step() -> None:
    loop = RecordStream()
    loop.iter()
    for index in range(4):
        loop.next()
        loop.backward()
        loop.add(wire.OPTIMIZER, 1, flags=wire.RAISED if index == 1 else 0)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [8, 16, 8]
    assert [step.batches for step in steps] == [1, 2, 1]


def test_copies_are_taken_off_the_forward() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.next()
        loop.add(wire.COPY, 1, a=1000)
        loop.work(2)
        loop.backward()
        loop.optimizer()
    last = steps_of(derive(loop))[-1]
    assert last.copy_seconds == pytest.approx(0.001)
    assert last.forward_seconds == pytest.approx(0.002)


def test_cpu_time_of_a_wait_is_given_only_where_it_was_sampled() -> None:
    loop = RecordStream()
    loop.iter()
    for index in range(4):
        start = loop.next()
        if index % 2:
            loop.add(wire.WAIT_CPU, a=start, b=3 * MS)
        loop.backward()
        loop.optimizer()
    assert [step.wait_cpu_seconds for step in steps_of(derive(loop))] == [None, 0.003, None, 0.003]


def test_step_whose_beginning_was_not_seen_is_not_given() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        for _ in range(2):
            loop.next()
            loop.backward()
        loop.optimizer()
    loop.records = loop.records[3:]
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [15] * 3
    assert [step.epoch_position for step in steps] == [None] * 3


def test_no_step_spans_lost_records() -> None:
    loop = RecordStream()
    loop.iter()
    derivation = RunDerivation("1.1")
    for _ in range(5):
        loop.step()
    given = derivation.feed(loop.records, loop.now_ns)
    loop.records.clear()
    for _ in range(3):
        loop.step()
    loop.records = loop.records[1:]
    derivation.lose()
    given += derivation.feed(loop.records, loop.now_ns) + derivation.finish(loop.now_ns)
    assert periods_ms(steps_of(given)) == [10] * 6
    assert steps_of(given)[-1].epoch_position is None


def test_training_that_moves_to_another_thread_is_followed() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(5):
        loop.step()
    with loop.on_thread(300):
        loop.iter(0, 1)
        for _ in range(20):
            loop.step(0, 1)
    steps = steps_of(derive(loop))
    assert len(steps) >= 5 + 10
    assert waits_ms(steps[-5:]) == [4] * 5


def test_read_of_an_inner_loader_is_part_of_the_outer_one() -> None:
    loop = RecordStream()
    loop.iter(0, 0)
    for _ in range(4):
        with loop.around(wire.NEXT, b=8):
            loop.work(0.5)
            for _ in range(3):
                loop.next(5, 50, 1)
            loop.work(0.5)
        loop.backward()
        loop.optimizer()
    steps = steps_of(derive(loop))
    assert waits_ms(steps) == [4] * 4
    assert {step.loader for step in steps} == {0}
    assert {step.batches for step in steps} == {1}


def test_batches_read_one_ahead_keep_their_places() -> None:
    """accelerate hands a batch on once it holds the next one."""
    loop = RecordStream()
    for epoch in range(2):
        loop.iter(0, epoch)
        loop.next(0, epoch, samples=8)
        for batch in range(1, 6):
            if batch < 5:
                loop.next(0, epoch, samples=8 if batch < 4 else 3)
            else:
                loop.stop(0, epoch)
            loop.backward()
            loop.optimizer()
    steps = steps_of(derive(loop))
    assert [step.epoch_position for step in steps] == [0, 1, 2, 3, 4] * 2
    assert [step.samples for step in steps] == [8, 8, 8, 8, 3] * 2
    assert [step.batches for step in steps] == [1] * 10
    assert len(steps) == 10


@pytest.mark.parametrize("packet", [1, 2, 3, 50])
def test_where_packets_end_changes_nothing(packet: int) -> None:
    loop = RecordStream()
    for epoch in range(3):
        loop.iter(0, epoch)
        for _ in range(6):
            loop.step(0, epoch)
        loop.stop(0, epoch)
        loop.evaluate(1, 100 + epoch)
    assert steps_of(derive(loop, packet=packet)) == steps_of(derive(loop, packet=1000))
