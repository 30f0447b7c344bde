"""The names of the user's phases, in the order in which records point at them."""

from __future__ import annotations

from typing import List

from .ring import pulse

LIMIT = 64
OTHER = "other"

names: List[str] = []


def index_of(name: str) -> int:
    """The index of a name; names beyond the limit share one, because each is resent with the facts."""
    if name not in names:
        if len(names) >= LIMIT - 1 and OTHER not in names:
            names.append(OTHER)
        if len(names) >= LIMIT:
            return names.index(OTHER)
        names.append(str(name)[:80])
        pulse.facts_changed = True
        return len(names) - 1
    return names.index(name)
