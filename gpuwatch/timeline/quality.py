"""How well gpuwatch itself measured: gaps between polls, lost records, what asking costs."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import quantiles

from gpuwatch.samples import LinkLoss, NvmlState
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.tiers import SECOND_NS, Buckets
from gpuwatch.timeline.windows import Quality

_KEPT_SECONDS = 900
_STATES_KEPT = 1_024


class QualityLog:
    """Counts what arrives and what is known to be lost."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        counts = dict.fromkeys(("received", "dropped", "malformed"), ("Q", 0))
        self._records = Buckets(SECOND_NS, _KEPT_SECONDS, counts)
        self._states: deque[NvmlState] = deque(maxlen=_STATES_KEPT)

    def received(self, time_ns: int) -> None:
        """One sample that came of a training process's records."""
        place = self._records.place(time_ns)
        if place >= 0:
            self._records.arrays["received"][place] += 1

    def lost(self, loss: LinkLoss) -> None:
        """Records that did not arrive."""
        place = self._records.place(loss.time_ns)
        if place >= 0:
            self._records.arrays["dropped"][place] += loss.dropped
            self._records.arrays["malformed"][place] += loss.malformed

    def nvml(self, state: NvmlState) -> None:
        """What NVML has cost so far."""
        self._states.append(state)

    def window(self, gpus: Iterable[GpuHistory], start_ns: int, now_ns: int, own_cpu_share: float | None) -> Quality:
        """The figures over (start, now]. `received_records` counts what was derived, so it is a lower bound."""
        histories = [each for each in gpus if each.lost is None]
        slices = [each.polls.times[each.polls.since(start_ns) : each.polls.until(now_ns)] for each in histories]
        nvml = self._states[-1] if self._states else None
        gaps = [gap for times in slices for gap in _gaps(times)]
        waiting = [(now_ns - times[-1]) / SECOND_NS for times in slices if times]
        return Quality(
            poll_interval_seconds=self._interval_seconds,
            gpu_samples=sum(map(len, slices)),
            poll_gap_p95_seconds=quantiles(gaps, n=20, method="inclusive")[18] if len(gaps) > 1 else None,
            longest_gap_seconds=max((*gaps, *waiting), default=None),
            dropped_records=self._records.total("dropped", start_ns, now_ns),
            received_records=self._records.total("received", start_ns, now_ns),
            malformed_packets=self._records.total("malformed", start_ns, now_ns),
            nvml=nvml,
            nvml_calls_per_gpu_second=self._call_rate(start_ns),
            own_cpu_share=own_cpu_share,
            dropped_values=sum(each.dropped_values for each in histories) + (nvml.dropped_values if nvml else 0),
            counter_resets=sum(each.counter_resets for each in histories),
        )

    def _call_rate(self, start_ns: int) -> float | None:
        """Over the polls of one child: a new one counts from zero."""
        states = [state for state in self._states if state.time_ns > start_ns and state.gpu_count]
        calls = seconds = 0.0
        for before, after in pairwise(states):
            if after.calls >= before.calls:
                calls += (after.calls - before.calls) / (after.gpu_count or 1)
                seconds += (after.time_ns - before.time_ns) / SECOND_NS
        return calls / seconds if seconds > 0 else None


def _gaps(times: array[int]) -> list[float]:
    return [(after - before) / SECOND_NS for before, after in pairwise(times)]
