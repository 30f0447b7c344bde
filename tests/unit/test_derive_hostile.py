"""Records that no hook sends: nothing is raised, memory stays bounded, sound records keep their meaning."""

from __future__ import annotations

import gc
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from record_stream import SECOND, RecordStream, steps_of

from gpuwatch.hook import wire
from gpuwatch.sources.hook_link.run import RunDerivation

NOW = 2000 * SECOND

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 17),
        st.integers(0, 255),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 40),
        st.integers(0, 60),
        st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 40),
        st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 40),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(RECORDS, st.booleans())
def test_any_records_are_survived_and_give_sane_samples(records: list[wire.Record], gaps: bool) -> None:
    derivation = RunDerivation("1.1")
    derivation.learn(
        phase_names=("data", "eval", "checkpoint", "x"), optimizer=False, gaps=gaps, memory_total_bytes=None
    )
    samples = derivation.feed(records[:60], 50)
    derivation.lose()
    samples += derivation.feed(records[60:], 50) + derivation.finish(50)
    for step in steps_of(samples):
        assert step.end_ns > step.start_ns
        assert step.phase_seconds >= 0
        for part in (step.wait_seconds, step.forward_seconds, step.backward_seconds, step.optimizer_seconds):
            assert part is None or part >= 0


def test_times_no_clock_can_have_made_are_counted_and_left_out() -> None:
    derivation = RunDerivation("1.1")
    derivation.feed([(wire.BACKWARD, 0, 0, 1, 20, 10, 0, 0), (wire.BACKWARD, 0, 0, 1, 10, 2 * NOW, 0, 0)], NOW)
    assert derivation.malformed == 2
    loop = RecordStream()
    loop.iter()
    for _ in range(3):
        loop.step()
    assert len(steps_of(derivation.feed(loop.records, loop.now_ns))) == 2


def test_batches_of_more_samples_than_a_recording_can_count_have_an_unknown_number() -> None:
    """Their sum is beyond 64 bits, and a recording drops all that is written with such a value."""
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        for samples in (2**63 - 1, 8):  # two batches accumulate into one step
            loop.next(samples=samples)
            loop.work(2)
            loop.backward()
        loop.optimizer()
    loop.step()
    steps = steps_of(RunDerivation("1.1").feed(loop.records, loop.now_ns))
    assert [step.batches for step in steps] == [2] * len(steps) and len(steps) >= 3
    assert [step.samples for step in steps] == [None] * len(steps)


def deep_size(root: object) -> int:
    seen: set[int] = set()
    todo = [root]
    size = 0
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        todo += [r for r in gc.get_referents(item) if type(r).__module__ != "builtins" or not callable(r)]
    return size


def test_memory_is_bounded_whatever_is_sent() -> None:
    """Reads that never train, iterators that are never read again, threads, saves, backwards without end."""
    derivation = RunDerivation("1.1")
    clock = 1000

    def flood(count: int) -> None:
        nonlocal clock
        for index in range(count):
            clock += 10
            kinds = [
                (wire.NEXT, 0, 0, 1, clock, clock + 1, 0, 8),
                (wire.NEXT, 0, index % 1000, 1, clock + 1, clock + 2, index, 8),
                (wire.ITER, 0, 2, 1, clock + 2, clock + 3, index, 8),
                (wire.SAVE, 0, 0, 1, clock + 3, clock + 4, 5, 0),
                (wire.BACKWARD, 0, 0, index, clock + 4, clock + 5, 0, 0),
                (wire.GAP, 0, 0, 1, clock + 5, clock + 5, clock, 5),
                (wire.WAIT_CPU, 0, 0, 1, clock + 5, clock + 5, clock, 5),
                (wire.GC, 0, 0, 1, clock - 10**9, clock + 5, 2, 5),
            ]
            derivation.feed(kinds, clock + 10)

    flood(5000)
    early = deep_size(derivation.__dict__)
    flood(15000)
    assert deep_size(derivation.__dict__) < early * 1.5
    assert early < 8_000_000
