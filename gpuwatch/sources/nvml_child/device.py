"""What whole GPUs and MIG instances share: readings, the samples made of them, and noticing that one is lost."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, CallError
from gpuwatch.sources.nvml_child.lanes import Lanes, Reading
from gpuwatch.sources.nvml_child.sanity import sensible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
