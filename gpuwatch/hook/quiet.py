"""Where the hook touches the program's own objects: properties and `__len__` of a user's class may raise anything."""

from __future__ import annotations

from typing import Callable, Optional, TypeVar

from . import imports
from .frames import raised_by_a_signal

Result = TypeVar("Result")

_NOTED = 20


def quietly(action: Callable[..., Result], *arguments: object) -> Optional[Result]:
    """What the action returns; None where it raises, which becomes a fact and is not the program's problem.

    Except for what a signal handler raised meanwhile: that is for the program.
    """
    try:
        return action(*arguments)
    except Exception as error:
        if raised_by_a_signal(error):
            raise
        note = f"{action.__qualname__}: {type(error).__name__}: {error}"[:200]
        if note not in imports.failed and len(imports.failed) < _NOTED:
            imports.failed.append(note)
        return None
