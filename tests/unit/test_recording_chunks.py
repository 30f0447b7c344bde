"""What is written comes back: columns of any values, and every kind of sample from the tail and from chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.recording.chunks import KINDS as RECORDED
from gpuwatch.recording.chunks import Arrivals, Gathering, KindReader, samples_of_chunk, samples_of_row, stored_shape
from gpuwatch.recording.columns import EXACT, ColumnReader, DamagedError, pack, write_column
from gpuwatch.samples import BatchWait, GpuSample, PhaseSpan, ProcessSample, RunFacts, StepEnd, WorkerSample
from tests.unit.sample_strategies import KINDS, same, samples

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTER = st.integers(0, 2**62)


def size_and_values(values: Sequence[Any]) -> tuple[int, list[Any]]:
    out = bytearray()
    write_column(values, out)
    return len(out), list(ColumnReader(bytes(out)).read(len(values)))


@given(values=st.lists(INT64, max_size=90) | st.lists(COUNTER, max_size=90).map(sorted))
def test_whole_numbers_come_back(values: list[int]) -> None:
    assert size_and_values(values)[1] == values


@given(values=st.lists(COUNTER, min_size=40, max_size=90, unique=True).map(sorted), data=st.data())
def test_a_counter_that_steps_back_comes_back(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(values) - 1))
    values[place] = data.draw(st.integers(-5, values[place]))
    assert size_and_values(values)[1] == values


@pytest.mark.parametrize(
    "values",
    [
        [-3, *range(0, 400, 4), 2**62],
        [0, *(2**63 - 1000 + place for place in range(100))],
        [*range(1, 100), -1, *range(100, 200)],
        [*range(1, 100), -(2**63), *range(100, 200)],
    ],
    ids=["from below zero", "up to the greatest", "with one below zero", "with the least"],
)
def test_numbers_that_grow_but_for_one_come_back(values: list[int]) -> None:
    assert size_and_values(values)[1] == values


def test_a_counter_takes_the_room_of_its_steps() -> None:
    steady = [10**15 + 7 * place + place % 5 for place in range(600)]
    size, values = size_and_values(steady)
    assert values == steady and size < 2 * 600


@pytest.mark.parametrize("count", [200, 256, 257, 300])
def test_up_to_256_values_that_come_again_take_a_byte_each(count: int) -> None:
    values = [f"line {place % count}" if place >= 64 else f"line {place % 20}" for place in range(2_000)]
    size, read = size_and_values(values)
    assert read == values
    assert (size < 2_000 + 12 * count) == (count <= 256)


def test_whole_numbers_and_decimals_in_one_column_come_back_as_they_were() -> None:
    values = [place if place % 3 else place / 1000 for place in range(200)]
    assert size_and_values(values)[1] == values


def test_numbers_among_which_some_are_unknown_or_words_come_back() -> None:
    unknown = [None if place % 7 == 0 else place / 1000 for place in range(200)]
    words = [f"{place}" if place % 7 == 0 else place / 1000 for place in range(200)]
    assert size_and_values(unknown)[1] == unknown
    assert size_and_values(words)[1] == words


READERS = {kind.number: KindReader(stored_shape(kind)) for kind in RECORDED.values()}


def sealed_and_read(listed: list[Any]) -> list[Any]:
    gathering = Gathering()
    for time_ns, sample in enumerate(listed):
        kind = RECORDED[type(sample)]
        gathering.add(time_ns, [(kind.number, kind.row(sample))])
    found = {}
    for stream in gathering.streams():
        found.update(samples_of_chunk(READERS[stream.kind.number], len(stream.places), stream.packed()))
    return [found[place] for place in range(len(listed))]


def test_a_segment_is_written_subject_by_subject_and_facts_before_steps() -> None:
    """Chunks of one kind have one size: where just over half a page each lay side by side, a file grew by a fifth."""
    gathering, second = Gathering(), 1_000_000_000
    trainers = ("1.9", "2.9", "3.9")
    steps = [StepEnd(trainer, 1, 0, second, 0.1) for trainer in trainers]
    waits = [BatchWait(trainer, 1, "train", 0, second) for trainer in trainers]
    facts = [RunFacts(0, trainer, int(trainer[0]), 9, ("python",)) for trainer in trainers]
    for sample in (*steps, *waits, *facts):
        kind = RECORDED[type(sample)]
        gathering.add(second, [(kind.number, kind.row(sample))])
    written = [(stream.subject, stream.kind.name) for stream in gathering.streams()]
    subjects = [subject for subject, _ in written]
    assert subjects == sorted(subjects) and len(written) == 9
    for trainer in trainers:
        assert written.index((trainer, "RunFacts")) < written.index((trainer, "StepEnd"))


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_comes_back_from_the_tail_and_from_columns(cls: type, data: st.DataObject) -> None:
    listed = data.draw(st.lists(samples(cls), min_size=1, max_size=8))
    listed = [*listed, *listed[: data.draw(st.integers(0, len(listed)))]]
    kind = RECORDED[cls]
    row = pack([(7, [(kind.number, kind.row(sample)) for sample in listed])])
    assert [sample for _, sample in samples_of_row(READERS, row)] == listed
    for before, after in zip(listed, sealed_and_read(listed), strict=True):
        assert same(before, after, EXACT), (before, after)


def test_a_minute_of_polls_is_exact_where_sensors_give_decimals() -> None:
    listed = [
        GpuSample(
            time_ns=10**15 + number * 100_003_117,
            uuid="GPU-1",
            utilization_percent=float(number * 37 % 101),
            power_watts=(412_345 + number * 7_919 % 90_000) / 1000,
            energy_joules=(10**9 + number * 41_231) / 1000,
            memory_used_bytes=61_000_000_000 + number,
            pcie_rx_bytes=2**62 + number * 10**9 + number % 7,
            sm_clock_mhz=None if number % 50 == 0 else 1980.0,
            utilization_ring=tuple((number * 1000 + place, float(place)) for place in range(number % 4)),
            unavailable={"fan_percent": "not supported by this GPU"},
            ages_seconds={"pcie_rx_bytes": number / 1000},
        )
        for number in range(600)
    ]
    assert sealed_and_read(listed) == listed


def test_whole_readings_among_others_stay_small_and_equal() -> None:
    powers = [412 if number % 3 == 0 else (400_000 + number * 123) / 1000 for number in range(300)]
    listed = [GpuSample(number, "GPU-1", power_watts=power) for number, power in enumerate(powers)]
    assert sealed_and_read(listed) == listed
    huge = [GpuSample(number, "GPU-1", power_watts=2**53 + number if number % 2 else 0.5) for number in range(99)]
    assert sealed_and_read(huge) == huge


def test_order_among_kinds_and_subjects_is_kept() -> None:
    listed = [
        sample
        for number in range(40)
        for sample in (
            GpuSample(number, f"GPU-{number % 3}"),
            PhaseSpan("1.1", "eval", number, None if number % 2 else number + 5),
            ProcessSample(number, 7, 9, workers=tuple(WorkerSample(pid) for pid in range(number % 3))),
        )
    ]
    assert sealed_and_read(listed) == listed


def test_a_column_takes_a_byte_or_two_a_value() -> None:
    gathering = Gathering()
    kind = RECORDED[GpuSample]
    for number in range(600):
        sample = GpuSample(
            number * 10**8, "GPU-1", utilization_percent=float(number % 90), memory_used_bytes=61 * 10**9
        )
        gathering.add(number, [(kind.number, kind.row(sample))])
    (stream,) = gathering.streams()
    assert len(stream.packed()) < 600 * 2


def test_samples_of_an_older_version_get_defaults_and_lose_what_is_gone() -> None:
    kind = RECORDED[ProcessSample]
    name, fields = json.loads(stored_shape(kind))["record"]
    kept = [field for field in fields if field[0] not in ("libraries", "node_cores")]
    older = KindReader(json.dumps({"record": [name, [*kept, ["gone", {"list": ""}]]]}))
    row = [getattr(ProcessSample(5, 1, 2, command="train"), field) for field, _ in kept]
    assert older.from_plain([*row, ["x"]]) == ProcessSample(5, 1, 2, command="train")


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_changed_bytes_of_a_chunk_are_refused_or_change_nothing(place: int, flip: int) -> None:
    gathering = Gathering()
    kind = RECORDED[GpuSample]
    for number in range(30):
        gathering.add(number, [(kind.number, kind.row(GpuSample(number, "GPU-1", power_watts=number / 7)))])
    (stream,) = gathering.streams()
    whole = stream.packed()
    data = bytearray(whole)
    data[place % len(data)] ^= flip
    try:
        read = list(samples_of_chunk(READERS[kind.number], 30, bytes(data)))
    except DamagedError:
        read = None
    assert read in (None, list(samples_of_chunk(READERS[kind.number], 30, whole)))


def test_a_chunk_that_inflates_without_end_is_refused() -> None:
    import zlib

    from gpuwatch.recording import chunks

    bomb = zlib.compress(b"\0" * (chunks._MOST_BYTES + 1))
    with pytest.raises(DamagedError):
        list(samples_of_chunk(READERS[1], 1, bomb))


def test_arrivals_tell_which_rows_came_in_a_span() -> None:
    arrivals = Arrivals.unpacked(Arrivals([10, 20, 20, 30], [2, 1, 3, 1]).packed())
    assert list(arrivals.places(10, 20)) == [2, 3, 4, 5]
    assert list(arrivals.places(0, 30)) == list(range(7))
    assert not arrivals.places(30, 40)
