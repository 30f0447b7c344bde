"""Stacks as a source: other threads sample the training thread and its workers from outside, the monitor polls them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuwatch.samples import Sample

if TYPE_CHECKING:
    from gpuwatch.sources.stacks.sampler import Sampler


@dataclass(frozen=True, slots=True)
class StackTarget:
    """A process to sample. Of a hooked one only what the hook cannot know is reported: lines and phases."""

    pid: int
    hooked: bool


_TARGETS_NS: Final = 250_000_000
_FIRST_TARGETS_NS: Final = 1_000_000_000


class StackSource:
    """Samples the stacks of training processes from outside.

    Args:
        targets: Names the processes to sample now; called on the monitor's thread, a few times a second.
        rate_hz: Samples per second of the training thread of a process without a hook.
    """

    name = "stacks"

    def __init__(self, targets: Callable[[], Iterable[StackTarget]], *, rate_hz: float = 100.0) -> None:
        self._targets = targets
        self._asked_ns: int | None = None
        self._read_fd, wake_fd = os.pipe()
        self._wake_fd: int | None = wake_fd
        os.set_blocking(self._read_fd, False)
        os.set_blocking(wake_fd, False)
        self._rate_hz = rate_hz
        self._sampler: Sampler | None = None

    @property
    def problem(self) -> str | None:
        """Why findings name no line of hooked runs, with the cure; said once, however many processes are denied."""
        denied = None if self._sampler is None else self._sampler.denied
        return None if denied is None else f"The lines that cost time are not seen: {denied}"

    def fileno(self) -> int | None:
        """The pipe that the sampling thread writes to when samples wait."""
        return self._read_fd if self._wake_fd is not None else None

    def due_ns(self) -> int | None:
        """When to ask for the targets again."""
        return 0 if self._asked_ns is None else self._asked_ns + self._pause_ns()

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """What was seen since the last call."""
        if self._wake_fd is None:
            return []
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        if self._asked_ns is None or now_ns - self._asked_ns >= self._pause_ns():
            self._asked_ns = now_ns
            targets = frozenset(self._targets())
            if targets and self._sampler is None:
                self._sampler = _sampler(self._rate_hz, self._wake_fd)
            if self._sampler is not None:
                self._sampler.want(targets)
        return [] if self._sampler is None else self._sampler.take()

    def close(self) -> None:
        """Ends the thread within a second. Idempotent."""
        if self._wake_fd is None:
            return
        wake_fd, self._wake_fd = self._wake_fd, None
        if self._sampler is not None:
            self._sampler.close()
        os.close(self._read_fd)
        os.close(wake_fd)

    def _pause_ns(self) -> int:
        return _FIRST_TARGETS_NS if self._sampler is None else _TARGETS_NS


def _sampler(rate_hz: float, wake_fd: int) -> Sampler:
    """What samples, and the reader it samples with, take 5 MB, which a machine without targets is spared."""
    from gpuwatch.sources.stacks.sampler import Sampler

    return Sampler(rate_hz, wake_fd)
