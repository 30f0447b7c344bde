"""What one GPU did in a window: the GpuWindow of a history."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpuwatch.samples import XidEvent
from gpuwatch.timeline.gpu_history import (
    NO_REASONS_KNOWN,
    RAW_NS,
    REASON_HW_THERMAL,
    REASON_POWER,
    REASON_POWER_BRAKE,
    REASON_SW_THERMAL,
    GpuHistory,
    Ring,
)
from gpuwatch.timeline.gpu_status import Status
from gpuwatch.timeline.spans import Span, outside, united
from gpuwatch.timeline.stats import known, stats
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import GpuWindow, Stats

USUAL_SENSOR_SECONDS = 1.0
"""What NVIDIA documents as the longest averaging of utilization; taken where the ring does not show it."""

_CAUSES = {
    "power": ("throttled_power_ns", REASON_POWER),
    "sw-thermal": ("throttled_sw_thermal_ns", REASON_SW_THERMAL),
    "hw-thermal": ("throttled_hw_thermal_ns", REASON_HW_THERMAL),
    "power-brake": ("throttled_power_brake_ns", REASON_POWER_BRAKE),
}
_BASE_NS = 3 * SECOND_NS  # a counter reading this long before the window may still open it


def gpu_window(
    history: GpuHistory, now_ns: int, window_ns: int, status: Status, pauses: Sequence[Span], xids: Sequence[XidEvent]
) -> GpuWindow:
    """One GPU over (now - window, now].

    Args:
        history: of a GPU whose facts are known.
        now_ns: the end of the window.
        window_ns: its length. Beyond the 10 min of raw samples, distributions are of one-second means, and shares
            of reason bits are those of the last 10 min.
        status: how the GPU stands.
        pauses: when the run on this GPU was not training.
        xids: of this GPU, whole session.
    """
    assert history.facts is not None
    start_ns = now_ns - window_ns
    utilization = _utilization_series(history, start_ns, now_ns)
    training = _training_series(history, utilization, pauses)
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
        utilization=stats(value for _, value in utilization),
        train_utilization=stats(value for _, value in training),
        train_utilization_series=tuple(training),
        sensor_window_seconds=history.rings["utilization_percent"].sensor_window_seconds(),
        power_watts=_power(history, start_ns, now_ns),
        power_limit_watts=(health.power_limit_watts if health else None) or facts.power_limit_watts,
        energy_joules=counters.delta("energy_joules"),
        memory_used_bytes=_polled(history, "memory_used_bytes", start_ns, now_ns),
        temperature_celsius=_polled(history, "temperature_celsius", start_ns, now_ns),
        sm_clock_mhz=_polled(history, "sm_clock_mhz", start_ns, now_ns),
        sm_clock_cool_mhz=history.cool_clock_mhz(),
        sm_activity_percent=_polled(history, "sm_activity_percent", start_ns, now_ns),
        tensor_activity_percent=_polled(history, "tensor_activity_percent", start_ns, now_ns),
        pcie_rx_bytes_per_second=counters.rate("pcie_rx_bytes"),
        pcie_tx_bytes_per_second=counters.rate("pcie_tx_bytes"),
        throttle_shares=_throttle_shares(counters, masks),
        reason_bit_shares=_bit_shares(masks),
        reason_bit_events=_rising_edges(_masks(history, now_ns - RAW_NS, now_ns)),
        xids=tuple(xids),
        links=history.links.errors(),
        unavailable=_unavailable(history),
    )


def recent_utilization(history: GpuHistory, start_ns: int, now_ns: int) -> list[float]:
    """The utilization values of a short window, from the ring where it is drained."""
    ring = _ring_values(history, history.rings["utilization_percent"], start_ns, now_ns)
    return list(ring) if ring is not None else known(_slice(history, "utilization_percent", start_ns, now_ns))


def _slice(history: GpuHistory, name: str, start_ns: int, now_ns: int) -> array[float]:
    return history.polls[name][history.polls.since(start_ns) : history.polls.until(now_ns)]


def _ring_values(history: GpuHistory, ring: Ring, start_ns: int, now_ns: int) -> array[float] | None:
    """The ring's values, unless it ran dry: a ring with fewer values than there were polls tells less than they do."""
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
    history: GpuHistory, series: list[tuple[int, float]], pauses: Sequence[Span]
) -> list[tuple[int, float]]:
    """Without the samples that a pause overlaps: each one looks back over one sensor window."""
    if not pauses:
        return series
    seconds = history.rings["utilization_percent"].sensor_window_seconds() or USUAL_SENSOR_SECONDS
    window_ns = round(seconds * SECOND_NS)
    masked = united((start, end + window_ns) for start, end in pauses)
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
    for cause, (counter, bit) in _CAUSES.items():
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
