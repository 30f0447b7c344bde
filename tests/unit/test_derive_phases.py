"""What is not training: checkpoints, collections, compilations; and what they take from a step."""

from __future__ import annotations

import pytest
from record_stream import MS, RecordStream, derive, phases_of, steps_of

from gpuwatch.hook import wire
from gpuwatch.samples import PhaseSpan, RunMemory, Sample, StepEnd
from gpuwatch.sources.hook_link.run import RunDerivation


def lengths_ms(found: list[PhaseSpan]) -> list[float]:
    return [((span.end_ns or 0) - span.start_ns) / MS for span in found]


def test_checkpoint_is_a_phase_of_the_step_it_delays() -> None:
    loop = RecordStream()
    loop.iter()
    for step in range(6):
        loop.step()
        if step == 2:
            loop.add(wire.SAVE, 200, a=5000)
    samples = derive(loop)
    assert [round(step.phase_seconds, 3) for step in steps_of(samples)] == [0, 0, 0, 0.2, 0, 0]
    (span,) = phases_of(samples, "checkpoint")
    assert (lengths_ms([span]), span.bytes) == ([200], 5000)


def test_checkpoint_names_the_line_that_saves() -> None:
    derivation = RunDerivation("1.1")
    places = (("/home/a/util.py", 7), ("/home/a/train.py", 120))
    derivation.learn(phase_names=(), save_places=places, optimizer=True, gaps=False, memory_total_bytes=None)
    loop = RecordStream()
    loop.iter()
    loop.step()
    loop.add(wire.SAVE, 200, a=5000, ident=2)
    loop.step()
    loop.work(3000)
    loop.add(wire.SAVE, 200, a=5000)
    loop.step()
    found = phases_of(derive(loop, derivation), "checkpoint")
    assert [(span.file, span.line) for span in found] == [("/home/a/train.py", 120), (None, None)]


def test_files_of_one_checkpoint_are_one_phase() -> None:
    loop = RecordStream()
    loop.iter()
    for step in range(4):
        loop.step()
        if step % 2:
            with loop.around(wire.SAVE, a=-1):
                loop.work(1)
                loop.add(wire.SAVE, 50, a=3000)
            loop.work(5)
            loop.add(wire.SAVE, 20, a=400)
    samples = derive(loop)
    spans_found = phases_of(samples, "checkpoint")
    assert lengths_ms(spans_found) == [76, 76]
    assert [span.bytes for span in spans_found] == [3400, 3400]


def test_save_that_contains_a_counted_save_counts_its_bytes_once() -> None:
    loop = RecordStream()
    with loop.around(wire.SAVE, a=3100):
        loop.add(wire.SAVE, 50, a=3000)
        loop.work(1)
    (span,) = phases_of(derive(loop), "checkpoint")
    assert span.bytes == 3100


def test_saves_far_apart_are_checkpoints_of_their_own() -> None:
    loop = RecordStream()
    loop.add(wire.SAVE, 50, a=1)
    loop.work(3000)
    loop.add(wire.SAVE, 50, a=1)
    assert lengths_ms(phases_of(derive(loop), "checkpoint")) == [50, 50]


def test_checkpoint_of_a_run_that_falls_silent_is_given_after_a_second() -> None:
    loop = RecordStream()
    loop.add(wire.SAVE, 50, a=1)
    derivation = RunDerivation("1.1")
    assert derivation.feed(loop.records, loop.now_ns) == []
    due = derivation.due_ns()
    assert due is not None
    assert len(derivation.check(due + MS)) == 1


def test_checkpoint_written_by_another_thread_stops_no_training() -> None:
    loop = RecordStream()
    loop.iter()
    for step in range(5):
        loop.step()
        if step == 2:
            with loop.on_thread(300):
                loop.add(wire.SAVE, 3)
    samples = derive(loop)
    assert phases_of(samples, "checkpoint") == []
    assert {step.phase_seconds for step in steps_of(samples)} == {0}


