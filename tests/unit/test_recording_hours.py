"""Hours of minutes: the same figures as the minutes', by column, and percentiles that hold for all of them."""

from __future__ import annotations

import random
import statistics

import pytest

from gpuwatch.recording import pooled
from gpuwatch.recording.columns import DamagedError
from gpuwatch.recording.minutes import Minutes
from gpuwatch.recording.pooled import MinuteColumns
from gpuwatch.recording.tiers import HOUR_NS, Hour, pack_hour
from gpuwatch.recording.types import Rollup
from gpuwatch.recording.writer import Segment
from gpuwatch.samples import GpuSample, Sample
from gpuwatch.timeline.tiers import MINUTE_NS

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


def gathered(minutes: list[list[Rollup]]) -> Hour:
    data = pack_hour(BEGIN_NS, minutes)
    assert data is not None
    return Hour(BEGIN_NS, data)


def columns(hour: Hour, metric: str, start_ns: int, end_ns: int) -> dict[str, MinuteColumns]:
    return {subject: MinuteColumns([part]) for subject, part in hour.parts(metric, start_ns, end_ns, None)}


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
    hour = gathered(minutes)
    for metric in ("utilization_percent", "power_watts"):
        found = columns(hour, metric, BEGIN_NS - 1, BEGIN_NS + HOUR_NS)
        rows = [row for subject, own in found.items() for row in own.rows(subject, metric)]
        wanted = {(row.minute_ns, row.subject): row for own in minutes for row in own if row.metric == metric}
        assert len(rows) == len(wanted) == 60 + 29
        for row in rows:
            assert row[3:] == pytest.approx(wanted[row.minute_ns, row.subject][3:], rel=1e-6, abs=1e-9)
            assert row.count == wanted[row.minute_ns, row.subject].count


def test_part_of_an_hour_is_the_minutes_that_touch_it() -> None:
    hour = gathered(an_hour(random.Random(1))[0])
    start_ns = BEGIN_NS + 10 * MINUTE_NS + 1
    found = columns(hour, "power_watts", start_ns, start_ns + 5 * MINUTE_NS)
    assert set(found) == {"GPU-1"}
    numbers = [(at - BEGIN_NS) // MINUTE_NS for at in found["GPU-1"].column("minute_ns")]
    assert numbers == [10, 11, 12, 13, 14, 15]


def test_percentiles_of_an_hour_are_those_of_its_values() -> None:
    minutes, every = an_hour(random.Random(2))
    whole = columns(gathered(minutes), "utilization_percent", BEGIN_NS, BEGIN_NS + HOUR_NS)["GPU-1"]
    assert whole.parts[0].marks is not None
    cuts = statistics.quantiles(every, n=100)
    for share in (5, 50, 95):
        assert pooled.quantile(whole, share / 100) == pytest.approx(cuts[share - 1], abs=2.5)
    swing = pooled.swing(whole)
    assert swing is not None
    assert swing.mean == pytest.approx(statistics.mean(every), rel=1e-6)
    assert swing.sigma == pytest.approx(statistics.stdev(every), rel=1e-5)


def test_percentiles_of_a_part_of_an_hour_are_those_of_its_minutes() -> None:
    hour = gathered(an_hour(random.Random(2))[0])
    part = columns(hour, "utilization_percent", BEGIN_NS + 45 * MINUTE_NS, BEGIN_NS + 55 * MINUTE_NS)["GPU-1"]
    assert part.parts[0].marks is None
    assert pooled.quantile(part, 0.5) == pytest.approx(30, abs=1.5)


def test_a_share_that_is_all_zero_has_a_percentile_of_zero() -> None:
    rows = [minute(BEGIN_NS + n * MINUTE_NS, *polls("G", BEGIN_NS, [0.0] * 3 + [70.0] * 7)) for n in range(20)]
    found = columns(gathered(rows), "utilization_percent", BEGIN_NS, BEGIN_NS + HOUR_NS)["G"]
    assert pooled.quantile(found, 0.05) == 0.0


def test_a_changed_byte_of_an_hour_is_noticed() -> None:
    data = pack_hour(BEGIN_NS, [minute(BEGIN_NS, *polls("G", BEGIN_NS, [1.0, 2.0, 9.0]))])
    assert data is not None
    for place in range(len(data)):
        damaged = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]
        with pytest.raises((DamagedError, ValueError)):
            hour = Hour(BEGIN_NS, damaged)
            for metric in hour.metrics:
                list(hour.parts(metric, 0, 2 * BEGIN_NS, None))
