"""From the child's JSON lines to samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuLost,
    GpuProcess,
    GpuSample,
    GpuStatus,
    NvmlState,
    Sample,
    XidEvent,
)

_CLASSES: Mapping[str, Any] = {
    cls.__name__: cls for cls in (GpuFacts, GpuSample, GpuStatus, GpuHealth, GpuLost, XidEvent, NvmlState)
}
_NAMES = {name: frozenset(field.name for field in fields(cls)) for name, cls in _CLASSES.items()}


@dataclass(frozen=True, slots=True)
class Message:
    """One line of the child's.

    `next_seconds` is within how long it promises the next line. `found` is the index and UUID of a GPU whose
    facts come next, `enumerated` the UUIDs of all devices. `restart_in` means that it ends now and wants
    a successor after so many seconds.
    """

    next_seconds: float
    samples: tuple[Sample, ...] = ()
    found: tuple[int, str] | None = None
    enumerated: tuple[str, ...] | None = None
    lost_index: tuple[int, str] | None = None
    restart_in: float | None = None


def decode(line: bytes) -> Message | None:
    """The message in one line, or None for a line that is broken off or not ours."""
    try:
        content = json.loads(line)
        lost = content.get("lost_index")
        return Message(
            next_seconds=float(content["next"]),
            samples=tuple(_sample(kind, found) for kind, found in content["samples"]),
            found=tuple(content["found"]) if "found" in content else None,
            enumerated=tuple(content["enumerated"]) if "enumerated" in content else None,
            lost_index=(int(lost[0]), str(lost[1])) if lost else None,
            restart_in=content.get("restart_in"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _sample(kind: str, found: dict[str, Any]) -> Sample:
    known = {name: value for name, value in found.items() if name in _NAMES[kind]}
    if kind == "GpuSample":
        for ring in ("utilization_ring", "power_ring"):
            known[ring] = tuple((time_ns, value) for time_ns, value in known.get(ring, ()))
    elif kind == "GpuFacts" and known.get("compute_capability"):
        known["compute_capability"] = tuple(known["compute_capability"])
    elif kind == "GpuStatus" and known.get("processes") is not None:
        known["processes"] = tuple(GpuProcess(**process) for process in known["processes"])
    sample: Sample = _CLASSES[kind](**known)
    return sample