def test_collections_count_as_a_phase_from_fifty_milliseconds_on() -> None:
    loop = RecordStream()
    loop.iter()
    for pause in (0.2, 20, 120):
        loop.next()
        loop.add(wire.GC, pause, a=2)
        loop.backward()
        loop.optimizer()
    samples = derive(loop)
    assert lengths_ms(phases_of(samples, "gc")) == [20, 120]
    assert [step.phase_seconds for step in steps_of(samples)] == [0, 0, 0.12]
    assert steps_of(samples)[-1].forward_seconds == pytest.approx(0)


def test_collection_inside_a_wait_stays_in_the_wait() -> None:
    loop = RecordStream()
    loop.iter()
    loop.step()
    with loop.around(wire.NEXT, b=8):
        loop.work(1)
        loop.add(wire.GC, 100, a=2)
        loop.work(1)
    loop.backward()
    loop.optimizer()
    last = steps_of(derive(loop))[-1]
    assert last.wait_seconds == pytest.approx(0.102)
    assert last.phase_seconds == 0


def test_phases_that_overlap_are_counted_once() -> None:
    loop = RecordStream()
    loop.iter()
    loop.step()
    loop.iter(1, 100)
    for _ in range(3):
        loop.next(1, 100, 10)
        loop.add(wire.GC, 60, a=2)
    loop.stop(1, 100, 0)
    loop.step()
    last = steps_of(derive(loop))[-1]
    assert last.phase_seconds == pytest.approx(0.21)
    assert (last.end_ns - last.start_ns) / MS == 220


def test_compilation_is_taken_off_the_forward_and_named() -> None:
    loop = RecordStream()
    loop.iter()
    loop.next()
    loop.work(2)
    loop.add(wire.COMPILE, 500)
    loop.backward()
    loop.optimizer()
    samples = derive(loop)
    (step,) = steps_of(samples)
    assert step.phase_seconds == pytest.approx(0.5)
    assert step.forward_seconds == pytest.approx(0.002)
    assert lengths_ms(phases_of(samples, "compile")) == [500]


def test_phase_the_script_names_is_shown_and_not_subtracted() -> None:
    loop = RecordStream()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=("augment",), optimizer=True, gaps=False, memory_total_bytes=None)
    loop.iter()
    loop.next()
    loop.add(wire.USER_PHASE, 7, ident=0)
    loop.backward()
    loop.optimizer()
    samples = derive(loop, derivation)
    assert [span.detail for span in phases_of(samples, "user")] == ["augment"]
    assert steps_of(samples)[0].phase_seconds == 0


def test_allocator_records_are_joined() -> None:
    loop = RecordStream()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=False, memory_total_bytes=80)
    loop.add(wire.MEMORY, a=50, b=60)
    loop.add(wire.RETRIES, a=2, b=0)
    memory = [sample for sample in derive(loop, derivation) if isinstance(sample, RunMemory)]
    assert (memory[0].allocated_peak_bytes, memory[0].alloc_retries) == (50, None)
    last = memory[-1]
    assert (last.allocated_peak_bytes, last.reserved_peak_bytes, last.total_bytes) == (50, 60, 80)
    assert (last.alloc_retries, last.out_of_memory, last.time_ns) == (2, 0, loop.now_ns)


def open_phases(samples: list[Sample]) -> list[tuple[str, int]]:
    """The kinds that last, with their starts, in the order of their beginnings."""
    found: dict[tuple[str, int], PhaseSpan] = {}
    for span in samples:
        if isinstance(span, PhaseSpan):
            key = (span.kind, span.start_ns)
            if span.end_ns is None:
                found[key] = span
            else:
                found.pop(key, None)
    return sorted(found, key=lambda key: key[1])


def trained(steps: int = 5) -> RecordStream:
    loop = RecordStream()
    loop.iter()
    for _ in range(steps):
        loop.step()
    return loop


@pytest.mark.parametrize(
    ("kind", "ident", "opens"),
    [
        (wire.SAVE, 0, "checkpoint"),
        (wire.COMPILE, 0, "compile"),
        (wire.USER_PHASE, 1, "eval"),
        (wire.USER_PHASE, 2, "checkpoint"),
    ],
)
def test_a_pause_is_known_from_its_beginning(kind: int, ident: int, opens: str) -> None:
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=("data", "eval", "checkpoint"), optimizer=True, gaps=False, memory_total_bytes=None)
    loop = trained()
    began = loop.add(wire.BEGUN, ident=ident, a=kind)
    samples = derivation.feed(loop.records, loop.now_ns)
    assert open_phases(samples) == [(opens, began)]
    loop.records.clear()
    loop.now_ns = began
    loop.add(kind, 100_000, ident=ident)
    loop.step()
    samples += derivation.feed(loop.records, loop.now_ns)
    assert open_phases(samples) == []
    assert lengths_ms([span for span in phases_of(samples, opens) if span.end_ns]) == [100_000]


