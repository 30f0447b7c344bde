"""Which loader feeds the training and which an evaluation, by how they are read."""

from __future__ import annotations

import pytest
from record_stream import MS, SECOND, RecordStream, derive, phases_of, steps_of

from gpuwatch.hook import wire
from gpuwatch.samples import BatchWait, PhaseSpan, Sample
from gpuwatch.sources.hook_link.run import RunDerivation


def train_wait_ms(samples: list[Sample]) -> set[float]:
    return {round((step.wait_seconds or 0) * 1e3, 3) for step in steps_of(samples)}


def waits_by_role(samples: list[Sample]) -> dict[tuple[int | None, str], int]:
    counts: dict[tuple[int | None, str], int] = {}
    for sample in samples:
        if isinstance(sample, BatchWait) and sample.part == "batch":
            key = (sample.loader, sample.role)
            counts[key] = counts.get(key, 0) + 1
    return counts


def test_the_end_of_an_epoch_is_a_wait_without_a_batch() -> None:
    loop = RecordStream()
    for epoch in range(3):
        loop.iter(iterator=epoch, milliseconds=20)
        loop.work(10)
        for _ in range(5):
            loop.step(iterator=epoch)
        loop.stop(iterator=epoch, milliseconds=30)
    samples = derive(loop)
    waits = [sample for sample in samples if isinstance(sample, BatchWait) and sample.part != "batch"]
    edges = [(wait.part, wait.role, (wait.end_ns - wait.start_ns) // MS) for wait in waits]
    assert edges[:3] == [("start", "train", 20), ("end", "train", 30), ("start", "train", 20)]
    assert waits_by_role(samples) == {(0, "train"): 15}


def test_evaluation_on_another_loader_is_a_phase_and_no_wait() -> None:
    loop = RecordStream()
    loop.iter()
    seconds = 0.0
    for step in range(30):
        loop.step()
        if step % 10 == 9:
            seconds += loop.evaluate(1, 100 + step, batches=5, grad=True)
    derivation = RunDerivation("1.1")
    derivation.places[1] = ("train.py", 40)
    samples = derive(loop, derivation)
    assert train_wait_ms(samples) == {4}
    spans = phases_of(samples, "eval")
    assert [(span.loader, span.batches, span.file, span.line) for span in spans] == [(1, 5, "train.py", 40)] * 3
    assert sum((span.end_ns or 0) - span.start_ns for span in spans) == pytest.approx(seconds * SECOND)
    assert spans[0].wait_seconds == pytest.approx(5 * 0.004 + 0.0001)
    assert sum(step.phase_seconds for step in steps_of(samples)) == pytest.approx(seconds * 2 / 3)
    assert waits_by_role(samples) == {(0, "train"): 30, (1, "eval"): 15}
    assert derivation.roles() == {0: "train", 1: "eval"}


@pytest.mark.parametrize("exhausted", [True, False])
def test_evaluation_between_the_epochs_is_distinguished_from_the_next_epoch(exhausted: bool) -> None:
    loop = RecordStream()
    for epoch in range(4):
        loop.iter(0, epoch)
        for _ in range(8):
            loop.step(0, epoch)
        loop.stop(0, epoch, 0)
        loop.evaluate(1, 100 + epoch, batches=4, exhausted=exhausted)
    samples = derive(loop)
    assert len(steps_of(samples)) == 32
    assert train_wait_ms(samples) == {4}
    spans = phases_of(samples, "eval")
    assert [span.batches for span in spans] == [4] * 4
    assert {(span.end_ns or 0) - span.start_ns for span in spans[:3]} <= {24 * MS, int(24.1 * MS)}
    assert [step.epoch_position for step in steps_of(samples)] == list(range(8)) * 4


def test_evaluation_on_the_training_loader_itself() -> None:
    loop = RecordStream()
    for epoch in range(3):
        loop.iter(0, 2 * epoch)
        for _ in range(10):
            loop.step(0, 2 * epoch)
        loop.stop(0, 2 * epoch, 0)
        loop.evaluate(0, 2 * epoch + 1, batches=10)
    derivation = RunDerivation("1.1")
    samples = derive(loop, derivation)
    assert train_wait_ms(samples) == {4}
    assert [span.batches for span in phases_of(samples, "eval")] == [10] * 3
    assert derivation.roles() == {0: "train"}


def test_evaluation_inside_the_epoch_on_the_training_loader() -> None:
    loop = RecordStream()
    loop.iter(0, 0)
    for step in range(40):
        loop.step(0, 0)
        if step % 10 == 9:
            loop.evaluate(0, 100 + step, batches=3, exhausted=False)
    samples = derive(loop)
    assert train_wait_ms(samples) == {4}
    assert [span.batches for span in phases_of(samples, "eval")] == [3] * 4


def test_sanity_check_before_the_first_step_is_an_evaluation() -> None:
    loop = RecordStream()
    loop.evaluate(1, 100, batches=2, exhausted=False)
    loop.iter(0, 0)
    for _ in range(5):
        loop.step()
    samples = derive(loop)
    steps = steps_of(samples)
    assert len(steps) == 5
    assert train_wait_ms(samples) == {4}
    assert {step.phase_seconds for step in steps} == {0}
    assert [span.batches for span in phases_of(samples, "eval")] == [2]


def test_evaluation_with_the_first_batch_of_the_loader_each_time() -> None:
    loop = RecordStream()
    loop.iter(0, 0)
    for step in range(60):
        loop.step()
        if step % 25 == 24:
            loop.iter(1, 100 + step)
            loop.next(1, 100 + step, 7)
            loop.work(2)
    samples = derive(loop)
    assert train_wait_ms(samples) == {4}
    assert [span.batches for span in phases_of(samples, "eval")] == [1, 1]


def test_kept_evaluation_iterator_read_now_and_then_is_no_sibling() -> None:
    loop = RecordStream()
    loop.iter(1, 100)
    loop.iter(0, 0)
    for step in range(60):
        if step % 20 == 0:
            loop.next(1, 100, 7)
            loop.work(2)
        loop.step()
    waits = [round((step.wait_seconds or 0) * 1e3) for step in steps_of(derive(loop))]
    assert waits[1:] == [4] * (len(waits) - 1)


def test_zipped_loaders_both_feed_the_training() -> None:
    loop = RecordStream()
    for epoch in range(2):
        loop.iter(0, epoch)
        loop.iter(1, epoch)
        for _ in range(6):
            loop.next(0, epoch, 1)
            loop.next(1, epoch, 5)
            loop.work(2)
            loop.backward()
            loop.optimizer()
        loop.stop(0, epoch, 0)
    derivation = RunDerivation("1.1")
    samples = derive(loop, derivation)
    assert train_wait_ms(samples) == {6}
    assert phases_of(samples, "eval") == []
    assert derivation.roles() == {0: "train", 1: "train"}
    assert {step.loader for step in steps_of(samples)} == {1}, "the loader that costs the most wait is named"
    assert {step.samples for step in steps_of(samples)} == {8}


def test_shorter_loader_that_starts_over_stays_a_sibling() -> None:
    loop = RecordStream()
    loop.iter(0, 0)
    iterator = 100
    loop.iter(1, iterator)
    for step in range(20):
        loop.next(0, 0, 1)
        if step and step % 6 == 0:
            loop.stop(1, iterator, 0)
            iterator += 1
            loop.iter(1, iterator)
        loop.next(1, iterator, 2)
        loop.backward()
        loop.optimizer()
    samples = derive(loop)
    assert train_wait_ms(samples) == {3}
    assert phases_of(samples, "eval") == []


def test_loaders_taken_in_turn_all_train() -> None:
    loop = RecordStream()
    for loader in range(3):
        loop.iter(loader, loader)
    for step in range(30):
        loop.step(step * 7 % 3, step * 7 % 3)
    derivation = RunDerivation("1.1")
    samples = derive(loop, derivation)
    assert set(derivation.roles().values()) == {"train"}
    assert train_wait_ms(samples) == {4}


def test_epoch_of_one_batch_read_ahead_trains() -> None:
    loop = RecordStream()
    for epoch in range(5):
        loop.iter(0, epoch)
        loop.next(0, epoch)
        loop.stop(0, epoch, 0)
        loop.backward()
        loop.optimizer()
    samples = derive(loop)
    assert len(steps_of(samples)) == 5
    assert train_wait_ms(samples) == {4}


def test_skipped_batches_are_waits_of_the_first_step() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(1500):
        loop.next()
    for _ in range(5):
        loop.step()
    samples = derive(loop, packet=100)
    waits = [round((step.wait_seconds or 0) * 1e3) for step in steps_of(samples)]
    assert waits == [1501 * 4, 4, 4, 4, 4]
    assert phases_of(samples, "eval") == []
    assert steps_of(samples)[1].epoch_position == 1501


def test_loop_with_its_own_data_does_not_take_the_evaluation_for_its_input() -> None:
    """nanoGPT's get_batch() for training, a DataLoader for evaluation."""
    loop = RecordStream()
    for step in range(40):
        loop.work(5)
        loop.backward()
        loop.optimizer()
        if step % 10 == 9:
            loop.evaluate(0, step, batches=6, exhausted=step % 20 == 9)
    samples = derive(loop)
    assert len(steps_of(samples)) == 39
    assert {step.wait_seconds for step in steps_of(samples)} == {None}
    assert [span.batches for span in phases_of(samples, "eval")] == [6] * 4


def test_evaluation_that_is_going_on_is_said_and_later_closed() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(5):
        loop.step()
    derivation = RunDerivation("1.1")
    given = derivation.feed(loop.records, loop.now_ns)
    loop.records.clear()
    loop.iter(1, 100)
    begun = loop.now_ns
    for _ in range(5):
        loop.next(1, 100, 100)
        loop.work(400)
    given = derivation.feed(loop.records, loop.now_ns)
    spans = [sample for sample in given if isinstance(sample, PhaseSpan)]
    assert [(span.kind, span.start_ns, span.end_ns, span.loader) for span in spans] == [("eval", begun, None, 1)]
    loop.records.clear()
    for _ in range(3):
        loop.next(1, 100, 100)
        loop.work(400)
    loop.stop(1, 100, 0)
    ended = loop.now_ns
    given = derivation.feed(loop.records, loop.now_ns)
    closing = [sample for sample in given if isinstance(sample, PhaseSpan)]
    assert [(span.start_ns, span.end_ns, span.batches) for span in closing] == [(begun, ended, 8)]
    loop.records.clear()
    for _ in range(2):
        loop.step()
    given = derivation.feed(loop.records, loop.now_ns) + derivation.finish(loop.now_ns)
    assert [round(step.phase_seconds, 3) for step in steps_of(given)] == [4, 0]
    assert not [sample for sample in given if isinstance(sample, PhaseSpan)]


def test_reads_taken_for_an_evaluation_are_taken_back_when_they_train() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.step()
    derivation = RunDerivation("1.1")
    derivation.feed(loop.records, loop.now_ns)
    loop.records.clear()
    loop.stop(milliseconds=0)
    loop.iter(0, 1)
    begun = loop.now_ns
    for _ in range(6):
        loop.next(0, 1, 300)
    opened = derivation.feed(loop.records, loop.now_ns)
    assert [(s.start_ns, s.end_ns) for s in opened if isinstance(s, PhaseSpan)] == [(begun, None)]
    loop.records.clear()
    for _ in range(3):
        loop.step(0, 1)
    given = derivation.feed(loop.records, loop.now_ns) + derivation.finish(loop.now_ns)
    assert [(s.start_ns, s.end_ns) for s in given if isinstance(s, PhaseSpan)] == [(begun, begun)]
    assert [round((step.wait_seconds or 0) * 1e3) for step in steps_of(given)] == [1804, 4, 4]


def test_evaluation_the_script_names_needs_no_guess() -> None:
    loop = RecordStream()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=("eval",), optimizer=True, gaps=False, memory_total_bytes=None)
    loop.iter()
    for step in range(20):
        loop.step()
        if step % 10 == 4:
            with loop.around(wire.USER_PHASE):
                loop.next(1, 100 + step, 5)
                loop.work(5)
    samples = derive(loop, derivation)
    assert train_wait_ms(samples) == {4}
    assert [(s.loader, s.batches, (s.end_ns or 0) - s.start_ns) for s in phases_of(samples, "eval")] == [
        (1, 1, 10 * MS)
    ] * 2
    assert sum(step.phase_seconds for step in steps_of(samples)) == pytest.approx(0.02)


def test_last_evaluation_of_a_run_is_given() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(5):
        loop.step()
    loop.stop()
    loop.evaluate(1, 100, batches=4, exhausted=False)
    samples = derive(loop)
    assert len(steps_of(samples)) == 5
    assert [span.batches for span in phases_of(samples, "eval")] == [4]


def test_persistent_workers_keep_their_iterator_over_the_epochs() -> None:
    loop = RecordStream()
    for _ in range(3):
        loop.iter(0, 7)
        for _ in range(5):
            loop.step(0, 7)
        loop.stop(0, 7, 0)
    samples = derive(loop)
    assert [step.epoch_position for step in steps_of(samples)] == list(range(5)) * 3
    assert phases_of(samples, "eval") == []


def test_long_epoch_outlives_hundreds_of_evaluations() -> None:
    loop = RecordStream()
    loop.iter(0, 0)
    for step in range(600):
        loop.step(0, 0)
        loop.evaluate(1 + step, 1000 + step, batches=2)
    derivation = RunDerivation("1.1")
    samples = derive(loop, derivation, packet=100)
    assert derivation.roles()[0] == "train"
    assert train_wait_ms(samples) == {4}
    assert steps_of(samples)[-1].epoch_position == 599
