"""Moments of a recording as people write them: `90`, `1:30`, `0:14:05`, `14:03:27`, `2026-11-20T14:03:27`.

Seconds and `M:SS` count from the recording's beginning, and so does `H:MM:SS`. Two digits for the hour make it the
time of day, as every screen prints it; a `+` makes it an offset whatever its digits, a `-` counts from the end.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from gpuwatch.cli.output import GpuwatchError

if TYPE_CHECKING:
    from gpuwatch.recording.reader import Recording

FORMS = "90, 1:30, 0:14:05 (from the beginning), -90 (from the end), 14:03:27 or 2026-11-20T14:03:27 (local time)"

_CLOCK = re.compile(r"(?:(\d+):(?=[0-5]\d:))?(\d+):([0-5]\d(?:\.\d+)?)")
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?")
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as it was written: seconds from the beginning, from the end, of the day, or since the epoch."""

    text: str
    counted: Literal["from start", "from end", "of day", "since epoch"]
    seconds: float

    def in_recording(self, recorded: Recording) -> int:
        """The moment by the recording's clock; it may lie outside the recording.

        A time of day is the first one at or after the beginning, or the one before, where that is nearer.
        """
        match self.counted:
            case "from start":
                return recorded.start_ns + round(self.seconds * _SECOND_NS)
            case "from end":
                return recorded.end_ns - round(self.seconds * _SECOND_NS)
            case "of day":
                return _at_wall(recorded, self._on_the_day(recorded))
            case "since epoch":
                return _at_wall(recorded, self.seconds)

    def _on_the_day(self, recorded: Recording) -> float:
        start, end = recorded.wall_time(recorded.start_ns), recorded.wall_time(recorded.end_ns)
        day = datetime.fromtimestamp(start).replace(hour=0, minute=0, second=0, microsecond=0)
        found = [(day + timedelta(days=days, seconds=self.seconds)).timestamp() for days in (-1, 0, 1)]
        before = max(at for at in found if at < int(start))
        after = min(at for at in found if at >= int(start))
        return before if after > end and start - before < after - end else after


def moment(text: str) -> Moment:
    """A moment for argparse."""
    stripped = text.strip()
    sign, body = (stripped[0], stripped[1:]) if stripped[:1] in ("+", "-") else ("", stripped)
    if not sign and _TIME_OF_DAY.fullmatch(body):
        return Moment(text, "of day", _clock_seconds(body) or 0.0)
    seconds = _clock_seconds(body)
    if seconds is None and re.fullmatch(r"\d+(?:\.\d+)?", body):
        seconds = float(body)
    if seconds is not None:
        return Moment(text, "from end" if sign == "-" else "from start", seconds)
    try:
        date = datetime.fromisoformat(stripped.replace("Z", "+00:00"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in a recording, such as {FORMS}") from None
    return Moment(text, "since epoch", date.timestamp())


def one_moment(recorded: Recording, at: Moment, option: str) -> int:
    """The moment, inside the recording. What is no time of day there may be an offset with a leading zero: 00:14:05.

    Raises:
        GpuwatchError: it lies outside.
    """
    time_ns = at.in_recording(recorded)
    if at.counted == "of day" and not recorded.start_ns <= time_ns <= recorded.end_ns:
        time_ns = replace(at, counted="from start").in_recording(recorded)
    if not recorded.start_ns <= time_ns <= recorded.end_ns:
        raise GpuwatchError(f"{option} {at.text} is outside the recording, which {extent(recorded)}")
    return time_ns


def span(recorded: Recording, start: Moment | None, end: Moment | None) -> tuple[int, int]:
    """The part of a recording from one moment to another; what reaches beyond the recording ends with it.

    Raises:
        GpuwatchError: nothing of the recording lies between them.
    """
    start_ns = recorded.start_ns if start is None else max(recorded.start_ns, start.in_recording(recorded))
    end_ns = recorded.end_ns if end is None else min(recorded.end_ns, end.in_recording(recorded))
    if start_ns < end_ns or (start is None and end is None):
        return start_ns, end_ns
    if start is not None and end is not None and start.in_recording(recorded) >= end.in_recording(recorded):
        raise GpuwatchError(f"--from {start.text} is not before --to {end.text}: there is nothing between them")
    asked = [f"--from {start.text}" if start else "", f"--to {end.text}" if end else ""]
    raise GpuwatchError(f"nothing was recorded {' '.join(filter(None, asked))}: the recording {extent(recorded)}")


def extent(recorded: Recording) -> str:
    """From when to when it reaches: "lasts 0:14:05, from 14:03:27 to 14:17:32"."""
    start, end = recorded.wall_time(recorded.start_ns), recorded.wall_time(recorded.end_ns)
    seconds = round((recorded.end_ns - recorded.start_ns) / _SECOND_NS)
    same_day = time.localtime(start)[:3] == time.localtime(end)[:3]
    form = "%H:%M:%S" if same_day else "%Y-%m-%dT%H:%M:%S"
    first, last = (time.strftime(form, time.localtime(wall)) for wall in (start, end))
    return f"lasts {timedelta(seconds=seconds)}, from {first} to {last}"


def _clock_seconds(text: str) -> float | None:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = found.groups()
    return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def _at_wall(recorded: Recording, wall: float) -> int:
    """The moment with that wall time. The clock may have been set meanwhile: each round comes nearer."""
    time_ns = recorded.start_ns
    for _ in range(4):
        time_ns += round((wall - recorded.wall_time(time_ns)) * _SECOND_NS)
    return time_ns
