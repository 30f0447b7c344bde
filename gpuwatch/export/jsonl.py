"""Everything in a recording as JSON lines: one object per sample, with all that it holds."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuwatch.export.samples import Axis, time_of
from gpuwatch.text.escape import encodable, json_text

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
            **_fields(sample),
        }
        yield json_text(line, compact=True) + "\n"


def _fields(thing: Any) -> dict[str, Any]:
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
    return _fields(value)
