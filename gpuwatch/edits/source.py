"""Reads the source file that a finding points at, as it was when the training started."""

from __future__ import annotations

import stat
import time
from pathlib import Path

_LARGEST_FILE_BYTES = 512 * 1024
_SAVED_THEN_STARTED_SECONDS = 2.0  # some file systems round times of change to as much


class UnreadableSourceError(Exception):
    """The file cannot be read as the source that runs; the message says why."""


def read_source(path: Path, not_newer_than: float | None = None) -> bytes:
    """The bytes of a source file. The path comes from another process: only a small regular file is opened.

    `not_newer_than` is when the training started: a file changed since then is not what runs, and its lines may
    have moved.
    """
    if not path.is_absolute():
        raise UnreadableSourceError(f"{path} is not an absolute path")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableSourceError(f"{path} is not a regular file")
        if status.st_size > _LARGEST_FILE_BYTES:
            raise UnreadableSourceError(f"{path} is larger than {_LARGEST_FILE_BYTES // 1024} KiB")
        if not_newer_than is not None and status.st_mtime > not_newer_than + _SAVED_THEN_STARTED_SECONDS:
            raise UnreadableSourceError(f"{path} was changed after the training started")
        return path.read_bytes()
    except OSError as error:
        raise UnreadableSourceError(f"{path} cannot be read ({error.strerror})") from error


def name_in_patch(path: Path, folder: Path | None) -> str:
    """What a patch calls the file: its path from the repository's root, else from the training's folder, else its name.

    `git apply` refuses absolute names, and skips in silence what is not named from the root of its repository.
    """
    if not path.is_absolute() and folder is not None:
        path = folder / path
    root = next((parent for parent in path.parents if _holds_repository(parent)), folder)
    return path.relative_to(root).as_posix() if root is not None and path.is_relative_to(root) else path.name


def _holds_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:  # a folder that may not be looked into
        return False


def process_started(start_ticks: int) -> float | None:
    """`start_ticks` of /proc/PID/stat (hundredths of a second after boot, on Linux) as wall time."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / 100
