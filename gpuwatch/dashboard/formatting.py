"""Numbers, times and foreign text as the screen says them: every number with its unit, unknown as a dash."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePath

from rich.cells import cell_len, set_cell_size

from gpuwatch import numbers
from gpuwatch.numbers import grouped
from gpuwatch.text import printable
from gpuwatch.timeline.windows import Share

UNKNOWN = "-"

escape = printable
"""What makes foreign text harmless, here as in every other output."""
age = numbers.age

_KIB = 1024.0
_HELD = "\ue000"  # stands for a space at which a line is not broken; escape() lets no such character come in
_UNBREAKABLE = re.compile(
    r"(?<=\d) (?=(?:°C|k?W|[mµ]?s|min|h|MHz|[KMGT]iB|GB|B|points|±)(?![\w]))|(?<=%) (?=±)|(?<=±) (?=\d)"
)
_VENDOR_WORDS = ("NVIDIA ", "GeForce ", "Tesla ", "Quadro ")
_FAMILY_WORDS = ("RTX", "GTX", "PRO")  # a "4090" still differs from a "3090"


def percent(value: float | None) -> str:
    """58.2 -> "58%"; under one percent with a decimal, so that little does not read as none."""
    return UNKNOWN if value is None or math.isnan(value) else numbers.percent(value / 100)


def share(value: float | None) -> str:
    """0.41 -> "41%"."""
    return percent(None if value is None else value * 100)


def points(share: Share) -> str:
    """Half of a share's 95% interval, in points: "2.4"."""
    return f"{(share.high - share.low) * 50:.1f}"


def mean_and_sigma(mean: float | None, sigma: float | None) -> str:
    """A mean in percent with its standard deviation in points: "58% ±31"."""
    if mean is None:
        return UNKNOWN
    return percent(mean) if sigma is None else f"{percent(mean)} ±{sigma:.0f}"


def of_limit(value: float | None, limit: float | None, unit: str) -> str:
    """A reading against its limit: "402/700 W"; without a limit "402 W"."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} {unit}" if limit is None else f"{value:.0f}/{limit:.0f} {unit}"


def kilowatts(value: float | None, limit: float | None) -> tuple[str, ...]:
    """Power of many GPUs against their limits, longest wording first: "3.2/5.6 kW", "3.2 kW"."""
    if value is None:
        return (UNKNOWN,)
    if value < 1000:
        return of_limit(value, limit, "W"), f"{value:.0f} W"
    alone = f"{value / 1e3:.1f} kW"
    return (alone,) if limit is None else (f"{value / 1e3:.1f}/{limit / 1e3:.1f} kW", alone)


def sizes(value: float | None) -> tuple[str, ...]:
    """Bytes, longest wording first: "3855.6 GiB", "3.8 TiB"."""
    if value is None:
        return (UNKNOWN,)
    return numbers.byte_size(value), f"{value / _KIB**4:.1f} TiB"


def fitting(width: int, *wordings: str) -> str:
    """The first wording that fits, else the last."""
    return next((words for words in wordings if len(words) <= width), wordings[-1])


def runtime(value_seconds: float) -> str:
    """How long a process runs, in one unit: "45 s", "12 min", "17 h", "12 d"."""
    if value_seconds < 99.5:
        return f"{value_seconds:.0f} s"
    minutes = value_seconds / 60
    return (
        f"{minutes:.0f} min"
        if minutes < 90
        else f"{minutes / 60:.0f} h"
        if minutes < 2880
        else f"{minutes / 1440:.0f} d"
    )


def memory_of_total(used: float | None, total: float | None, decimals: int = 1) -> str:
    """Memory against its total: "61.2/80 GiB"; a total that rounds to less than what is used, as precisely as that."""
    if used is None:
        return UNKNOWN if total is None else f"{UNKNOWN}/{total / _KIB**3:.0f} GiB"
    if total is None:
        return byte_size(used)
    part, whole = f"{used / _KIB**3:.{decimals}f}", f"{total / _KIB**3:.0f}"
    if used <= total and float(part) > float(whole):
        whole = f"{total / _KIB**3:.{decimals}f}"
    return f"{part}/{whole} GiB"


def byte_size(value: float | None) -> str:
    """Bytes with a binary unit: "61.2 GiB"."""
    return UNKNOWN if value is None else numbers.byte_size(value)


def byte_rate(value: float | None) -> str:
    """Bytes per second with a binary unit: "3.1 GiB/s"."""
    return UNKNOWN if value is None else f"{byte_size(value)}/s"


def celsius(value: float | None) -> str:
    """61 -> "61 °C"."""
    return UNKNOWN if value is None else f"{value:.0f} °C"


def megahertz(value: float | None) -> str:
    """1755 -> "1755 MHz"."""
    return UNKNOWN if value is None else f"{value:.0f} MHz"


def seconds(value: float | None) -> str:
    """A duration with three significant digits and its unit: "312 ms", "4.21 s", "3.5 min"."""
    return UNKNOWN if value is None or math.isnan(value) else numbers.seconds(value)


def span(value_seconds: float) -> str:
    """The width of a chart's window: "30 s", "2 min", "1 h"."""
    if value_seconds < 60:
        return seconds(value_seconds) if value_seconds < 0.5 else f"{value_seconds:.0f} s"
    return f"{value_seconds / 60:.0f} min" if value_seconds < 3600 else f"{value_seconds / 3600:.0f} h"


