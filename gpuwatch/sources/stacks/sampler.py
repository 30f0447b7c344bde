"""The one thread that looks: it waits for the next due look, takes it, and hands samples over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from gpuwatch.samples import Sample
from gpuwatch.sources.stacks.asked import Asked, StackTarget
from gpuwatch.sources.stacks.reading import Attach
from gpuwatch.sources.stacks.schedule import Agenda, CpuBudget, CpuMeter
from gpuwatch.sources.stacks.session import Settings
from gpuwatch.sources.stacks.targets import FollowedTarget
from gpuwatch.sources.syntax_child.client import SHARED

_IDLE_SECONDS: Final = 0.25
_BUDGET_NS: Final = 250_000_000
_RING_NS: Final = 500_000_000
_MOST_WAITING: Final = 20_000
CLOSE_SECONDS: Final = 0.9


class Sampler:
    """Looks at all targets from a thread of its own; a look that hangs in the kernel is left behind at close.

    Args:
        ring: A non-blocking pipe's write end, rung when samples wait.
    """

    def __init__(
        self, asked: Asked, *, proc_root: Path, clock: Callable[[], int], seed: int, attach: Attach, ring: int
    ) -> None:
        self._clock = clock
        self._ring = ring
        self._asked = asked
        self._rung_ns = 0
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._wanted: frozenset[StackTarget] = frozenset()
        self._followed_for: frozenset[StackTarget] = frozenset()
        self._followed: dict[int, FollowedTarget] = {}
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._budget = CpuBudget(asked.cpu_share_limit)
        self._meter = CpuMeter()
        self._agenda = Agenda(clock)
        self._settings = Settings(
            proc_root=proc_root,
            attach=attach,
            rate_hz=asked.rate_hz,
            hooked_rate_hz=asked.hooked_rate_hz,
            worker_rate_hz=asked.worker_rate_hz,
            chance=Random(seed),
            agenda=self._agenda,
            budget=self._budget,
            meter=self._meter,
            emit=self._emit,
        )
        self._thread = threading.Thread(target=self._run, name="gpuwatch-stacks", daemon=True)

    def want(self, targets: Iterable[StackTarget]) -> None:
        """Names the targets to look at from now on; the thread starts with the first."""
        wanted = frozenset(targets)
        if wanted != self._wanted:
            self._wanted = wanted
        if self._wanted and not self._thread.ident:
            self._thread.start()

    def take(self) -> list[Sample]:
        """The samples since the last call.

        Raises:
            RuntimeError: the thread has failed: nothing is looked at any more.
        """
        with self._lock:
            samples, self._samples = self._samples, []
        if self._failure is not None and not samples:
            raise RuntimeError(f"looking at stacks has ended: {self._failure!r}") from self._failure
        return samples

    def close(self) -> None:
        """Ends the thread, or leaves it behind where a system call of its does not return."""
        self._closing.set()
        if self._thread.ident:
            self._thread.join(CLOSE_SECONDS)
        SHARED.close()

    def _emit(self, sample: Sample) -> None:
        with self._lock:
            # Nobody takes them: the newest are of no more use than the oldest, and memory is bounded.
            if len(self._samples) < _MOST_WAITING:
                self._samples.append(sample)

    def _run(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - whoever takes the samples raises it: a thread that dies says nothing
            self._failure = error

    def _look(self) -> None:
        self._agenda.add(self._clock(), self._keep_budget)
        while not self._closing.is_set():
            self._follow_wanted()
            self._agenda.run_due()
            self._ring_if_due()
            due_ns = self._agenda.due_ns
            seconds = _IDLE_SECONDS if due_ns is None else (due_ns - self._clock()) / 1e9
            if seconds > 0.0:
                # Half the CPU of Event.wait, 100 times a second; close waits for it.
                time.sleep(min(seconds, _IDLE_SECONDS))
        for followed in self._followed.values():
            followed.close(self._clock())

    def _follow_wanted(self) -> None:
        wanted = self._wanted
        if wanted is self._followed_for:
            return
        self._followed_for = wanted
        now_ns = self._clock()
        for pid, followed in list(self._followed.items()):
            if followed.target not in wanted:
                followed.let_go(now_ns)
                del self._followed[pid]
        for target in wanted:
            # One that ended stays named until it is no longer wanted: its pid may be another's by now.
            if target.pid not in self._followed:
                self._followed[target.pid] = FollowedTarget(target, self._settings, now_ns)

    def _keep_budget(self, now_ns: int) -> int:
        looked_at = sum(followed.looked_at for followed in self._followed.values())
        asked = self._asked
        self._budget.limit_share = asked.cpu_share_limit if looked_at > 1 else asked.lone_cpu_share_limit
        self._budget.note(now_ns, self._meter.now())
        return now_ns + _BUDGET_NS

    def _ring_if_due(self) -> None:
        now_ns = self._clock()
        if self._samples and now_ns - self._rung_ns >= _RING_NS:
            self._rung_ns = now_ns
            with suppress(BlockingIOError):  # full: it was rung often enough
                os.write(self._ring, b"\0")
