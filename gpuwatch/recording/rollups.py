"""Minutes of metrics, so that a report of a day reads 1 440 rows and no samples. The metrics are listed in `schema`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Sequence

from gpuwatch.recording.chunks import Stream, inflated
from gpuwatch.recording.columns import ColumnReader, DamagedError, write_column
from gpuwatch.recording.gpu_metrics import gpu_metrics
from gpuwatch.recording.metric_values import Metrics
from gpuwatch.recording.minute_columns import are_figures
from gpuwatch.recording.run_metrics import RUN_METRICS
from gpuwatch.recording.step_metrics import StepMetrics
from gpuwatch.recording.types import Rollup


class Minutes:
    """Gathers the values of the minute that is being written, and what counters had reached before it."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._steps = StepMetrics(self._metrics)

    def take(self, stream: Stream) -> None:
        """Counts a segment's samples of one kind and subject."""
        if stream.kind.name == "GpuSample":
            gpu_metrics(stream, self._metrics)
        else:
            self._steps.take(stream)
            derive = RUN_METRICS.get(stream.kind.name)
            if derive is not None:
                derive(stream, self._metrics)

    def finished(self, minute_ns: int) -> list[Rollup]:
        """The minute's figures; the next one begins."""
        self._steps.end_minute()
        rows = [
            _rollup(minute_ns, subject, metric, values, self._metrics.means.get((subject, metric)))
            for (subject, metric), values in self._metrics.values.items()
            if values
        ]
        self._metrics.begin_minute()
        return rows


def pack_minute(rows: Sequence[Rollup]) -> bytes:
    """The rollups of one minute as a blob."""
    out = bytearray(len(rows).to_bytes(4, "little"))
    for column in zip(*(row[1:] for row in rows), strict=True):
        write_column(column, out)
    return zlib.compress(bytes(out), 6)


def unpack_minute(
    minute_ns: int,
    data: object,
    crc: object,
    subjects: Collection[str] | None = None,
    metrics: Collection[str] | None = None,
) -> list[Rollup]:
    """The other way; only those of some subjects and metrics, where they are named.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    if not isinstance(data, bytes) or zlib.crc32(data) != crc:
        raise DamagedError("the checksum does not match")
    plain = inflated(data)
    count, columns = int.from_bytes(plain[:4], "little"), ColumnReader(plain[4:])
    read = [columns.read(count) for _ in Rollup._fields[1:] if not columns.is_at_end]  # the first ones had no p5
    if not all(set(map(type, texts)) <= {str} for texts in read[:2]) or not all(map(are_figures, read[2:])):
        raise DamagedError("not the figures of a minute")
    return [
        Rollup(minute_ns, *row)
        for row in zip(*read, strict=True)
        if (metrics is None or row[1] in metrics) and (subjects is None or row[0] in subjects)
    ]


def _rollup(
    minute_ns: int, subject: str, metric: str, values: Sequence[float], figures: tuple[int, float] | None
) -> Rollup:
    """`figures`: count and mean where they are not those of the values."""
    ordered = sorted(values)
    count = len(ordered)
    if ordered[0] == ordered[-1]:
        mean, sigma = ordered[0], 0.0
    else:
        mean = sum(ordered) / count
        sigma = math.dist(ordered, [mean] * count) / math.sqrt(count - 1)
    if figures is not None:
        said, mean = figures
    else:
        said = count
    marks = (_at(ordered, 0.5), _at(ordered, 0.95), sigma, _at(ordered, 0.05))
    return Rollup(minute_ns, subject, metric, said, ordered[0], mean, ordered[-1], *marks)


def _at(ordered: Sequence[float], share: float) -> float:
    """A percentile, between the two values that it falls between."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