def test_a_checkpoint_lasts_while_one_of_its_files_is_written() -> None:
    derivation = RunDerivation("1.1")
    loop = trained()
    first = loop.add(wire.BEGUN, a=wire.SAVE)
    loop.add(wire.SAVE, 50, a=10)
    loop.work(20)
    second = loop.add(wire.BEGUN, a=wire.SAVE)
    samples = derivation.feed(loop.records, loop.now_ns)
    samples += derivation.check(second + 90_000 * MS)
    assert open_phases(samples) == [("checkpoint", first)]
    loop.records.clear()
    loop.now_ns = second
    loop.add(wire.SAVE, 100_000, a=20)
    loop.step()
    samples += derivation.feed(loop.records, loop.now_ns)
    assert open_phases(samples) == []
    (span,) = [span for span in phases_of(samples, "checkpoint") if span.end_ns]
    assert (lengths_ms([span]), span.bytes) == ([100_070], 30)


def test_a_save_whose_end_was_lost_holds_no_later_one() -> None:
    derivation = RunDerivation("1.1")
    loop = trained()
    loop.add(wire.BEGUN, a=wire.SAVE)
    loop.step()
    loop.add(wire.SAVE, 50, a=10)
    loop.step()
    closed = [span for span in phases_of(derive(loop, derivation), "checkpoint") if span.end_ns]
    assert lengths_ms(closed) == [50]


def test_after_the_last_pass_over_its_loader_it_is_outside_until_something_follows() -> None:
    derivation = RunDerivation("1.1")
    loop = trained()
    loop.stop()
    ended = loop.now_ns
    samples = derivation.feed(loop.records, loop.now_ns)
    assert open_phases(samples) == []
    due = derivation.due_ns()
    assert due is not None
    samples += derivation.check(due + MS)
    assert open_phases(samples) == [("outside", ended)]
    loop.records.clear()
    loop.work(30_000)
    began = loop.now_ns
    loop.iter(iterator=1)
    samples += derivation.feed(loop.records, loop.now_ns)
    assert open_phases(samples) == []
    assert [(span.start_ns, span.end_ns) for span in phases_of(samples, "outside")][-1] == (ended, began)


def test_what_lies_between_two_passes_is_no_part_of_the_step_behind_it() -> None:
    derivation = RunDerivation("1.1")
    loop = trained()
    loop.stop()
    samples = derivation.feed(loop.records, loop.now_ns)
    samples += derivation.check(loop.now_ns + 2_000 * MS)
    loop.records.clear()
    loop.work(30_000)
    loop.iter(iterator=1)
    for _ in range(3):
        loop.step(iterator=1)
    samples += derivation.feed(loop.records, loop.now_ns)
    ended = [sample for sample in samples if isinstance(sample, StepEnd)]
    longest = max(ended, key=lambda step: step.end_ns - step.start_ns)
    assert longest.end_ns - longest.start_ns > 30_000 * MS
    assert longest.phase_seconds == pytest.approx(30.0, abs=0.1)


def test_a_wait_within_the_loop_is_not_outside() -> None:
    derivation = RunDerivation("1.1")
    loop = trained()
    samples = derivation.feed(loop.records, loop.now_ns)
    samples += derivation.check(loop.now_ns + 100_000 * MS)
    assert phases_of(samples, "outside") == []


def test_epochs_that_follow_at_once_are_not_outside() -> None:
    loop = RecordStream()
    for epoch in range(3):
        loop.iter(iterator=epoch)
        for _ in range(4):
            loop.step(iterator=epoch)
        loop.stop(iterator=epoch)
        loop.work(300)
    assert phases_of(derive(loop), "outside") == []
