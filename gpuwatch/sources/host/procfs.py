"""Reading of /proc and /sys: small files that may vanish, be forbidden or be missing at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gpuwatch.foreign import answered

_SLOW_SECONDS: Final = 0.25
_REST_PER_WAIT: Final = 50
_LONGEST_REST_SECONDS: Final = 100.0
_MOST_RESTING: Final = 4096
_resting: dict[int, float] = {}
"""By pid, until when a process is left alone: what answers slowly must not hold up the reading of all others."""

_Answer = TypeVar("_Answer")


def read_once(path: str, limit: int = 16384) -> bytes | None:
    """A file that the kernel renders as one record, by a single read; None where it cannot be read.

    `open().read()` costs 13 us and `Path.read_text()` 19 us where this costs 8 us (/proc/PID/stat).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:  # ESRCH: the process ended between open and read; EOPNOTSUPP: PSI is switched off
        return None
    finally:
        os.close(descriptor)


def read_all(path: str, limit: int = 1 << 20) -> bytes | None:
    """A file of many records, which the kernel hands out about 4 KiB at a time; None where unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    chunks: list[bytes] = []
    length = 0
    try:
        while length < limit and (chunk := os.read(descriptor, 65536)):
            chunks.append(chunk)
            length += len(chunk)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def read_of(proc_root: Path | str, pid: int, name: str, limit: int = 1 << 20) -> bytes | None:
    """A file below /proc/PID that takes a lock of the process's memory; None where unreadable, or not in time.

    Those are cmdline, environ, io, maps and smaps_rollup. Another process can keep who reads them waiting.
    """
    return in_time(pid, partial(read_all, f"{proc_root}/{pid}/{name}", limit))


def is_left_alone(pid: int) -> bool:
    """Whether a process was so slow to answer lately that what it holds is not asked for: None then says nothing."""
    return _resting.get(pid, 0.0) > time.monotonic()


def in_time(pid: int, read: Callable[[], _Answer]) -> _Answer | None:
    """What `read` finds of a process (see `foreign.answered`); None where it does not answer, or was slow lately."""
    began = time.monotonic()
    if _resting.get(pid, 0.0) > began:
        return None
    try:
        return read() if pid == os.getpid() else answered(pid, read)
    except TimeoutError:
        return None
    finally:
        took = time.monotonic() - began
        if took > _SLOW_SECONDS:
            if len(_resting) >= _MOST_RESTING:
                _resting.clear()
            _resting[pid] = began + min(_REST_PER_WAIT * took, _LONGEST_REST_SECONDS)


def read_int(path: str) -> int | None:
    """A file that holds one whole number; None for anything else, such as "max"."""
    return to_int(read_once(path, 64))


def to_int(raw: bytes | None) -> int | None:
    """The whole number that `raw` spells, or None."""
    if raw is None:
        return None
    try:
        return int(raw)
    except ValueError:
        return None


def keyed_int(raw: bytes, key: bytes) -> int | None:
    """The number on the line of `raw` that starts with `key`; a unit after it is not interpreted."""
    lines = b"\n" + raw
    start = lines.find(b"\n" + key)
    if start < 0:
        return None
    words = lines[start + 1 + len(key) :].split(None, 1)
    return to_int(words[0]) if words else None


def rate(current: int | None, previous: int | None, seconds: float) -> float | None:
    """Growth per second of a counter; None where a side is unknown or the counter was reset."""
    if current is None or previous is None or current < previous or seconds <= 0.0:
        return None
    return (current - previous) / seconds


def shown(raw: bytes) -> str:
    r"""Bytes of another process as text: what is not UTF-8, or would steer a terminal, becomes \xNN."""
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
