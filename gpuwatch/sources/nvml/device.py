"""What all devices share: limits of values, periods of readings, the samples made of them, and noticing a loss."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from gpuwatch.metrics import COUNTER_LIMIT, GPU
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.driver import Caller, CallError, Ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def sensible(name: str, value: float | None, ledger: Ledger) -> float | None:
    """The value of a GPU's metric, or None (counted) if it lies outside of that metric's limits.

    DCGM printed 9223372036854775794 as a temperature; a monitor that passes such a value on has lied.
    """
    if value is None:
        return None
    metric = GPU[name]
    if metric.low <= value <= metric.high:
        return value
    ledger.dropped += 1
    return None


class Counter:
    """One growing counter. A single value below the last one is dropped, a second one is a reset."""

    __slots__ = ("_behind", "_last", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: int | None = None
        self._behind: int | None = None

    def take(self, value: int | None) -> int | None:
        """The value, or None (counted) for a sentinel or a value that ran backwards once."""
        if value is None:
            return None
        if not 0 <= value < COUNTER_LIMIT:
            self._ledger.dropped += 1
            return None
        if self._last is not None and value < self._last and (self._behind is None or value < self._behind):
            self._behind = value
            self._ledger.dropped += 1
            return None
        self._last, self._behind = value, None
        return value


SLOW_CALL_SECONDS = 0.005
"""A call above this holds the driver's lock long enough to be felt (MangoHud PR 2104); it is asked less often."""

OWN_SHARE = 0.01
"""Of wall time, at most, inside NVML."""

LONGEST_PAUSE_SECONDS = 5.0


class Lanes:
    """The periods in seconds. With `--interval 2` nothing is read more often than every 2 s."""

    def __init__(self, interval: float, slow: float, rare: float) -> None:
        self.interval = interval
        self.every_poll = interval
        self.alternate = max(2 * interval, min(2.0, slow))
        self.slow = max(slow, interval)
        self.lazy = max(2 * slow, interval)
        self.rare = max(rare, interval)


class Reading:
    """One value of one device: when to ask, the last answer, or why there is none.

    `offset` shifts the second asking by a share of the period, so that what is asked every other poll is
    spread over both.
    """

    __slots__ = (
        "_ask",
        "_fast_streak",
        "_lanes",
        "_next",
        "_offset",
        "_slow_streak",
        "code",
        "period",
        "slow",
        "value",
        "when",
    )

    def __init__(self, ask: Callable[[], Any], period: float, lanes: Lanes, offset: float = 0.0) -> None:
        self._ask = ask
        self._lanes = lanes
        self._offset = offset
        self._next = 0.0
        self._slow_streak = -1  # the first call of a function warms the driver up
        self._fast_streak = 0
        self.period = period
        self.slow = False
        self.value: Any = None
        self.code = reasons.NOT_YET
        self.when = 0.0

    def poll(self, now: float) -> bool:
        """Asks if it is time to; returns whether it did."""
        if now < self._next - self._lanes.interval / 4:
            return False
        first, began = self._next == 0.0, time.perf_counter()
        try:
            self.value, self.code = self._ask(), 0
        except CallError as error:
            self.value, self.code = None, error.code
        self._judge_cost(time.perf_counter() - began)
        self.when = now
        period = self.effective_period()
        self._next = max(self._next, now - period) + period if not first else now + period * (1 - self._offset)
        return True

    def hurry(self) -> None:
        """Makes it due now, because another source of the same figure has dried up, unless it is expensive."""
        if not self.slow and self.code not in reasons.RELUCTANT:
            self._next = min(self._next, time.monotonic())

    def effective_period(self) -> float:
        """The lane's period, or a longer one for what is expensive or refused."""
        if self.code in reasons.RELUCTANT:
            return max(self.period, self._lanes.rare)
        return max(self.period, self._lanes.slow) if self.slow else self.period

    def _judge_cost(self, seconds: float) -> None:
        if seconds > SLOW_CALL_SECONDS:
            self._slow_streak, self._fast_streak = self._slow_streak + 1, 0
            self.slow = self.slow or self._slow_streak >= 2
        else:
            self._slow_streak, self._fast_streak = 0, self._fast_streak + 1
            self.slow = self.slow and self._fast_streak < 3


