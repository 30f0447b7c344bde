"""Numbers, durations and lists in words, the same on the screen, in findings, in reports and in a terminal.

JSON and exports stay raw. A GPU's MHz and W are not among them: tables and sentences write them as `nvidia-smi` does,
"1755 MHz".
"""

from __future__ import annotations

import signal
from collections.abc import Iterable


def grouped(value: float) -> str:
    """A count, or a rate as a whole number, with its thousands grouped: "18,204"."""
    return f"{value + 0.0:,.0f}"


def rate(value: float) -> str:
    """Three digits that mean something, without an exponent: "0.0412", "98.4", "1,272"."""
    return grouped(value) if abs(value) >= 100 else f"{value:.3g}"


def byte_size(value: float) -> str:
    """Bytes with a binary unit: "512 B", "61.2 GiB"."""
    size = float(value)
    for unit in ("B", "KiB", "MiB"):
        if round(size) < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB" if size < 10 * 1024 else f"{size / 1024:.1f} TiB"


def age(age_ns: int) -> str:
    """How long ago, in whole units: "3 s", "12 min", "2 h"."""
    seconds = max(0, age_ns) / 1e9
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def duration_words(seconds: float) -> str:
    """A duration as people say it, in two units at most: "45 s", "12 min", "19 h 40 min", "3 d 4 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, rest = divmod(hours, 24)
    parts = ((days, "d"), (rest, "h")) if hours >= 48 else ((hours, "h"), (minutes, "min"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def clock(seconds: float, minutes: int = 1) -> str:
    """A length as players show it: "0:12", "1:02:03"; minutes with at least this many digits."""
    hours, rest = divmod(round(seconds), 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60:0{minutes}}:{rest % 60:02}"


def percent(share: float) -> str:
    """0.413 -> "41%"; below one percent with one decimal, so that a small share does not read as none: "0.4%"."""
    value = share * 100
    if 0 < abs(value) < 0.05:
        return "<0.1%" if value > 0 else ">-0.1%"
    return f"{value:.1f}%" if 0 < abs(value) < 0.95 else f"{value + 0.0:.0f}%"


def seconds(value: float) -> str:
    """A duration with three significant digits and its unit: "312 ms", "4.2 s", "3.5 min"."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:  # above it three digits round to 1e+03
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def factors(low: float, high: float) -> str:
    """A speed-up as its range of factors: "1.5-1.7x", "2.0x" where both ends say the same, "1.04x" of small ones."""
    decimals = 1 if high >= 1.2 else 2
    least, most = f"{low:.{decimals}f}", f"{high:.{decimals}f}"
    return f"{most}x" if least == most else f"{least}-{most}x"


def faster(low: float, high: float) -> str:
    """A gain: "1.5-1.7x faster"."""
    return f"{factors(low, high)} faster"


def gibibytes(value: float) -> str:
    """Bytes as GiB with one decimal, as MiB where that would be 0.0 GiB."""
    return f"{value / 2**20:.0f} MiB" if 0 < value < 0.05 * 2**30 else f"{value / 2**30:.1f} GiB"


def megabytes(value: float) -> str:
    """Bytes as MB of a million, as rates of disks and networks are given: "126 MB", "1,430 MB"."""
    return f"{rate(value / 1e6)} MB"


def cpu_cores(count: float) -> str:
    """1 CPU core, 16 CPU cores, 1.5 CPU cores."""
    return f"{count:g} CPU core{'' if count == 1 else 's'}"


def ordinal(count: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def listed(words: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def signal_name(number: int) -> str:
    """9 -> "SIGKILL"; a real-time signal has only its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
