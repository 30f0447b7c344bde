"""Finds the user's line: the first frame outside site-packages, the standard library and gpuwatch."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NamedTuple, Optional

# A bundle (PyInstaller, byte code without its source) keeps the paths of another folder in its code objects.
_FILES = (os.path.abspath(__file__), sys._getframe().f_code.co_filename)
_GPUWATCH = tuple(os.path.dirname(os.path.dirname(file)) + os.sep for file in _FILES if file.count(os.sep) > 1)
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NOT_THE_USERS = (*_GPUWATCH, _STANDARD_LIBRARY)
_DEPTH = 100


class Place(NamedTuple):
    """A line of the user's program, and the library that made the call on its behalf, None if it did so itself."""

    file: str
    line: int
    function: str
    library: Optional[str]


def is_user_file(name: str) -> bool:
    """Whether a code object's file name belongs to the user's program rather than to a library."""
    if name.startswith("<"):
        return name.startswith(("<stdin>", "<string>", "<ipython-input"))
    if "/site-packages/" in name or "/dist-packages/" in name:
        return False
    return not name.startswith(_NOT_THE_USERS)


def calling_place() -> Optional[Place]:
    """The innermost line of the user's program on this thread's stack."""
    frame: Optional[FrameType] = sys._getframe(1)
    library = None
    for _ in range(_DEPTH):
        if frame is None:
            return None
        code = frame.f_code
        name = code.co_filename
        if is_user_file(name) and (not name.startswith("<") or frame.f_globals.get("__name__") == "__main__"):
            return Place(_absolute(name), frame.f_lineno, code.co_name, library)
        if library is None and "-packages/" in name and not name.startswith(_GPUWATCH):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            library = package if package != "torch" else None
        frame = frame.f_back
    return None


def _absolute(name: str) -> str:
    if name.startswith("<"):
        return name
    try:
        return os.path.abspath(name)
    except OSError:
        return name  # the working folder was removed under the process
