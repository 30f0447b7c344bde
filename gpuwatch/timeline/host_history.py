"""The history of the machine's CPU side."""

from __future__ import annotations

from gpuwatch import metrics
from gpuwatch.samples import HostSample
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.stats import mean
from gpuwatch.timeline.tiers import SECOND_NS, ValueTiers
from gpuwatch.timeline.windows import HostWindow

_RAW_NS = 600 * SECOND_NS
_MOST_ROWS = 2_048

_MEANS = tuple(metric.name for metric in metrics.HOST.values() if metric.windowed)


class HostHistory:
    """One row per sample of the machine."""

    def __init__(self) -> None:
        columns = dict.fromkeys((*_MEANS, "memory_available_share"), "f")
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_ROWS)
        self.tiers = {metric.name: ValueTiers() for metric in metrics.charted("host")}
        self.latest: HostSample | None = None

    def add(self, sample: HostSample) -> None:
        """One second of the machine."""
        if self.latest is not None and sample.time_ns <= self.latest.time_ns:
            return
        self.latest = sample
        available, total = sample.memory_available_bytes, sample.memory_total_bytes
        share = available / total if available is not None and total else None
        self.rows.add(sample.time_ns, [*(number(getattr(sample, name)) for name in _MEANS), number(share)])
        for name, tiers in self.tiers.items():
            value = getattr(sample, name)
            if value is not None:
                tiers.add(sample.time_ns, value)

    def window(self, start_ns: int, now_ns: int) -> HostWindow | None:
        """The machine over (start, now]; None before its first sample."""
        if self.latest is None:
            return None
        low, high = self.rows.since(start_ns), self.rows.until(now_ns)
        first_ns = self.rows.times[low] if low < high else now_ns
        return HostWindow(
            window_seconds=(now_ns - (start_ns if low else first_ns)) / SECOND_NS,
            latest=self.latest,
            cpu_percent=mean(self.rows["cpu_percent"][low:high]),
            pressure_cpu_percent=mean(self.rows["pressure_cpu_percent"][low:high]),
            pressure_io_percent=mean(self.rows["pressure_io_percent"][low:high]),
            pressure_memory_percent=mean(self.rows["pressure_memory_percent"][low:high]),
            disk_queue_length=mean(self.rows["disk_queue_length"][low:high]),
            memory_available_share=mean(self.rows["memory_available_share"][low:high]),
            major_faults_per_second=mean(self.rows["major_faults_per_second"][low:high]),
            swap_in_bytes_per_second=mean(self.rows["swap_in_bytes_per_second"][low:high]),
        )