class Pace:
    """When the next poll begins: the interval, jittered, and longer where NVML is slow.

    Without the +-10 % a training period near a multiple of the interval would always be caught at the same
    point. A slow round or three, until expensive calls have changed lanes, are no reason to slow down: the least of
    the last four counts.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._rounds = [0.0, 0.0, 0.0, 0.0]

    def spent(self, seconds: float) -> None:
        """Tells what one round of polls spent inside NVML."""
        self._rounds = [*self._rounds[1:], seconds]

    def interval(self) -> float:
        """The interval before jitter."""
        return max(self._interval, min(min(self._rounds) / OWN_SHARE, LONGEST_PAUSE_SECONDS))

    def pause(self) -> float:
        """The time from the start of this poll to the start of the next."""
        return self.interval() * (0.9 + 0.2 * os.urandom(1)[0] / 255)


Record = tuple[str, "dict[str, Any]"]
"""A sample on the wire: the name of its class in gpuwatch.samples, and its fields."""

_TRY_NEXT = frozenset({reasons.FUNCTION_NOT_FOUND, reasons.NOT_IN_WHEEL, 26})
_NO_VERDICT = reasons.PERMANENT | {reasons.NOT_YET, reasons.AVOIDED}


class Draft:
    """A sample in the making: values, how old those are that were not read just now, and why some are missing."""

    def __init__(self, kind: str, device: Device, now: float) -> None:
        self._kind = kind
        self._device = device
        self._now = now
        self._fields: dict[str, Any] = {"time_ns": time.monotonic_ns(), "uuid": device.uuid}
        self._unavailable: dict[str, str] = {}
        self._ages: dict[str, float] = {}

    def take(self, name: str, reading: Reading, value: float | None = None, scale: float = 1) -> None:
        """Puts a reading's value (or `value`, made of it) under `name`, or the reason why there is none."""
        found = reading.value if value is None else value
        if reading.code or found is None:
            self.miss(name, reading.code or reasons.NOT_FOUND)
            return
        self.put(name, found * scale if scale != 1 else found, reading.when)

    def put(self, name: str, value: float, when: float) -> None:
        """A value that was read at `when`, unless it cannot be."""
        kept = sensible(name, value, self._device.caller.ledger)
        if kept is None:
            self.miss(name, reasons.NOT_SENSIBLE)
            return
        self._fields[name] = kept
        age = self._now - when
        if age > self._device.lanes.interval / 2:
            self._ages[name] = round(age, 3)

    def set(self, name: str, value: Any) -> None:
        """A value as it is."""
        self._fields[name] = value

    def miss(self, name: str, code: int) -> None:
        """`name` is not known."""
        self._unavailable[name] = self._device.reason(name, code)

    def explain(self, name: str, reason: str) -> None:
        """`name` is not known, for a reason of our own."""
        self._unavailable[name] = reason

    def record(self) -> Record:
        """The finished sample."""
        fields = {**self._fields, "unavailable": self._unavailable}
        if self._ages:
            fields["ages_seconds"] = self._ages
        return self._kind, fields


class Device(ABC):
    """Base of Gpu and Instance."""

    def __init__(self, caller: Caller, lanes: Lanes) -> None:
        self.caller = caller
        self.uuid = caller.device
        self.lanes = lanes
        self.lost_code = 0
        self._retry_at = 0.0

    def poll(self, now: float) -> list[Record]:
        """Everything that is due, as samples; GpuLost when the device stops answering."""
        if self.lost_code and now < self._retry_at:
            return []
        was_lost, self.lost_code = self.lost_code, 0
        records = self.read(now)
        if not self.lost_code:
            return records
        self._retry_at = now + self.lanes.slow
        if was_lost:
            return []
        reason = reasons.reason_of(self.lost_code)
        if self.lost_code != reasons.GPU_IS_LOST:
            reason = f"every call fails: {reason}"
        return [("GpuLost", {"time_ns": time.monotonic_ns(), "uuid": self.uuid, "reason": reason})]

    @abstractmethod
    def read(self, now: float) -> list[Record]:
        """Polls the readings and makes samples of them; calls `judge`."""

    def reason(self, name: str, code: int) -> str:
        """Why `name` is missing; a device may know better than the code."""
        del name
        return reasons.reason_of(code)

    def judge(self, asked: Iterable[Reading]) -> None:
        """Sets `lost_code` if the device says that it is lost, or if nothing it was asked worked."""
        codes = [reading.code for reading in asked if reading.code not in _NO_VERDICT]
        if reasons.GPU_IS_LOST in codes:
            self.lost_code = reasons.GPU_IS_LOST
        elif len(codes) >= 2 and 0 not in codes:
            self.lost_code = codes[0]

    def reading(self, period: float, *ways: tuple[Any, ...], offset: float = 0.0) -> Reading:
        """A reading that tries each (function, arguments...) until the driver knows one."""

        def ask() -> Any:
            code = reasons.NOT_IN_WHEEL
            for name, *arguments in ways:
                value, code = self.caller.ask(name, *arguments)
                if code not in _TRY_NEXT:
                    break
            if code:
                raise CallError(code)
            return value

        return Reading(ask, period, self.lanes, offset)

    def made(self, period: float, ask: Callable[[], Any], offset: float = 0.0) -> Reading:
        """A reading of our own."""
        return Reading(ask, period, self.lanes, offset)
