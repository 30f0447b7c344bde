"""The history of one GPU: its polls, the driver's rings, what its links repeated, and windows cut from all that."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from gpuwatch import metrics
from gpuwatch.samples import GpuFacts, GpuHealth, GpuLost, GpuSample, GpuStatus, NvmlState, XidEvent
from gpuwatch.timeline.columns import NAN, SECOND_NS, Odometer, Table, ValueTiers
from gpuwatch.timeline.times import Span, outside, united
from gpuwatch.timeline.windows import GPU_DISTRIBUTIONS, GpuWindow, LinkErrors, Stats, known, stats

_LINK_COUNTERS = ("pcie_replays", "nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries")
_LINK_SPAN_NS = 60 * SECOND_NS
"""Limits are per minute: a single replay between two readings 30 s apart is no rate."""
_READINGS_KEPT = 64


class _LinkReading(NamedTuple):
    time_ns: int
    totals: tuple[float, ...]


class LinkLog:
    """The counters of some minutes, and the most links that were ever up."""

    __slots__ = ("_active", "_meters", "_most_active", "_readings")

    def __init__(self) -> None:
        self._readings: deque[_LinkReading] = deque(maxlen=_READINGS_KEPT)
        self._meters = {name: Odometer() for name in _LINK_COUNTERS}
        self._most_active: int | None = None
        self._active: int | None = None

    def add(self, health: GpuHealth) -> None:
        """Takes one reading of the 30 s lane."""
        totals = tuple(meter.read(getattr(health, name)) for name, meter in self._meters.items())
        self._readings.append(_LinkReading(health.time_ns, totals))
        self._active = health.nvlink_active
        if health.nvlink_active is not None:
            self._most_active = max(self._most_active or 0, health.nvlink_active)

    def errors(self) -> LinkErrors | None:
        """The newest minute, or the little more that readings 30 s apart need to span one; None before it is over."""
        if not self._readings:
            return None
        newest = self._readings[-1]
        first = next((old for old in reversed(self._readings) if newest.time_ns - old.time_ns >= _LINK_SPAN_NS), None)
        seconds = (newest.time_ns - first.time_ns) / SECOND_NS if first else 0.0
        gains = dict.fromkeys(_LINK_COUNTERS, NAN)
        if first is not None:
            pairs = zip(first.totals, newest.totals, strict=True)
            gains = {name: after - before for name, (before, after) in zip(_LINK_COUNTERS, pairs, strict=True)}
        lost = None if self._active is None or self._most_active is None else self._most_active - self._active
        if first is None and lost is None:
            return None
        known = {name: None if gain != gain else gain for name, gain in gains.items()}
        replays, crc = known["pcie_replays"], known["nvlink_crc_errors"]
        return LinkErrors(
            seconds=seconds,
            pcie_replays_per_minute=None if replays is None else 60.0 * replays / seconds,
            nvlink_crc_errors_per_second=None if crc is None else crc / seconds,
            nvlink_replays=_whole(known["nvlink_replays"]),
            nvlink_recoveries=_whole(known["nvlink_recoveries"]),
            nvlink_lost=lost,
        )


def _whole(gain: float | None) -> int | None:
    return None if gain is None else round(gain)


RAW_NS = 600 * SECOND_NS
_MOST_POLLS = 6_000  # 10 min at 10 Hz, the fastest --interval
_MOST_RING_ROWS = 8_192  # 10 min of a ring of 7 values a second, and 80 s of the fastest seen (100 a second)
_MARK_NS = 60 * SECOND_NS
_DAY_NS = 24 * 3600 * SECOND_NS
_SPACINGS_KEPT = 128
_XIDS_KEPT = 256

_WINDOWED = tuple(metric.name for metric in metrics.GPU_GAUGES if metric.windowed)
_COUNTERS = tuple(metrics.GPU_COUNTERS)
_CHARTED = tuple(metric.name for metric in metrics.charted("gpu"))

REASON_IDLE = 0x1
REASON_POWER = 0x4
REASON_HARDWARE = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40
REASON_POWER_BRAKE = 0x80
SLOWED = REASON_POWER | REASON_HARDWARE | REASON_SW_THERMAL | REASON_HW_THERMAL | REASON_POWER_BRAKE
NO_REASONS_KNOWN = -1


class Throttle(NamedTuple):
    """A cause of lower clocks: its counter of nanoseconds, its bit among the event reasons, and a word for it."""

    counter: str
    bit: int
    word: str


THROTTLES = {
    "power": Throttle("throttled_power_ns", REASON_POWER, "power"),
    "sw-thermal": Throttle("throttled_sw_thermal_ns", REASON_SW_THERMAL, "thermal"),
    "hw-thermal": Throttle("throttled_hw_thermal_ns", REASON_HW_THERMAL, "thermal"),
    "power-brake": Throttle("throttled_power_brake_ns", REASON_POWER_BRAKE, "power brake"),
}

# A poll is taken up 10 times a second for each GPU, and 6,000 times when a replay begins.
_READINGS = attrgetter(*(metric.name for metric in metrics.GPU_GAUGES))
_LIMITS = tuple((metric.low, metric.high) for metric in metrics.GPU_GAUGES)
_WINDOWED_VALUES = attrgetter(*_WINDOWED)
_TOTALS = attrgetter(*_COUNTERS)
_CHARTED_VALUES = attrgetter(*_CHARTED)
_DRAINED = attrgetter(*metrics.GPU_RINGS.values())

_IDLE_PERCENT, _USED_PERCENT = 1.0, 5.0  # idle from below the first until above the second: a display blinks
_LOADED_PERCENT = 50.0  # below it the clock may be down because there is nothing to do


class Ring:
    """The driver's own samples of one quantity, each kept once, whatever overlap the drains have."""

    __slots__ = ("_change_ns", "_changed_value", "_spacings", "rows")

    def __init__(self) -> None:
        self.rows = Table({"value": "f"}, max_age_ns=RAW_NS, max_rows=_MOST_RING_ROWS)
        self._change_ns: int | None = None
        self._changed_value = NAN
        self._spacings: deque[int] = deque(maxlen=_SPACINGS_KEPT)

    def drain(self, pairs: tuple[tuple[int, float], ...]) -> list[tuple[int, float]]:
        """Takes up what is newer than the newest known stamp, and returns that."""
        newest = self.rows.times[-1] if self.rows.times else -1
        new = [pair for pair in pairs if pair[0] > newest]
        for time_ns, value in new:
            self.rows.add(time_ns, (value,))
            if value != self._changed_value:
                if self._change_ns is not None:
                    self._spacings.append(time_ns - self._change_ns)
                self._change_ns, self._changed_value = time_ns, value
        return new

    def sensor_window_seconds(self) -> float | None:
        """How long the sensor averages, by the short end of the spacing between changed values.

        The tenth percentile, not the least: one early drain may split an interval.
        """
        if len(self._spacings) < 8:
            return None
        return sorted(self._spacings)[len(self._spacings) // 10] / SECOND_NS


class GpuHistory:
    """Everything known of one GPU, in the order of its polls."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.facts: GpuFacts | None = None
        self.latest: GpuSample | None = None
        self.latest_status: GpuStatus | None = None
        self.latest_health: GpuHealth | None = None
        self.links = LinkLog()
        self.lost: GpuLost | None = None
        self.seen_ns = 0
        self.dropped_values = 0
        self.xids: deque[XidEvent] = deque(maxlen=_XIDS_KEPT)
        self.rings = {name: Ring() for name in metrics.GPU_RINGS}
        columns = dict.fromkeys(_WINDOWED, "f") | dict.fromkeys(_COUNTERS, "d") | {"event_reasons": "q"}
        self.polls = Table(columns, max_age_ns=RAW_NS, max_rows=_MOST_POLLS)
        self.marks = Table(dict.fromkeys(_COUNTERS, "d"), max_age_ns=_DAY_NS, max_rows=_DAY_NS // _MARK_NS)
        self.tiers = {name: ValueTiers() for name in _CHARTED}
        self.odometers = [Odometer() for _ in _COUNTERS]
        self.cool_clocks: Counter[int] = Counter()
        self.idle_since_ns: int | None = None  # it has done nothing since; None also where utilization is unknown
        self.idle_when_found = False

    def add_facts(self, facts: GpuFacts) -> None:
        """Facts are read again after a driver reload; the newest count."""
        self.facts = facts
        self.seen_ns = max(self.seen_ns, facts.time_ns)

    def add_health(self, health: GpuHealth) -> None:
        """One poll of the 30 s lane."""
        self.latest_health = health
        self.links.add(health)

    def add_poll(self, sample: GpuSample) -> None:
        """One poll of the 1 s lane. It ends a loss; one that is not newer than the last is a repetition."""
        if self.latest is not None and sample.time_ns <= self.latest.time_ns:
            return
        sample = self._without_sentinels(sample)
        self._follow_use(sample)
        self.lost = None
        self.latest = sample
        self.seen_ns = sample.time_ns
        reasons = NO_REASONS_KNOWN if sample.event_reasons is None else sample.event_reasons
        totals = [meter.read(value) for meter, value in zip(self.odometers, _TOTALS(sample), strict=True)]
        readings = [NAN if value is None else value for value in _WINDOWED_VALUES(sample)]
        self.polls.add(sample.time_ns, [*readings, *totals, reasons])
        if not self.marks.times or sample.time_ns - self.marks.times[-1] >= _MARK_NS:
            self.marks.add(sample.time_ns, totals)
        self._add_to_tiers(sample)
        if reasons >= 0 and not reasons & (SLOWED | REASON_IDLE) and sample.sm_clock_mhz is not None:
            busy = sample.utilization_percent if sample.utilization_percent is not None else sample.sm_activity_percent
            if busy is not None and busy >= _LOADED_PERCENT:
                self.cool_clocks[round(sample.sm_clock_mhz)] += 1

    def _follow_use(self, sample: GpuSample) -> None:
        busy = sample.utilization_percent
        if busy is None or (self.latest is not None and sample.time_ns - self.latest.time_ns > _MARK_NS):
            self.idle_since_ns = None  # nobody knows what it did meanwhile
            if busy is None:
                return
        busiest = max((value for _, value in sample.utilization_ring), default=busy)
        if max(busy, busiest) > _USED_PERCENT:
            self.idle_since_ns = None
        elif self.idle_since_ns is None and max(busy, busiest) < _IDLE_PERCENT:
            self.idle_since_ns = sample.time_ns
            self.idle_when_found = self.latest is None

    @property
    def counter_resets(self) -> int:
        """How often any counter went backwards."""
        return sum(odometer.resets for odometer in self.odometers)

    def cool_clock_mhz(self) -> float | None:
        """The median clock under load while nothing slowed it down, over the whole session."""
        half, seen = self.cool_clocks.total() / 2, 0
        for clock in sorted(self.cool_clocks):
            seen += self.cool_clocks[clock]
            if seen >= half:
                return float(clock)
        return None

    def prune(self, now_ns: int) -> None:
        """Drops raw rows that are too old although no new ones push them out."""
        for table in (self.polls, *(ring.rows for ring in self.rings.values())):
            table.trim(now_ns)

    def _add_to_tiers(self, sample: GpuSample) -> None:
        """The rings where they were drained, for they hold what happened between the polls; else the poll."""
        drained = _DRAINED(sample)
        if not any(drained):
            for tiers, value in zip(self.tiers.values(), _CHARTED_VALUES(sample), strict=True):
                if value is not None:
                    tiers.add(sample.time_ns, value)
            return
        rings = {name: ring.drain(pairs) for (name, ring), pairs in zip(self.rings.items(), drained, strict=True)}
        for name, tiers in self.tiers.items():
            value = getattr(sample, name)
            pairs = rings.get(name) or ([] if value is None else [(sample.time_ns, value)])
            for time_ns, each in pairs:
                tiers.add(time_ns, each)

    def _without_sentinels(self, sample: GpuSample) -> GpuSample:
        if not any(_DRAINED(sample)):
            for value, (low, high) in zip(_READINGS(sample), _LIMITS, strict=True):
                if value is not None and not low <= value <= high:
                    break
            else:
                return sample
        wrong = {
            metric.name: None
            for metric in metrics.GPU_GAUGES
            if (value := getattr(sample, metric.name)) is not None and not metric.low <= value <= metric.high
        }
        rings = {ring: _plausible(getattr(sample, ring), metrics.GPU[name]) for name, ring in metrics.GPU_RINGS.items()}
        lost = sum(len(getattr(sample, name)) - len(pairs) for name, pairs in rings.items())
        if not wrong and not lost:
            return sample
        self.dropped_values += len(wrong) + lost
        reasons = dict.fromkeys(wrong, metrics.IMPOSSIBLE)
        return replace(sample, **wrong, **rings, unavailable={**sample.unavailable, **reasons})  # type: ignore[arg-type]


def _plausible(pairs: tuple[tuple[int, float], ...], metric: metrics.Metric) -> tuple[tuple[int, float], ...]:
    low, high = metric.low, metric.high
    return (
        pairs
        if all(low <= value <= high for _, value in pairs)
        else tuple(pair for pair in pairs if low <= pair[1] <= high)
    )


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a GPU. `waiting`: it was found and not yet polled."""

    word: Literal["live", "stale", "lost", "waiting"]
    reason: str | None = None
    since_ns: int | None = None


def status_of(history: GpuHistory, now_ns: int, interval_seconds: float, nvml: NvmlState | None) -> Status:
    """Live, or why not and since when.

    A poll is late by up to a tenth (its jitter) plus a slow call: a second and a half interval of silence are a fault.
    Where NVML itself says that it is silent, the first missed poll is.
    """
    if history.lost is not None:
        return Status("lost", history.lost.reason, history.lost.time_ns)
    heard_ns = history.latest.time_ns if history.latest else history.seen_ns
    silence = (now_ns - heard_ns) / SECOND_NS
    is_nvml_down = nvml is not None and nvml.status not in ("ok", "absent")
    patience = 1.25 * interval_seconds if is_nvml_down else 1.0 + 1.5 * interval_seconds
    if silence > patience:
        reason = nvml.reason if nvml is not None and is_nvml_down and nvml.reason else f"silent for {silence:.0f} s"
        return Status("stale", reason, heard_ns)
    return Status("live") if history.latest else Status("waiting")


USUAL_SENSOR_SECONDS = 1.0
"""What NVIDIA documents as the longest averaging of utilization; taken where the ring does not show it."""

_BASE_NS = 3 * SECOND_NS  # a counter reading this long before the window may still open it


def gpu_window(
    history: GpuHistory,
    now_ns: int,
    window_ns: int,
    status: Status,
    pauses: Sequence[Span],
    training_ns: int,
    xids: Sequence[XidEvent],
) -> GpuWindow:
    """One GPU over (now - window, now].

    Args:
        history: of a GPU whose facts are known.
        now_ns: the end of the window.
        window_ns: its length. Beyond the 10 min of raw samples, distributions are of one-second means, and shares
            of reason bits are those of the last 10 min.
        status: of the GPU.
        pauses: when the run on this GPU was not training.
        training_ns: where the run's own window begins, which slow steps stretch: so does the utilization in training.
        xids: of this GPU, whole session.
    """
    assert history.facts is not None
    start_ns = now_ns - window_ns
    utilization = _utilization_series(history, start_ns, now_ns)
    training = _training_series(history, now_ns, window_ns, utilization, training_ns, pauses)
    counters = _CounterDeltas(history, start_ns, now_ns)
    masks = _masks(history, start_ns, now_ns)
    health, facts = history.latest_health, history.facts
    return GpuWindow(
        facts=facts,
        window_seconds=_seen_ns(history, start_ns, now_ns) / SECOND_NS,
        status=status.word,
        status_reason=status.reason,
        status_since_ns=status.since_ns,
        latest=history.latest,
        latest_status=history.latest_status,
        latest_health=health,
        idle_since_ns=history.idle_since_ns,
        utilization=stats(value for _, value in utilization),
        train_utilization=stats(value for _, value in training),
        train_utilization_series=tuple(training),
        sensor_window_seconds=history.rings["utilization_percent"].sensor_window_seconds(),
        power_watts=_power(history, start_ns, now_ns),
        power_limit_watts=(health.power_limit_watts if health else None) or facts.power_limit_watts,
        energy_joules=counters.delta("energy_joules"),
        energy_seconds=counters.seconds("energy_joules"),
        sm_clock_cool_mhz=history.cool_clock_mhz(),
        pcie_rx_bytes_per_second=counters.rate("pcie_rx_bytes"),
        pcie_tx_bytes_per_second=counters.rate("pcie_tx_bytes"),
        throttle_shares=_throttle_shares(counters, masks),
        reason_bit_shares=_bit_shares(masks),
        reason_bit_events=_rising_edges(_masks(history, now_ns - RAW_NS, now_ns)),
        xids=tuple(xids),
        links=history.links.errors(),
        unavailable=_unavailable(history),
        **{name: _polled(history, name, start_ns, now_ns) for name in GPU_DISTRIBUTIONS},
    )


def recent_utilization(history: GpuHistory, start_ns: int, now_ns: int) -> list[float]:
    """The utilization values of a short window, from the ring where it is drained."""
    ring = _ring_values(history, history.rings["utilization_percent"], start_ns, now_ns)
    return list(ring) if ring is not None else known(_slice(history, "utilization_percent", start_ns, now_ns))


def recent_power(history: GpuHistory, start_ns: int, now_ns: int) -> list[float]:
    """The power readings of a short window, one per poll."""
    return known(_slice(history, "power_watts", start_ns, now_ns))


def _slice(history: GpuHistory, name: str, start_ns: int, now_ns: int) -> array[float]:
    return history.polls[name][history.polls.since(start_ns) : history.polls.until(now_ns)]


def _ring_values(history: GpuHistory, ring: Ring, start_ns: int, now_ns: int) -> array[float] | None:
    """The ring's values, unless it ran dry: a ring with fewer values than there were polls holds less than they do."""
    low, high = ring.rows.since(start_ns), ring.rows.until(now_ns)
    polls = history.polls.until(now_ns) - history.polls.since(start_ns)
    return ring.rows["value"][low:high] if high - low >= max(polls, 1) else None


def _utilization_series(history: GpuHistory, start_ns: int, now_ns: int) -> list[tuple[int, float]]:
    if not history.polls.reaches(start_ns):
        return _bucket_series(history, "utilization_percent", start_ns, now_ns)
    ring = history.rings["utilization_percent"]
    values = _ring_values(history, ring, start_ns, now_ns)
    if values is not None:
        return list(zip(ring.rows.times[ring.rows.since(start_ns) : ring.rows.until(now_ns)], values, strict=True))
    times = history.polls.times[history.polls.since(start_ns) : history.polls.until(now_ns)]
    polled = _slice(history, "utilization_percent", start_ns, now_ns)
    return [(time_ns, value) for time_ns, value in zip(times, polled, strict=True) if value == value]


def _bucket_series(history: GpuHistory, name: str, start_ns: int, now_ns: int) -> list[tuple[int, float]]:
    tier = history.tiers[name].seconds
    span = tier.span(start_ns, now_ns)
    first_ns = (tier.first + span.start) * tier.width_ns + tier.width_ns // 2
    means = tier.arrays["mean"][span]
    return [(first_ns + place * tier.width_ns, value) for place, value in enumerate(means) if value == value]


def _training_series(
    history: GpuHistory,
    now_ns: int,
    window_ns: int,
    whole: list[tuple[int, float]],
    training_ns: int,
    pauses: Sequence[Span],
) -> list[tuple[int, float]]:
    """Over the run's own window, without the samples that a pause overlaps: each looks back over one sensor window.

    A window that slow steps stretch to minutes is of one-second means.
    """
    is_stretched = training_ns < now_ns - window_ns
    series = _bucket_series(history, "utilization_percent", training_ns, now_ns) if is_stretched else whole
    if not pauses:
        return series
    seconds = history.rings["utilization_percent"].sensor_window_seconds() or USUAL_SENSOR_SECONDS
    sensor_ns = round(seconds * SECOND_NS)
    masked = united((start, end + sensor_ns) for start, end in pauses)
    return [series[place] for place in outside([time_ns for time_ns, _ in series], masked)]


def _power(history: GpuHistory, start_ns: int, now_ns: int) -> Stats | None:
    values = None
    if history.polls.reaches(start_ns):
        values = _ring_values(history, history.rings["power_watts"], start_ns, now_ns)
    return stats(values) if values is not None else _polled(history, "power_watts", start_ns, now_ns)


def _polled(history: GpuHistory, name: str, start_ns: int, now_ns: int) -> Stats | None:
    if name in history.tiers and not history.polls.reaches(start_ns):
        return history.tiers[name].stats(start_ns, now_ns)
    return stats(_slice(history, name, start_ns, now_ns))


class _CounterDeltas:
    """What the GPU's counters gained in the window, and over which time that was seen."""

    def __init__(self, history: GpuHistory, start_ns: int, now_ns: int) -> None:
        polls = history.polls
        low, high = polls.since(start_ns), polls.until(now_ns)
        if low and polls.times[low - 1] >= start_ns - _BASE_NS:
            low -= 1
        self._parts = [(polls, slice(low, high))]
        if not polls.reaches(start_ns):
            marks, first_ns = history.marks, polls.times[0] if polls.times else now_ns
            self._parts.insert(0, (marks, slice(marks.since(start_ns), marks.until(first_ns - 1))))

    def delta(self, name: str) -> float | None:
        """The gain; None with fewer than two readings."""
        seen = self._ends(name)
        return seen[1] if seen else None

    def seconds(self, name: str) -> float | None:
        """From the first to the last reading; None with fewer than two."""
        seen = self._ends(name)
        return seen[0] if seen else None

    def rate(self, name: str) -> float | None:
        """The gain per second."""
        seen = self._ends(name)
        return seen[1] / seen[0] if seen else None

    def _ends(self, name: str) -> tuple[float, float] | None:
        """Seconds between the first and the last reading, and the gain."""
        readings = [
            (time_ns, total)
            for table, rows in self._parts
            for time_ns, total in zip(table.times[rows], table[name][rows], strict=True)
            if total == total
        ]
        if len(readings) < 2:
            return None
        (first_ns, first), (last_ns, last) = readings[0], readings[-1]
        return (last_ns - first_ns) / SECOND_NS, last - first


def _masks(history: GpuHistory, start_ns: int, now_ns: int) -> list[int]:
    polls = history.polls
    return [
        mask for mask in polls["event_reasons"][polls.since(start_ns) : polls.until(now_ns)] if mask != NO_REASONS_KNOWN
    ]


def _throttle_shares(counters: _CounterDeltas, masks: list[int]) -> Mapping[str, float]:
    """By counter, which cannot miss an episode between two polls; else by the mask."""
    shares = {}
    for cause, (counter, bit, _) in THROTTLES.items():
        rate = counters.rate(counter)
        if rate is not None:
            shares[cause] = min(1.0, rate / SECOND_NS)
        elif masks:
            shares[cause] = sum(1 for mask in masks if mask & bit) / len(masks)
    return shares


def _bit_shares(masks: list[int]) -> Mapping[int, float]:
    counts: Counter[int] = Counter()
    for mask, count in Counter(masks).items():
        for bit in _bits(mask):
            counts[bit] += count
    return {bit: count / len(masks) for bit, count in sorted(counts.items())}


def _rising_edges(masks: list[int]) -> Mapping[int, int]:
    counts: Counter[int] = Counter()
    for before, after in pairwise([0, *masks]):
        if before != after:
            counts.update(_bits(after & ~before))
    return dict(sorted(counts.items()))


def _bits(mask: int) -> list[int]:
    return [1 << place for place in range(mask.bit_length()) if mask >> place & 1]


def _seen_ns(history: GpuHistory, start_ns: int, now_ns: int) -> int:
    """How much of the window this GPU has been watched."""
    first = [rows.times[0] for rows in (history.polls, history.rings["utilization_percent"].rows) if rows.times]
    return now_ns - max(start_ns, min(first)) if first and history.polls.reaches(start_ns) else now_ns - start_ns


def _unavailable(history: GpuHistory) -> Mapping[str, str]:
    reasons: dict[str, str] = {}
    for part in (history.facts, history.latest, history.latest_status, history.latest_health):
        if part is not None:
            reasons.update(part.unavailable)
    return reasons
