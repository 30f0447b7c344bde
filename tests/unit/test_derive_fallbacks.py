"""Loops whose steps do not end with an optimizer that is seen, or whose data comes past any loader."""

from __future__ import annotations

import pytest
from record_stream import RecordStream, derive, periods_ms, phases_of, steps_of, waits_ms

from gpuwatch.hook import wire
from gpuwatch.samples import BatchWait
from gpuwatch.sources.hook_link.run import RunDerivation


@pytest.mark.parametrize("engine_thread", [100, 101])
def test_optimizer_in_backward_ends_the_step_with_the_backward(engine_thread: int) -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        loop.next()
        loop.work(2)
        with loop.around(wire.BACKWARD):
            for parameter in range(3):
                loop.work(1)
                with loop.on_thread(engine_thread):
                    loop.optimizer(0.5, ident=parameter)
            loop.work(0.5)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [11] * 4
    assert steps[0].backward_seconds == pytest.approx(0.0035)
    assert steps[0].optimizer_seconds == pytest.approx(0.0015)


def test_optimizer_in_backward_without_a_loader_still_separates_steps() -> None:
    loop = RecordStream()
    for _ in range(5):
        loop.work(4)
        with loop.around(wire.BACKWARD):
            loop.work(1)
            loop.optimizer(0.5)
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [5.5] * 4


def test_hand_written_update_ends_steps_with_the_backward() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(40):
        loop.next()
        loop.backward()
        loop.work(1)
    steps = steps_of(derive(loop))
    assert len(steps) == 40
    assert periods_ms(steps[1:]) == [8] * 39
    assert waits_ms(steps) == [4] * 40
    assert steps[0].optimizer_seconds is None


def test_long_accumulation_is_not_taken_for_a_hand_written_update() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        for _ in range(40):
            loop.next()
            loop.backward()
        loop.optimizer()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=False, memory_total_bytes=None)
    steps = steps_of(derive(loop, derivation))
    assert [step.batches for step in steps] == [40] * 3
    assert [step.samples for step in steps] == [320] * 3


def test_reentrant_checkpointing_counts_the_outer_backward_once() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.next()
        loop.work(2)
        with loop.around(wire.BACKWARD):
            for _ in range(5):
                loop.work(1)
                loop.backward(2)
        loop.optimizer()
    steps = steps_of(derive(loop))
    assert periods_ms(steps) == [22] * 3
    assert steps[0].backward_seconds == pytest.approx(0.015)
    assert steps[0].forward_seconds == pytest.approx(0.002)
    assert steps[0].batches == 1


def test_graph_that_hides_backward_and_optimizer_ends_steps_with_the_next_batch() -> None:
    loop = RecordStream()
    for _ in range(3):
        loop.backward()
        loop.optimizer()
    for epoch in range(2):
        loop.iter(0, epoch)
        for _ in range(30):
            loop.next(0, epoch)
            loop.work(6)
        loop.stop(0, epoch)
    steps = steps_of(derive(loop))[2:]
    assert len(steps) >= 57
    assert periods_ms(steps[:29]) == [10] * 29
    assert waits_ms(steps[:29]) == [4] * 29
    assert [step.epoch_position for step in steps[:29]] == list(range(29))


def test_reading_a_loader_without_ever_training_makes_no_steps() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(200):
        loop.next(grad=False)
        loop.work(2)
    loop.stop()
    samples = derive(loop)
    assert steps_of(samples) == []
    assert {sample.role for sample in samples if isinstance(sample, BatchWait)} == {"unknown"}


def test_loop_without_a_loader_does_not_claim_a_wait_of_zero() -> None:
    loop = RecordStream()
    for _ in range(20):
        loop.work(5)
        loop.backward()
        loop.optimizer()
    derivation = RunDerivation("1.1")
    steps = steps_of(derive(loop, derivation))
    assert periods_ms(steps) == [9] * 19
    assert {step.wait_seconds for step in steps} == {None}
    assert {step.forward_seconds for step in steps} == {None}
    assert "gpuwatch.loader" in derivation.notes()[0]


