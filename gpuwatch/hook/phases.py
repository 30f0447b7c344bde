"""The names of the user's phases, in the order in which records point at them."""

from __future__ import annotations

from typing import List

from .ring import pulse

LIMIT = 64
OTHER = "other"
_LONGEST = 80

names: List[str] = []


def index_of(name: str) -> int:
    """The index of a name; names beyond the limit share one, because each is resent with the facts."""
    name = str(name)[:_LONGEST]
    if name not in names:
        if len(names) >= LIMIT - 1 and OTHER not in names:
            names.append(OTHER)
        if len(names) >= LIMIT:
            return names.index(OTHER)
        names.append(name)
        pulse.facts_changed = True
    return names.index(name)
