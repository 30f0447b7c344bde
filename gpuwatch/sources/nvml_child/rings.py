"""The driver's own sample buffers: what happens between two polls.

A 1 Hz poll of a 0.5 s on, 0.5 s off load reads "5 %, idle" or "steady 50 %", depending on the sensor's window;
the ring of about 72 entries in 10 s shows it.
"""

from __future__ import annotations

import time

from gpuwatch.sources.nvml_child.calls import Caller
from gpuwatch.sources.nvml_child.driver import Driver, RingEntry
from gpuwatch.sources.nvml_child.sanity import sensible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POWER = 0
UTILIZATION = 1
_ORIGIN_JUMP_NS = 5_000_000_000
_LOOK_BACK_AFTER = 16
"""Dry drains until everything is asked for: a wall clock set back makes all new stamps "already seen"."""


class StampClock:
    """Maps the driver's microsecond stamps to CLOCK_MONOTONIC.

    The origin is boot or 1970, by driver version. An entry cannot be newer than the moment it is read, and
    the one read soonest after it was made is the best guess: so the smallest distance seen counts, and a
    jump (suspend, a changed wall clock) starts over.
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def restart(self) -> None:
        """Forgets the origin: the driver's stamps have jumped back."""
        self._offset_ns = None

    def newest(self, stamp: int, now_ns: int) -> None:
        """Tells that the newest entry of a ring that was read at `now_ns` bears `stamp`."""
        offset = now_ns - stamp * 1000
        known = self._offset_ns
        if known is None or offset < known or offset > known + _ORIGIN_JUMP_NS:
            self._offset_ns = offset

    def monotonic_ns(self, stamp: int) -> int:
        """When the entry was made; only after `newest`."""
        return stamp * 1000 + (self._offset_ns or 0)


class Ring:
    """One ring of one GPU, drained from where the last drain ended. A GPU's rings share their clock."""

    def __init__(self, caller: Caller, driver: Driver, kind: int, clock: StampClock) -> None:
        self._caller = caller
        self._driver = driver
        self._kind = kind
        self._clock = clock
        self.newest_stamp = 0
        self._dry = 0
        self._field, self._scale = ("power_watts", 1e-3) if kind == POWER else ("utilization_percent", 1.0)

    def drain(self) -> list[tuple[int, float]]:
        """(time_ns, value) pairs since the last drain, in time order; empty when the ring is dry."""
        self._dry += 1
        look_back = self._dry % _LOOK_BACK_AFTER == 0
        last_seen = 0 if look_back else self.newest_stamp
        entries = self._caller.call("nvmlDeviceGetSamples", last_seen, using=self._read, variant=self._kind)
        now_ns = time.monotonic_ns()
        if not entries or entries[-1].stamp == self.newest_stamp:
            return []
        if entries[-1].stamp < self.newest_stamp:
            self._clock.restart()
        self._dry = 0
        self.newest_stamp = entries[-1].stamp
        self._clock.newest(self.newest_stamp, now_ns)
        drained = []
        for entry in entries:
            value = sensible(self._field, entry.value * self._scale, self._caller.ledger)
            if value is not None:
                drained.append((self._clock.monotonic_ns(entry.stamp), value))
        return drained

    def _read(self, handle: Any, last_seen: int) -> list[RingEntry]:
        return self._driver.samples(handle, self._kind, last_seen)
