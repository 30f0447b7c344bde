"""Sources: each turns something into samples. Import the one you need; none imports another.

To the monitor every source is something that is polled by one thread and never blocks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpuwatch.samples import Sample


class Source(Protocol):
    """A source of samples.

    The monitor's one thread sleeps in `select` over all sources' files until input arrives or the earliest
    `due_ns` passes, then calls `collect`. Clock, /proc root, folders and seeds are constructor parameters.
    """

    name: str

    def fileno(self) -> int | None:
        """The file to wait for input on (an epoll's, where there are several), or None."""

    def due_ns(self) -> int | None:
        """When `collect` wants to be called although no input came (CLOCK_MONOTONIC), or None."""

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples that are there by `now_ns`, without waiting for more.

        A failing device, peer or file is a sample that says so, never an exception.
        """

    def close(self) -> None:
        """Ends children and removes files, within a second whatever state they are in. Idempotent."""
