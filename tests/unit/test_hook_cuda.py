"""CUDA event pairs around a wait, with a GPU that is only pretended."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda, FakeEvent

from gpuwatch.hook import wire
from gpuwatch.hook.cuda import FAULTS, PAIRS, RIPE_AFTER, Device, Gaps


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def records() -> list[wire.Record]:
    return []


@pytest.fixture
def gaps(cuda: FakeCuda, records: list[wire.Record]) -> Gaps:
    return Gaps(cuda, records.append)


def one_wait(gaps: Gaps, cuda: FakeCuda, start_ns: int, idle_ms: float) -> bool:
    """One `next`, during which the GPU stands idle that long; whether a pair was there for it."""
    pair = gaps.enter(start_ns, loader=3)
    cuda.queued_ms += idle_ms
    if pair is not None:
        gaps.leave(pair)
    return pair is not None


def test_a_gap_is_what_lies_between_the_events_on_the_gpu(
    gaps: Gaps, cuda: FakeCuda, records: list[wire.Record]
) -> None:
    for start_ns in range(10):
        one_wait(gaps, cuda, start_ns, idle_ms=1.5)
        cuda.done_ms = cuda.queued_ms
    found = [(record[0], record[2], record[6], record[7]) for record in records]
    assert found == [(wire.GAP, 3, start_ns, 1_500_000) for start_ns in range(10 - RIPE_AFTER)]
    assert gaps.measured


def test_an_event_is_read_two_waits_later_and_only_once_the_gpu_is_past_it(
    gaps: Gaps, cuda: FakeCuda, records: list[wire.Record]
) -> None:
    for start_ns in range(6):
        one_wait(gaps, cuda, start_ns, idle_ms=1.0)
    assert not records
    cuda.done_ms = 2.0
    one_wait(gaps, cuda, 6, idle_ms=0.0)
    assert [record[6] for record in records] == [0, 1]


def test_a_gpu_far_behind_costs_measurements_and_no_more_events(
    gaps: Gaps, cuda: FakeCuda, records: list[wire.Record]
) -> None:
    taken = [one_wait(gaps, cuda, start_ns, idle_ms=1.0) for start_ns in range(PAIRS + 20)]
    assert sum(taken) == PAIRS
    assert cuda.calls.count("Event") == 2 * PAIRS
    cuda.done_ms = cuda.queued_ms
    one_wait(gaps, cuda, 0, idle_ms=1.0)
    assert len(records) == PAIRS


def test_nothing_is_recorded_or_asked_during_a_capture(gaps: Gaps, cuda: FakeCuda, records: list[wire.Record]) -> None:
    for start_ns in range(4):
        one_wait(gaps, cuda, start_ns, idle_ms=1.0)
    cuda.done_ms = cuda.queued_ms
    read = len(records)
    cuda.capturing = True
    assert not one_wait(gaps, cuda, 4, idle_ms=1.0)
    cuda.capturing = False
    pair = gaps.enter(5, loader=3)
    assert pair is not None
    cuda.capturing = True
    gaps.leave(pair)
    assert len(records) > read == 0


def test_a_wait_without_a_batch_gives_its_pair_back(gaps: Gaps, cuda: FakeCuda) -> None:
    for _ in range(3 * PAIRS):
        pair = gaps.enter(0, loader=1)
        assert pair is not None
        gaps.release(pair)


def test_a_broken_cuda_is_left_alone_after_a_few_faults(gaps: Gaps, cuda: FakeCuda) -> None:
    cuda.failing = True
    for _ in range(FAULTS):
        assert gaps.usable
        assert not one_wait(gaps, cuda, 0, idle_ms=1.0)
    assert not gaps.usable


def test_cuda_that_is_not_in_use_is_not_touched(cuda: FakeCuda, records: list[wire.Record]) -> None:
    device = Device()
    cuda.initialized = False
    device.observe(cuda, 0, records.append)
    assert device.gaps is None
    assert not cuda.calls


def test_the_allocator_is_read_once_a_second_and_unknown_counters_are_left_out(
    cuda: FakeCuda, records: list[wire.Record]
) -> None:
    device = Device()
    cuda.statistics = {"allocated_bytes.all.peak": 7, "reserved_bytes.all.peak": 9}
    for now_ns in (10_000_000, 500_000_000, 1_010_000_000):
        device.observe(cuda, now_ns, records.append)
    assert [(record[0], record[6], record[7]) for record in records] == [(wire.MEMORY, 7, 9)] * 2
    cuda.statistics.update({"num_alloc_retries": 2, "num_ooms": 1})
    device.observe(cuda, 3_000_000_000, records.append)
    assert (records[-1][0], records[-1][6], records[-1][7]) == (wire.RETRIES, 2, 1)
    cuda.capturing = True
    device.observe(cuda, 9_000_000_000, records.append)
    assert cuda.calls.count("memory_stats") == 3


def test_gaps_end_when_cuda_fails_and_do_not_begin_again(cuda: FakeCuda, records: list[wire.Record]) -> None:
    device = Device()
    device.observe(cuda, 0, records.append)
    assert device.gaps is not None
    cuda.failing = True
    for _ in range(FAULTS):
        one_wait(device.gaps, cuda, 0, idle_ms=1.0)
    for now_ns in (1, 2):
        device.observe(cuda, now_ns, records.append)
        assert device.gaps is None


def test_nothing_is_recorded_while_nobody_listens_and_the_same_events_are_used_again(
    cuda: FakeCuda, records: list[wire.Record]
) -> None:
    device = Device()
    device.observe(cuda, 0, records.append)
    assert device.gaps is not None
    one_wait(device.gaps, cuda, 7, idle_ms=1.0)
    device.pause()
    assert device.gaps is None
    device.observe(cuda, 1, records.append)
    assert device.gaps is not None
    cuda.done_ms = cuda.queued_ms = 100.0
    for start_ns in range(4):
        one_wait(device.gaps, cuda, start_ns, idle_ms=0.0)
    assert [record[6] for record in records] == [0, 1], "the wait before the pause is forgotten"
    assert cuda.calls.count("Event") == 2 * PAIRS


def test_a_pause_from_another_thread_in_the_middle_of_a_wait_leaves_the_wait_alone(
    cuda: FakeCuda, records: list[wire.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    device.observe(cuda, 0, records.append)
    gaps = device.gaps
    assert gaps is not None
    for start_ns in range(RIPE_AFTER):
        one_wait(gaps, cuda, start_ns, idle_ms=1.0)
    cuda.done_ms = cuda.queued_ms
    asked = FakeEvent.query

    def query(event: FakeEvent) -> bool:
        device.pause()
        return asked(event)

    monkeypatch.setattr(FakeEvent, "query", query)
    assert one_wait(gaps, cuda, RIPE_AFTER, idle_ms=1.0)
    assert [record[6] for record in records] == [0]
    assert device.gaps is None


def test_the_child_of_a_fork_never_frees_its_parents_events(cuda: FakeCuda) -> None:
    device = Device()
    device.observe(cuda, 0, lambda record: None)
    parents = device.gaps
    device.forget()
    assert device.gaps is None
    device.observe(cuda, 1, lambda record: None)
    assert device.gaps is None
    assert parents in vars(device).values()
