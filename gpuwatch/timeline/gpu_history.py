"""The history of one GPU: polls and the driver's rings in full, charted metrics in tiers, counters across resets."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from operator import attrgetter

from gpuwatch import metrics
from gpuwatch.samples import GpuFacts, GpuHealth, GpuLost, GpuSample, GpuStatus, XidEvent
from gpuwatch.timeline.columns import NAN, Odometer, Table
from gpuwatch.timeline.link_log import LinkLog
from gpuwatch.timeline.tiers import SECOND_NS, ValueTiers

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

# A poll is taken up 10 times a second for each GPU, and 6 000 times when a replay begins.
_READINGS = attrgetter(*(metric.name for metric in metrics.GPU_GAUGES))
_LIMITS = tuple((metric.low, metric.high) for metric in metrics.GPU_GAUGES)
_WINDOWED_VALUES = attrgetter(*_WINDOWED)
_TOTALS = attrgetter(*_COUNTERS)
_CHARTED_VALUES = attrgetter(*_CHARTED)
_DRAINED = attrgetter(*metrics.GPU_RINGS.values())

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