def test_reads_of_a_background_thread_are_no_waits_of_the_training() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(20):
        with loop.on_thread(200):
            loop.next(milliseconds=2)
        loop.work(1)
        loop.backward()
        loop.optimizer()
    derivation = RunDerivation("1.1")
    steps = steps_of(derive(loop, derivation))
    assert len(steps) >= 18
    assert steps[-1].wait_seconds is None
    assert "background thread" in derivation.notes()[0]
    assert derivation.roles() == {0: "train"}  # what else reads none must live on it


def test_a_loader_that_a_thread_reads_beside_the_trainings_own_has_no_known_role() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(20):
        loop.step()
        with loop.on_thread(200):
            loop.next(1, 100, milliseconds=2)
    derivation = RunDerivation("1.1")
    derive(loop, derivation)
    assert derivation.roles()[1] == "unknown"


def infers(loop: RecordStream, seconds: int, loader: int = 0, iterator: int = 0) -> None:
    """Batches of 100 ms that nothing is trained on, half of it waited for."""
    loop.iter(loader, iterator)
    for _ in range(10 * seconds):
        loop.next(loader, iterator, milliseconds=50, grad=False)
        loop.work(50)


def test_the_batches_of_a_process_that_trains_nothing_are_its_steps() -> None:
    loop = RecordStream()
    infers(loop, 30)
    derivation = RunDerivation("1.1")
    samples = derive(loop, derivation)
    steps = steps_of(samples)
    assert 295 <= len(steps) <= 300
    assert {round((step.wait_seconds or 0) * 1e3) for step in steps} == {50}
    assert {step.samples for step in steps} == {8}
    assert phases_of(samples, "eval") == []
    assert derivation.roles() == {0: "train"}


def test_its_next_loader_goes_on_where_the_last_one_ended() -> None:
    loop = RecordStream()
    infers(loop, 20)
    infers(loop, 20, loader=1, iterator=100)
    samples = derive(loop)
    assert 390 <= len(steps_of(samples)) <= 400
    assert steps_of(samples)[-1].loader == 1


@pytest.mark.parametrize("known", [True, False])
def test_an_evaluation_before_the_training_is_one_where_an_optimizer_is_built(known: bool) -> None:
    loop = RecordStream()
    infers(loop, 20, loader=1, iterator=100)
    loop.iter()
    for _ in range(50):
        loop.step()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=known, gaps=False, memory_total_bytes=None)
    samples = derive(loop, derivation)
    trained = [step for step in steps_of(samples) if step.loader == 0]
    assert len(trained) >= 48
    assert {round((step.wait_seconds or 0) * 1e3) for step in trained[1:]} == {4}
    assert len(steps_of(samples)) - len(trained) == pytest.approx(0 if known else 199, abs=2)


def test_script_that_names_its_steps_is_taken_at_its_word() -> None:
    loop = RecordStream()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=("data", "log"), optimizer=False, gaps=False, memory_total_bytes=None)
    for _ in range(5):
        loop.add(wire.USER_PHASE, 3, ident=0)
        loop.work(6)
        loop.add(wire.USER_PHASE, 1, ident=1)
        loop.add(wire.USER_STEP, a=32)
    samples = derive(loop, derivation)
    steps = steps_of(samples)
    assert periods_ms(steps) == [10] * 4
    assert waits_ms(steps) == [3] * 4
    assert {step.samples for step in steps} == {32}


def test_named_wait_around_a_read_is_not_counted_twice() -> None:
    loop = RecordStream()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=("data",), optimizer=False, gaps=False, memory_total_bytes=None)
    loop.iter()
    for _ in range(4):
        with loop.around(wire.USER_PHASE):
            loop.next(milliseconds=4)
            loop.work(2)
        loop.backward()
        loop.optimizer()
    assert waits_ms(steps_of(derive(loop, derivation))) == [6] * 4
