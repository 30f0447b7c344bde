"""Large numbers as people read them, the same on the screen, in reports and in a terminal; JSON and exports stay raw.

A GPU's MHz and W are not among them: tables and sentences write them as `nvidia-smi` does, "1755 MHz".
"""

from __future__ import annotations


def grouped(value: float) -> str:
    """A count, or a rate as a whole number, with its thousands apart: "18 204"."""
    return f"{value + 0.0:,.0f}".replace(",", " ")


def rate(value: float) -> str:
    """Three digits that mean something, without an exponent: "0.0412", "98.4", "1 272"."""
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
    """A duration as people say it: "19 h 40 min", "12 min", "45 s"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
