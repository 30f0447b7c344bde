"""Finds the user's line: the first frame outside site-packages, the standard library and gpuwatch."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import List, NamedTuple, Optional

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
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if library is None and "-packages/" in name and package not in ("torch", "gpuwatch"):
            library = package
        frame = frame.f_back
    return None


def _absolute(name: str) -> str:
    if name.startswith("<"):
        return name
    try:
        return os.path.abspath(name)
    except OSError:
        return name  # the working folder was removed under the process


def raised_by_the_user(error: BaseException) -> bool:
    """Whether an exception that surfaced in the hook is the program's.

    A signal handler runs between any two bytecodes, so what it raises may come up in our lines: most often a
    `TimeoutError`, which is an OSError.
    """
    return any(is_user_file(code.co_filename) for code in _codes_beyond_the_hook(error)) or raised_by_a_signal(error)


def raised_by_a_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it, be it a library's."""
    codes = _codes_beyond_the_hook(error)
    signals = sys.modules.get("signal")
    if not codes or signals is None:
        return False
    handlers = [signals.getsignal(number) for number in signals.valid_signals()]
    return any(getattr(getattr(one, "__func__", one), "__code__", None) in codes for one in handlers)


def _codes_beyond_the_hook(error: BaseException) -> List[CodeType]:
    """What ran from the frame that caught an exception to the one that raised it, our own aside."""
    codes = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_GPUWATCH):
            codes.append(code)
        trace = trace.tb_next
    return codes
