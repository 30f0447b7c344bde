"""Reading of /proc and /sys: small files that may vanish, be forbidden or be missing at any moment."""

from __future__ import annotations

import os


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
