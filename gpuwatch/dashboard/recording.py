"""Words about a recording that is being written, and where a replay of one stands."""

from __future__ import annotations

import time

from gpuwatch.dashboard import formatting as say
from gpuwatch.monitor.snapshot import RecordingNow


def recording_badge(recording: RecordingNow) -> str:
    """What the top bar says: "REC 00:12 3.1 MiB"."""
    if recording.problem is not None:
        return "NOT RECORDING"
    return f"REC {length(recording.seconds, minutes=2)} {size(recording.bytes)}"


def recorded_words(recording: RecordingNow, verb: str = "Recorded") -> str:
    """What has become of one that was ended: its file, length and size, and what is missing of it."""
    words = f"{verb} {length(recording.seconds)} into {say.escape(str(recording.path))}"
    words += f" ({size(recording.bytes)})"
    return f"{words}. {say.escape(recording.problem).rstrip('.')}" if recording.problem else words


def length(seconds: float, minutes: int = 1) -> str:
    """A length as players show it: "0:12", "1:02:03"; minutes with at least so many digits."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60:0{minutes}}:{rest % 60:02}"


def size(count: int) -> str:
    """Bytes of a file that grows slowly: "3.1 MiB"."""
    mebibytes = count / 2**20
    return f"{mebibytes:.1f} MiB" if 1 <= mebibytes < 1000 else say.byte_size(count)


def day_and_time(wall_time: float) -> str:
    """A recorded moment in local time, with its day: "20 Nov 14:03:27"."""
    return time.strftime("%d %b %H:%M:%S", time.localtime(wall_time))
