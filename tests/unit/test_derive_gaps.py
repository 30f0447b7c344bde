"""GPU idle times come steps late and must find the step whose wait caused them."""

from __future__ import annotations

from record_stream import MS, RecordStream, derive, steps_of

from gpuwatch.hook import wire
from gpuwatch.samples import GpuGap, Sample
from gpuwatch.sources.hook_link.run import RunDerivation


def gaps_of(samples: list[Sample]) -> dict[int, float]:
    return {gap.number: round(gap.seconds * 1e3, 3) for gap in samples if isinstance(gap, GpuGap)}


def test_idle_time_finds_the_step_whose_wait_it_was() -> None:
    loop = RecordStream()
    loop.iter()
    starts = []
    for index in range(10):
        starts.append(loop.next())
        if index >= 2:
            loop.add(wire.GAP, a=starts[index - 2], b=(index - 2) * MS)
        loop.backward()
        loop.optimizer()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=True, memory_total_bytes=None)
    samples = derive(loop, derivation)
    assert len(steps_of(samples)) == 10
    assert gaps_of(samples) == {number: number - 1 for number in range(1, 9)}


def test_idle_time_of_several_waits_is_given_once_all_are_known() -> None:
    loop = RecordStream()
    loop.iter()
    starts = []
    for _ in range(4):
        for _ in range(3):
            starts.append(loop.next())
            if len(starts) > 2:
                loop.add(wire.GAP, a=starts[-3], b=2 * MS)
            loop.backward()
        loop.optimizer()
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=True, memory_total_bytes=None)
    assert gaps_of(derive(loop, derivation)) == {1: 6, 2: 6, 3: 6}


def test_sum_of_only_some_waits_is_never_given() -> None:
    loop = RecordStream()
    loop.iter()
    for _ in range(4):
        first = loop.next()
        loop.backward()
        loop.next()
        loop.backward()
        loop.optimizer()
        loop.add(wire.GAP, a=first, b=2 * MS)
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=True, memory_total_bytes=None)
    assert gaps_of(derive(loop, derivation)) == {}


def test_idle_time_of_an_evaluation_is_not_the_trainings() -> None:
    loop = RecordStream()
    loop.iter()
    trained = []
    for step in range(6):
        trained.append(loop.next())
        loop.backward()
        loop.optimizer()
        loop.add(wire.GAP, a=trained[-1], b=MS)
        if step == 3:
            loop.iter(1, 9)
            read = [loop.next(1, 9) for _ in range(4)]
            loop.stop(1, 9)
            for start in read:
                loop.add(wire.GAP, a=start, b=50 * MS)
    derivation = RunDerivation("1.1")
    derivation.learn(phase_names=(), optimizer=True, gaps=True, memory_total_bytes=None)
    assert set(gaps_of(derive(loop, derivation)).values()) == {1}
