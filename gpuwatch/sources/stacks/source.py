"""The source: what the monitor polls while other threads sample the stacks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatch.samples import Sample

if TYPE_CHECKING:
    from gpuwatch.sources.stacks.sampler import Sampler
    from gpuwatch.sources.stacks.workers import Attach


@dataclass(frozen=True, slots=True)
class StackTarget:
    """A process to look at. Of a hooked one only what the hook cannot know is reported: lines and phases."""

    pid: int
    hooked: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """The rates that are asked for, and what they may cost."""

    rate_hz: float
    hooked_rate_hz: float
    worker_rate_hz: float
    cpu_share_limit: float
    lone_cpu_share_limit: float


__all__ = ["StackSource", "StackTarget"]

_TARGETS_NS: Final = 250_000_000
_FIRST_TARGETS_NS: Final = 1_000_000_000


class StackSource:
    """Samples the stacks of training processes from outside.

    Args:
        targets: Names the processes to look at now; called on the monitor's thread, a few times a second.
        proc_root: The /proc to read.
        clock: CLOCK_MONOTONIC in nanoseconds.
        rate_hz: Looks per second at the training thread of a process without a hook.
        hooked_rate_hz: The same of one with a hook, which knows times better: only lines are wanted.
        worker_rate_hz: Looks per second at each DataLoader worker.
        cpu_share_limit: What all looks together may cost, of one core.
        lone_cpu_share_limit: The same while they are at one process only.
        seed: Of the jitter.
        attach: How a process is attached to; by the reader where nothing else is said.
    """

    name = "stacks"

    def __init__(
        self,
        targets: Callable[[], Iterable[StackTarget]],
        *,
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        rate_hz: float = 100.0,
        hooked_rate_hz: float = 25.0,
        worker_rate_hz: float = 20.0,
        cpu_share_limit: float = 0.05,
        lone_cpu_share_limit: float = 0.03,
        seed: int = 0,
        attach: Attach | None = None,
    ) -> None:
        self._targets = targets
        self._asked_ns: int | None = None
        self._read_fd, wake_fd = os.pipe()
        self._wake_fd: int | None = wake_fd
        os.set_blocking(self._read_fd, False)
        os.set_blocking(wake_fd, False)
        asked = Asked(rate_hz, hooked_rate_hz, worker_rate_hz, cpu_share_limit, lone_cpu_share_limit)
        self._make_sampler = partial(
            _make_sampler, asked, proc_root=proc_root, clock=clock, seed=seed, attach=attach, wake_fd=wake_fd
        )
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
                self._sampler = self._make_sampler()
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


def _make_sampler(
    asked: Asked, *, proc_root: Path, clock: Callable[[], int], seed: int, attach: Attach | None, wake_fd: int
) -> Sampler:
    """What looks, and the reader it looks with, take 5 MB, which a machine without targets is spared."""
    from gpuwatch.sources.stacks.sampler import Sampler
    from gpuwatch.sources.stacks.workers import AttachReader

    return Sampler(asked, proc_root=proc_root, clock=clock, seed=seed, attach=attach or AttachReader(), wake_fd=wake_fd)
