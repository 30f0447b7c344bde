"""Long times in words."""

from __future__ import annotations


def duration_words(seconds: float) -> str:
    """A duration as people say it: "19 h 40 min", "12 min", "45 s"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
