"""Finds the user's line: the first frame outside site-packages, the standard library and this hook."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NamedTuple, Optional

_HOOK = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_DEPTH = 100


class Place(NamedTuple):
    """A line of the user's program; `direct` says that it made the call itself, not through a library."""

    file: str
    line: int
    function: str
    direct: bool


def is_user_file(name: str) -> bool:
    """Whether a code object's file name belongs to the user's program rather than to a library."""
    if name.startswith("<"):
        return name.startswith(("<stdin>", "<string>", "<ipython-input"))
    if "/site-packages/" in name or "/dist-packages/" in name:
        return False
    return not name.startswith((_HOOK, _STANDARD_LIBRARY))


def calling_place() -> Optional[Place]:
    """The innermost line of the user's program on this thread's stack."""
    frame: Optional[FrameType] = sys._getframe(1)
    libraries = 0
    for _ in range(_DEPTH):
        if frame is None:
            return None
        code = frame.f_code
        name = code.co_filename
        if is_user_file(name) and (not name.startswith("<") or frame.f_globals.get("__name__") == "__main__"):
            file = name if name.startswith("<") else os.path.abspath(name)
            return Place(file, frame.f_lineno, code.co_name, direct=libraries == 0)
        if not name.startswith(_HOOK) and "/torch/" not in name:
            libraries += 1
        frame = frame.f_back
    return None
