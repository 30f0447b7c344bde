"""The samples of a part of a recording, their time axis, and all of them as JSON lines.

The axis counts seconds from the recording's beginning, and knows the wall time. A JSON line is one sample with all
that it holds.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from gpuwatch.recording.reader import Recording
from gpuwatch.text import encodable, json_text


def samples_of(recording: Recording, start_ns: int, end_ns: int) -> Iterator[Any]:
    """The facts at the beginning, the samples in the order in which they came, then the findings.

    Facts keep the time they were read at, which may lie before the stretch.
    """
    yield from recording.facts_at(start_ns)
    yield from recording.samples(start_ns, end_ns)
    yield from recording.findings(start_ns, end_ns)


def time_of(sample: Any) -> int | None:
    """When a sample was taken: the end of what it describes, the beginning of what still lasts.

    None for a GPU's gap, which has the number of its step.
    """
    for name in ("time_ns", "end_ns", "start_ns"):
        value = getattr(sample, name, None)
        if value is not None:
            return int(value)
    return None


class Axis:
    """Turns CLOCK_MONOTONIC nanoseconds into what people and tools read.

    Args:
        start_ns: where the recording begins, so that parts exported one by one lie on the same axis.
        wall_time: seconds since the epoch at a moment.
    """

    def __init__(self, start_ns: int, wall_time: Callable[[int], float]) -> None:
        self.start_ns = start_ns
        self._wall_time = wall_time
        self._wall_ns: int | None = None
        self._wall_text = ""

    def seconds(self, time_ns: int) -> float:
        """From the recording's beginning, to the nanosecond."""
        return round((time_ns - self.start_ns) / 1e9, 9)

    def micros(self, time_ns: int) -> float:
        """The same in microseconds, as traces count: not below zero, which Perfetto drops."""
        return max(0, time_ns - self.start_ns) / 1e3

    def wall(self, time_ns: int) -> datetime:
        """The wall time, in UTC."""
        return datetime.fromtimestamp(self._wall_time(time_ns), timezone.utc)

    def wall_text(self, time_ns: int) -> str:
        """The same as ISO 8601 with milliseconds; samples that come together share it."""
        if time_ns != self._wall_ns:
            self._wall_ns = time_ns
            self._wall_text = self.wall(time_ns).isoformat(timespec="milliseconds")
        return self._wall_text


_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def json_lines(samples: Iterable[Any], axis: Axis) -> Iterator[str]:
    """A line each: `type` ("gpu_sample"), `time_seconds` on the recording's axis, `wall_time`, then its own fields.

    Moments keep their CLOCK_MONOTONIC nanoseconds as well. Unknown is null. ASCII only, so that no terminal obeys it.
    """
    for sample in samples:
        at_ns = time_of(sample)
        line = {
            "type": _HUMP.sub("_", type(sample).__name__).lower(),
            "time_seconds": None if at_ns is None else axis.seconds(at_ns),
            "wall_time": None if at_ns is None else axis.wall_text(at_ns),
            **_fields_of(sample),
        }
        yield json_text(line, compact=True) + "\n"


def _fields_of(thing: Any) -> dict[str, Any]:
    return {
        field.name: _plain(getattr(thing, field.name)) for field in dataclasses.fields(thing) if field.name != "blob"
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return _fields_of(value)
