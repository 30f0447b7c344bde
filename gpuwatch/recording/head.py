"""What a recording says of itself, from the rows of its head; and what is missing of it, in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpuwatch.recording.types import RecordingMeta

LAST_WALL_TIME = 253_402_300_800.0
"""The year 10 000, which no calendar here knows."""
_LEAST_INTERVAL = 0.01


def meta_of(
    head: Mapping[str, Any],
    damaged: Collection[str],
    wall_time: Callable[[int], float],
    moment: Callable[[float], str],
) -> RecordingMeta:
    """The head; a value that is not what it should be is as if it were not there."""
    command = head.get("command")
    pid = head.get("attached_pid")
    return RecordingMeta(
        hostname=str(head.get("hostname", "")),
        version=str(head.get("version", "")),
        label=str(head.get("label", "")),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        attached_pid=pid if isinstance(pid, int) else None,
        interval_seconds=max(_LEAST_INTERVAL, number(head.get("interval_seconds"), 1.0)),
        started_wall=number(head.get("started_wall"), 0.0),
        ended=head.get("ended") is True,
        problem="; ".join(_problems(head, damaged, wall_time, moment)) or None,
    )


def _problems(
    head: Mapping[str, Any],
    damaged: Collection[str],
    wall_time: Callable[[int], float],
    moment: Callable[[float], str],
) -> list[str]:
    found = []
    from_ns = head.get("samples_from_ns")
    if isinstance(from_ns, int):
        found.append(
            f"samples before {moment(wall_time(from_ns))} were dropped to stay below its greatest size, the figures of "
            "each minute are kept"
        )
    gaps = head.get("gaps")
    for gap in gaps if isinstance(gaps, list) else ():
        if isinstance(gap, dict) and gap.get("lost"):
            times = [moment(number(gap.get(name), 0.0)) for name in ("from", "to")]
            found.append(f"{gap['lost']} samples are missing between {times[0]} and {times[1]}: {gap.get('why')}")
    refused = head.get("refused")
    if isinstance(refused, int):
        found.append(f"{refused} samples could not be recorded")
    if damaged:
        names = sorted(damaged)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(f"damaged parts of the file are left out: {', '.join(names[:3])}{more}")
    return found


def number(value: object, default: float) -> float:
    """A value of the head that is to be a number."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < LAST_WALL_TIME else default
