"""The names of the user's phases, in the order in which records point at them."""

from __future__ import annotations

from typing import Any, List

from .quiet import type_name
from .ring import pulse

LIMIT = 64
OTHER = "other"
PAUSES = ("eval", "checkpoint")
"""The names that monitors take for a pause of the training: their beginning is reported, too."""
_LONGEST = 80

names: List[str] = []


def index_of(name: Any) -> int:
    """The index of a name; names beyond the limit share one, because each is resent with the facts."""
    if type(name) is not str:
        # An object of the program's is known by its type: its `__str__` is the program's code.
        name = str(name) if type(name) in (int, float, bool) else type_name(name)
    name = name[:_LONGEST]
    if name not in names:
        if len(names) >= LIMIT - 1 and OTHER not in names:
            names.append(OTHER)
        if len(names) >= LIMIT:
            return names.index(OTHER)
        names.append(name)
        pulse.facts_changed = True
    return names.index(name)
