"""Makes the modes of files count for root too, so that tests of refused files need no other user."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522  # linux/capability.h: three sets of two words, the first word of each in `_Sets`
_PASSES_OVER_MODES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable", "_e", "_p", "_i")]


@contextmanager
def file_modes_count() -> Iterator[None]:
    """In this block the calling thread has not the two capabilities by which root reads and writes any file."""
    libc = ctypes.CDLL(None, use_errno=True)
    thread, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), _Sets()
    _check(libc.capget(thread, ctypes.byref(sets)))
    before = sets.effective
    sets.effective = before & ~_PASSES_OVER_MODES
    _check(libc.capset(thread, ctypes.byref(sets)))
    try:
        yield
    finally:
        sets.effective = before
        _check(libc.capset(thread, ctypes.byref(sets)))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "the capabilities of this thread cannot be changed")
