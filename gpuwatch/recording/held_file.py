"""The file that is being written, held by its descriptor: whether what lies in its place is still that file, whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class LostFileError(Exception):
    """The file is no longer there, or no longer whole: nothing that is written to it could be read."""


class HeldFile:
    """Somebody may remove, replace or empty the file; SQLite goes on writing to what has no name any more.

    It is let go of after SQLite's own connections: closing any descriptor of a file drops a process's locks on it.

    Args:
        path: of the file.
        descriptor: of it, which is closed by `close`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._least_bytes = 0
        self._mark: int | None = None

    def watch(self, mark: int) -> None:
        """From now on `check` sees, too, when an emptied file has grown again: SQLite was just bringing its log in.

        Args:
            mark: the place of a byte that is not 0 and is never written again. What was never written reads as 0.
        """
        self._mark = mark

    def check(self) -> None:
        """Three looks at the file, 4 us. A file that was only renamed is written to the end: SQLite still holds it.

        Raises:
            LostFileError: says what has happened to it.
        """
        if self._descriptor is None:
            return
        held = os.fstat(self._descriptor)
        if not held.st_nlink:
            raise LostFileError(f"{self._path} was {'replaced' if self._path.exists() else 'removed'}")
        if held.st_size < self._least_bytes or self._is_hollow(self._descriptor):
            raise LostFileError(f"{self._path} was cut short")
        self._least_bytes = held.st_size  # it only grows: what is dropped from it leaves room for what comes

    def _is_hollow(self, descriptor: int) -> bool:
        with suppress(OSError):  # what a disk that fails says, it says to SQLite too
            return self._mark is not None and os.pread(descriptor, 1, self._mark) in (b"", b"\0")
        return False

    @property
    def is_in_place(self) -> bool:
        """Whether it still has its name: what lies beside it under that name, the log, is then its own."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