def count(value: float | None) -> str:
    """A count with its thousands apart: "18,204"; small rates keep a decimal, "0.04" what it takes not to read as 0."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if 0 < abs(value) < 0.1:
        return f"{value:.1g}"
    if abs(value) < 9.95 and value != int(value):
        return f"{value:.1f}"
    return grouped(value)


def clock(wall_time: float, *, seconds_too: bool = True) -> str:
    """Local time of day: "14:03:27" or "14:03"."""
    return time.strftime("%H:%M:%S" if seconds_too else "%H:%M", time.localtime(wall_time))


def since(moment: float, now: float) -> str:
    """The local time of a wall time: "13:58"; with its day when that was before today."""
    same_day = time.localtime(moment)[:3] == time.localtime(now)[:3]
    return clock(moment, seconds_too=False) if same_day else time.strftime("%d %b %H:%M", time.localtime(moment))


@lru_cache(maxsize=256)
def gpu_name(name: str, width: int | None = None) -> str:
    """A GPU's name without its vendor's words, and without its last words until it fits: "H100 80GB HBM3", "H100"."""
    text = escape(name)
    for word in _VENDOR_WORDS:
        text = text.replace(word, "")
    words = text.split(" ")
    while width is not None and len(words) > 1 and len(" ".join(words)) > width:
        words.pop(0 if words[0] in _FAMILY_WORDS else -1)
    return " ".join(words)


def command_line(command: Sequence[str]) -> str:
    """A command as one escaped line."""
    return escape(" ".join(command)) or UNKNOWN


def script_line(command: Sequence[str]) -> str:
    """The same for a field of a few characters: from the script on."""
    program = PurePath(command[0]).name if command else ""
    rest = [word for word in command[1:] if word not in ("-u", "-B")]
    return short_command(rest if program.startswith("python") and rest else command)


def short_command(command: Sequence[str]) -> str:
    """The same for a column that may be narrow: without the folder of the interpreter, which hid the script's name."""
    return command_line([PurePath(word).name or word for word in command[:1]] + list(command[1:]))


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """The text in exactly `width` cells or fewer, its end replaced by an ellipsis where it is cut."""
    if width <= 0:
        return ""
    if (len(text) if text.isascii() else cell_len(text)) <= width:
        return text
    return set_cell_size(text, max(0, width - len(ellipsis))).rstrip() + ellipsis[:width]


def wrap(text: str, width: int) -> list[str]:
    """The text broken at spaces into lines of at most `width` cells; longer words are cut, numbers keep their units."""
    lines: list[str] = []
    line = ""
    for word in _UNBREAKABLE.sub(_HELD, text).split():
        while cell_len(word) > width:
            room = width - (cell_len(line) + 1 if line else 0)
            if room < 8 and line:
                lines.append(line)
                line, room = "", width
            head = _head(word, room)
            lines.append(f"{line} {head}" if line else head)
            line, word = "", word[len(head) :]
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        elif word:
            line = f"{line} {word}" if line else word
    if line or not lines:
        lines.append(line)
    return [line.replace(_HELD, " ") for line in lines]


def _head(word: str, width: int) -> str:
    """As many leading characters as fit, at least one, so that wrapping always ends."""
    cells = 0
    for index, character in enumerate(word):
        cells += cell_len(character)
        if cells > width:
            return word[: max(1, index)]
    return word
