"""The figures of minutes and of hours of them: what they are derived from, and what is put together from them."""

from __future__ import annotations

import pickle
import random
import statistics
from itertools import pairwise
from typing import Literal

import pytest

from gpuwatch.recording import rollups
from gpuwatch.recording.chunks import KINDS, Gathering
from gpuwatch.recording.columns import DamagedError
from gpuwatch.recording.minutes import Minutes
from gpuwatch.recording.rollups import HOUR_NS, Hour, MinuteColumns, pack_hour, pack_minute, unpack_minute
from gpuwatch.recording.schema import Rollup
from gpuwatch.recording.writer import Segment
from gpuwatch.samples import (
    BatchCount,
    GpuGap,
    GpuSample,
    PhaseSpan,
    ProcessSample,
    Role,
    Sample,
    StackTally,
    StepEnd,
    TrainerEnded,
)
from gpuwatch.timeline.columns import MINUTE_NS

SECOND_NS = 1_000_000_000
TRAINER = "4711.99"


def gathered(minutes: Minutes, samples: list[Sample]) -> None:
    gathering = Gathering()
    for time_ns, sample in enumerate(samples):
        kind = KINDS[type(sample)]
        gathering.add(time_ns, [(kind.number, kind.row(sample))])
    for stream in gathering.streams():
        minutes.take(stream)


def figures(*samples: Sample) -> dict[tuple[str, str], Rollup]:
    minutes = Minutes()
    gathered(minutes, list(samples))
    return {(row.subject, row.metric): row for row in minutes.finished(0)}


def test_a_gauge_is_counted_without_what_is_unknown() -> None:
    polls = [GpuSample(n * SECOND_NS, "GPU-1", temperature_celsius=value) for n, value in enumerate((50.0, None, 70.0))]
    found = figures(*polls, GpuSample(0, "GPU-2"))
    row = found["GPU-1", "temperature_celsius"]
    assert row[3:] == (2, 50.0, 60.0, 70.0, 60.0, 69.0, pytest.approx(200**0.5), 51.0)
    assert not any(subject == "GPU-2" for subject, _ in found)


def test_the_drivers_ring_counts_in_place_of_polls_and_each_value_once() -> None:
    polls = [
        GpuSample(1, "G", utilization_percent=1.0, utilization_ring=((1, 10.0), (2, 20.0))),
        GpuSample(2, "G", utilization_percent=1.0, utilization_ring=((2, 20.0), (3, 30.0))),
        GpuSample(3, "G", utilization_percent=60.0),
    ]
    row = figures(*polls)["G", "utilization_percent"]
    assert (row.count, row.mean, row.max) == (4, 30.0, 60.0)


