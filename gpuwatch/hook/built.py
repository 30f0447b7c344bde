"""Learns of an object as it is built, and of the line of the program that builds it."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from .frames import Place, calling_place
from .hidden import hidden
from .quiet import quietly
from .ring import pulse


def noting(original: Callable[..., None], register: Callable[[Any, Optional[Place]], Any]) -> Callable[..., None]:
    """An `__init__` after which the object is registered; the first one of all makes this process a trainer."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it takes that method's place
        original(self, *arguments, **named)
        pulse.begin()
        quietly(register, self, calling_place())

    return hidden(__init__)