def test_counters_give_what_the_minute_added_and_a_reset_gives_nothing() -> None:
    joules = (1000.0, 1100.0, 50.0, 80.0)
    polls = [
        GpuSample(n * SECOND_NS, "G", energy_joules=value, pcie_rx_bytes=n * 100, throttled_power_ns=n * SECOND_NS // 4)
        for n, value in enumerate(joules)
    ]
    found = figures(*polls)
    assert found["G", "energy_joules"].mean == 130.0 and found["G", "energy_joules"].count == 1
    assert found["G", "pcie_rx_bytes_per_second"].mean == 100.0
    assert found["G", "throttled_power_share"].mean == 0.25


def test_a_counter_goes_on_from_the_minute_before_and_over_parts_of_one() -> None:
    minutes = Minutes()
    gathered(minutes, [GpuSample(0, "G", energy_joules=0.0), GpuSample(SECOND_NS, "G", energy_joules=10.0)])
    gathered(minutes, [GpuSample(2 * SECOND_NS, "G", energy_joules=30.0)])
    assert [row.mean for row in minutes.finished(0)] == [30.0]
    gathered(minutes, [GpuSample(3 * SECOND_NS, "G", energy_joules=35.0)])
    assert [row.mean for row in minutes.finished(60)] == [5.0]


def test_steps_give_shares_of_sums_and_leave_phases_out() -> None:
    steps = [
        StepEnd(TRAINER, 1, 0, SECOND_NS, 0.5, samples=64, batches=2),
        StepEnd(TRAINER, 2, SECOND_NS, 5 * SECOND_NS, 0.5, samples=64, batches=2, phase_seconds=1.0),
        StepEnd(TRAINER, 3, 5 * SECOND_NS, 6 * SECOND_NS, None),
    ]
    found = figures(*steps, GpuGap(TRAINER, 1, 0.25))
    assert found[TRAINER, "step_seconds"].count == 3
    assert found[TRAINER, "step_seconds"].mean * 3 == pytest.approx(5.0)
    wait = found[TRAINER, "wait_share"]
    assert (wait.count, wait.mean) == (2, pytest.approx(0.25)) and wait.max == 0.5
    assert found[TRAINER, "step_samples"].mean == 64.0
    assert found[TRAINER, "step_batches"].mean * 3 == 5


def test_what_is_seen_from_outside_counts_by_stack_samples() -> None:
    tallies = [
        StackTally(TRAINER, 0, SECOND_NS, 90, {"wait": 45, "forward": 45}),
        StackTally(TRAINER, SECOND_NS, 2 * SECOND_NS, 10, {"eval": 10}),
    ]
    counts = [BatchCount(TRAINER, n, loader, "train", 5 * n) for n in range(3) for loader in (1, 2)]
    found = figures(*tallies, *counts, BatchCount(TRAINER, 9, 3, "eval", 99))
    share = found[TRAINER, "stack_wait_share"]
    assert (share.count, share.mean) == (100, 0.45)
    assert (found[TRAINER, "stack_wait_train_share"].count, found[TRAINER, "stack_wait_train_share"].mean) == (90, 0.5)
    batches = found[TRAINER, "counted_batches"]
    assert (batches.count, batches.mean) == (1, 20.0)
    assert not any(metric.startswith("counted_batches ") for _, metric in found)


def test_batches_of_loaders_that_begin_over_and_of_new_ones_all_count() -> None:
    readings = [(0, 1, 50), (1, 1, 54), (2, 1, 3), (3, 2, 2), (4, 2, 6)]
    found = figures(*(BatchCount(TRAINER, n * SECOND_NS, loader, "train", made) for n, loader, made in readings))
    assert found[TRAINER, "counted_batches"].mean == 4 + 3 + 2 + 4
    assert found[TRAINER, "counted_seconds"].mean == 4


def test_loaders_of_unknown_role_count_while_none_is_known_to_train() -> None:
    roles: list[tuple[int, Role]] = [(1, "unknown"), (1, "unknown"), (2, "train"), (1, "unknown")]
    counts = [BatchCount(TRAINER, n, loader, role, 10 * n) for n, (loader, role) in enumerate(roles)]
    assert figures(*counts)[TRAINER, "counted_batches"].mean == 10 + 20


def test_a_stop_is_no_part_of_the_evaluation_that_it_lay_in() -> None:
    states = [(10, "R"), (11, "T"), (20, "T"), (21, "R")]
    looks = [ProcessSample(n * SECOND_NS, 1, 7, state=state) for n, state in states]
    found = figures(*looks, PhaseSpan("1.7", "eval", 5 * SECOND_NS, 30 * SECOND_NS))
    assert found["1.7", "eval_phase_seconds"].mean == 25 - 9.5
    assert found["1.7", "stopped_phase_seconds"].mean == 9.5


def test_phases_that_ended_have_their_lengths() -> None:
    found = figures(
        PhaseSpan(TRAINER, "eval", 0, 2 * SECOND_NS),
        PhaseSpan(TRAINER, "eval", 5 * SECOND_NS, None),
        PhaseSpan(TRAINER, "checkpoint", 0, SECOND_NS),
    )
    assert (found[TRAINER, "eval_phase_seconds"].count, found[TRAINER, "eval_phase_seconds"].mean) == (1, 2.0)
    assert found[TRAINER, "checkpoint_phase_seconds"].mean == 1.0


def test_a_sensor_that_says_infinity_is_left_out() -> None:
    polls = [GpuSample(n, "G", sm_clock_mhz=value) for n, value in enumerate((float("inf"), float("nan"), 1500.0))]
    assert figures(*polls)["G", "sm_clock_mhz"][3:6] == (1, 1500.0, 1500.0)


def test_a_minute_survives_being_packed() -> None:
    import zlib

    rows = list(figures(*(GpuSample(n, "G", power_watts=n * 1.5, temperature_celsius=50.0) for n in range(9))).values())
    data = pack_minute(rows)
    assert [row._replace(sigma=0) for row in unpack_minute(0, data, zlib.crc32(data))] == [
        row._replace(sigma=0) for row in rows
    ]


def size_of(minutes: Minutes) -> int:
    """What is kept from one minute to the next, in bytes."""
    return len(pickle.dumps(minutes))


def steps_of(trainer: str, first: int, count: int) -> list[Sample]:
    ends = [number * SECOND_NS // 10 for number in range(first, first + count + 1)]
    return [StepEnd(trainer, n + 1, start, end, 0.01) for n, (start, end) in enumerate(pairwise(ends), first)]


@pytest.mark.parametrize("how", ["exited", "killed"])
def test_trainers_that_ended_are_forgotten_with_their_minute(how: Literal["exited", "killed"]) -> None:
    minutes = Minutes()
    sizes = []
    for number in range(20):
        trainer = f"{1000 + number}.7"
        gathered(minutes, [*steps_of(trainer, 0, 500), TrainerEnded(trainer, 60 * SECOND_NS, how)])
        assert {row.subject for row in minutes.finished(number)} == {trainer}
        sizes.append(size_of(minutes))
    assert sizes[-1] == sizes[0] < 1_000


def test_a_trainer_whose_link_was_lost_is_kept_for_ten_minutes_and_its_steps_count_once() -> None:
    minutes = Minutes()
    steps = steps_of(TRAINER, 0, 500)
    gathered(minutes, [*steps, TrainerEnded(TRAINER, 60 * SECOND_NS, "lost")])
    minutes.finished(0)
    for number in range(1, 6):
        minutes.finished(number)
    gathered(minutes, steps)
    assert not [row for row in minutes.finished(6) if row.metric == "step_seconds"]
    kept = size_of(minutes)
    for number in range(7, 18):
        minutes.finished(number)
    assert size_of(minutes) < kept / 10


def test_counters_of_loaders_that_are_gone_are_forgotten_after_an_hour() -> None:
    minutes = Minutes()
    sizes = []
    for number in range(200):
        now_ns = number * 60 * SECOND_NS
        gathered(minutes, [BatchCount(f"{number + 1000}.7", now_ns + n, 1, "train", n) for n in range(3)])
        minutes.finished(number)
        sizes.append(size_of(minutes))
    assert max(sizes[100:]) - min(sizes[100:]) < 500
    assert sizes[-1] < 2 * sizes[50]


BEGIN_NS = 7 * HOUR_NS


def minute(minute_ns: int, *samples: Sample) -> list[Rollup]:
    segment, minutes = Segment(1), Minutes()
    segment.add(minute_ns, samples)
    segment.seal(minutes)
    return minutes.finished(minute_ns)


def polls(uuid: str, minute_ns: int, loads: list[float]) -> list[GpuSample]:
    return [
        GpuSample(minute_ns + n * 1_000_000, uuid, utilization_percent=load, power_watts=load / 3)
        for n, load in enumerate(loads)
    ]


def packed_hour(minutes: list[list[Rollup]]) -> Hour:
    data = pack_hour(BEGIN_NS, minutes)
    assert data is not None
    return Hour(BEGIN_NS, data)


def columns(hour: Hour, metric: str, start_ns: int, end_ns: int) -> dict[str, MinuteColumns]:
    return {subject: MinuteColumns([part]) for subject, part in hour.parts(metric, start_ns, end_ns)}


def an_hour(rng: random.Random) -> tuple[list[list[Rollup]], list[float]]:
    minutes, every = [], []
    for number in range(60):
        begin_ns = BEGIN_NS + number * MINUTE_NS
        loads = [max(0.0, min(100.0, rng.gauss(90 if number < 40 else 30, 6))) for _ in range(100)]
        every += loads
        other = polls("GPU-2", begin_ns, [50.0]) if number > 30 else []  # came later
        minutes.append(minute(begin_ns, *polls("GPU-1", begin_ns, loads), *other))
    return minutes, every


def test_an_hour_gives_back_the_minutes_it_was_made_of() -> None:
    minutes, _ = an_hour(random.Random(1))
    hour = packed_hour(minutes)
    for metric in ("utilization_percent", "power_watts"):
        found = columns(hour, metric, BEGIN_NS - 1, BEGIN_NS + HOUR_NS)
        rows = [row for subject, own in found.items() for row in own.rows(subject, metric)]
        wanted = {(row.minute_ns, row.subject): row for own in minutes for row in own if row.metric == metric}
        assert len(rows) == len(wanted) == 60 + 29
        for row in rows:
            assert row[3:] == pytest.approx(wanted[row.minute_ns, row.subject][3:], rel=1e-6, abs=1e-9)
            assert row.count == wanted[row.minute_ns, row.subject].count


def test_part_of_an_hour_is_the_minutes_that_touch_it() -> None:
    hour = packed_hour(an_hour(random.Random(1))[0])
    start_ns = BEGIN_NS + 10 * MINUTE_NS + 1
    found = columns(hour, "power_watts", start_ns, start_ns + 5 * MINUTE_NS)
    assert set(found) == {"GPU-1"}
    numbers = [(at - BEGIN_NS) // MINUTE_NS for at in found["GPU-1"].column("minute_ns")]
    assert numbers == [10, 11, 12, 13, 14, 15]


def test_percentiles_of_an_hour_are_those_of_its_values() -> None:
    minutes, every = an_hour(random.Random(2))
    whole = columns(packed_hour(minutes), "utilization_percent", BEGIN_NS, BEGIN_NS + HOUR_NS)["GPU-1"]
    assert whole.parts[0].marks is not None
    cuts = statistics.quantiles(every, n=100)
    for share in (5, 50, 95):
        assert rollups.quantiles(whole, (share / 100,))[0] == pytest.approx(cuts[share - 1], abs=2.5)
    swing = rollups.swing(whole)
    assert swing is not None
    assert swing.mean == pytest.approx(statistics.mean(every), rel=1e-6)
    assert swing.sigma == pytest.approx(statistics.stdev(every), rel=1e-5)


def test_percentiles_of_a_part_of_an_hour_are_those_of_its_minutes() -> None:
    hour = packed_hour(an_hour(random.Random(2))[0])
    part = columns(hour, "utilization_percent", BEGIN_NS + 45 * MINUTE_NS, BEGIN_NS + 55 * MINUTE_NS)["GPU-1"]
    assert part.parts[0].marks is None
    assert rollups.quantiles(part, (0.5,))[0] == pytest.approx(30, abs=1.5)


def test_a_share_that_is_all_zero_has_a_percentile_of_zero() -> None:
    rows = [minute(BEGIN_NS + n * MINUTE_NS, *polls("G", BEGIN_NS, [0.0] * 3 + [70.0] * 7)) for n in range(20)]
    found = columns(packed_hour(rows), "utilization_percent", BEGIN_NS, BEGIN_NS + HOUR_NS)["G"]
    assert rollups.quantiles(found, (0.05,))[0] == 0.0


def test_a_changed_byte_of_an_hour_is_noticed() -> None:
    data = pack_hour(BEGIN_NS, [minute(BEGIN_NS, *polls("G", BEGIN_NS, [1.0, 2.0, 9.0]))])
    assert data is not None
    for place in range(len(data)):
        damaged = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]
        with pytest.raises((DamagedError, ValueError)):
            hour = Hour(BEGIN_NS, damaged)
            for metric in hour.metrics:
                list(hour.parts(metric, 0, 2 * BEGIN_NS))
