"""NVML calls: each is probed once, timed, named in the marker, and its refusals remembered.

The wheel's `nvmlDeviceGetSamples`, process list and process utilization first ask for the size, then for the data. A
buffer that is large enough from the start halves the calls, so `Driver` makes these itself, with the structures of the
wheel.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

import pynvml

from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.wire import Avoid, Marker, marker_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Ledger:
    """What NVML costs this process, and what of its answers was thrown away."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.dropped = 0


class CallError(Exception):
    """A call gave no value; `code` is NVML's or one of ours (see reasons)."""

    def __init__(self, code: int) -> None:
        super().__init__(reasons.reason_of(code))
        self.code = code


def wheel(name: str) -> Callable[..., Any] | None:
    """The wrapper of this name in nvidia-ml-py; older wheels lack newer functions."""
    return getattr(pynvml, name, None)


def attempt(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Calls once and turns every way to fail into CallError.

    `NVMLLibraryMismatchError` is no NVMLError; a wrapper that meets an unexpected structure raises plain
    ValueError, TypeError or ctypes.ArgumentError, one that believes an absurd count MemoryError or OverflowError;
    NVMLError(0) means "no data".
    """
    if function is None:
        raise CallError(reasons.NOT_IN_WHEEL)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise CallError(error.value or reasons.NOT_FOUND) from None
    except pynvml.NVMLLibraryMismatchError:
        raise CallError(reasons.FUNCTION_NOT_FOUND) from None
    except (MemoryError, OverflowError, UnicodeDecodeError):
        raise CallError(reasons.NOT_SENSIBLE) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise CallError(reasons.INVALID_ARGUMENT) from error


class Caller:
    """Makes the calls of one device. `device` is its UUID, which names it for the parent."""

    def __init__(self, handle: Any, device: str, ledger: Ledger, marker: Marker, avoid: Avoid) -> None:
        self.handle = handle
        self.device = device
        self.ledger = ledger
        self._marker = marker
        self._avoid = avoid.get(device)
        self._lines: dict[str, bytes] = {}
        self._refused: dict[tuple[str, object], int] = {}

    def call(self, name: str, *arguments: Any, using: Callable[..., Any] | None = None, variant: object = None) -> Any:
        """Calls `name` of nvidia-ml-py (or `using`, ours for the same function) with the handle.

        `variant` distinguishes uses of one function that a GPU may support separately.

        Raises:
            CallError: with the code; permanent refusals come from memory and cost no call.
        """
        key = (name, variant)
        refused = self._refused.get(key)
        if refused is not None:
            raise CallError(refused)
        if self._avoid and self._is_avoided(name):
            raise CallError(reasons.AVOIDED)
        text = self._lines.get(name)
        if text is None:
            text = self._lines[name] = marker_line(self.device, name)
        function = using or wheel(name)
        ledger = self.ledger
        began = time.perf_counter()
        self._marker.set(text, began)
        try:
            return attempt(function, self.handle, *arguments)
        except CallError as error:
            if error.code in reasons.PERMANENT:
                self._refused[key] = error.code
            raise
        finally:
            ledger.calls += 1
            ledger.seconds += time.perf_counter() - began

    def ask(self, name: str, *arguments: Any, using: Callable[..., Any] | None = None) -> tuple[Any, int]:
        """As `call`, but returns (value, 0) or (None, code)."""
        try:
            return self.call(name, *arguments, using=using, variant=arguments), 0
        except CallError as error:
            return None, error.code

    def is_avoided_entirely(self) -> bool:
        """Whether an earlier child hung or crashed in several calls on this device."""
        return bool(self._avoid) and self._is_avoided("*")

    def _is_avoided(self, name: str) -> bool:
        avoid = self._avoid or {}
        until = max(avoid.get(name, 0), avoid.get("*", 0))
        return until > time.monotonic_ns()


RING_ROOM = 256  # the driver keeps about 72 to 120
PROCESS_ROOM = 64
_MOST_ENTRIES = 16_384
"""More processes or ring entries than any machine has: a count above it is a broken driver's, and no list is made."""
_RECORD_BYTES = 24
_LONG_RECORD_BYTES = 32  # early R535 drivers, until 535.98
_FILL = 0xA5


class RingEntry:
    """One entry of a driver's ring; the stamp counts microseconds from an origin that varies by driver."""

    __slots__ = ("stamp", "value")

    def __init__(self, stamp: int, value: float) -> None:
        self.stamp = stamp
        self.value = value


class ProcessRecord:
    """One process of a GPU's list; `memory_bytes` is None where the driver does not count it (WSL, WDDM)."""

    __slots__ = ("memory_bytes", "pid")

    def __init__(self, pid: int, memory_bytes: int | None) -> None:
        self.pid = pid
        self.memory_bytes = memory_bytes


class Driver:
    """Direct entry points into the library that pynvml has loaded."""

    def __init__(self) -> None:
        name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
        self._library = ctypes.CDLL(name)  # the same one: the loader counts references
        self._samples = (pynvml.c_nvmlSample_t * RING_ROOM)()
        self._records = ctypes.create_string_buffer(PROCESS_ROOM * _LONG_RECORD_BYTES)
        self._uses = (pynvml.c_nvmlProcessUtilizationSample_t * PROCESS_ROOM)()

    def _symbol(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise CallError(reasons.FUNCTION_NOT_FOUND) from None

    def samples(self, handle: Any, kind: int, last_seen: int) -> list[RingEntry]:
        """Drains one ring: entries later than `last_seen`, in time order. A dry ring is an empty list."""
        code, value_type, count = self._read_ring(handle, kind, last_seen, self._samples)
        if code in (reasons.INVALID_ARGUMENT, reasons.INSUFFICIENT_SIZE):
            code, _, room = self._read_ring(handle, kind, last_seen, None)
            _check_count(room)
            if not code:
                self._samples = (pynvml.c_nvmlSample_t * room)()
                code, value_type, count = self._read_ring(handle, kind, last_seen, self._samples)
        if code == reasons.NOT_FOUND:
            return []
        if code:
            raise CallError(code)
        found = [
            RingEntry(entry.timeStamp, union_value(entry.sampleValue, value_type))
            for entry in self._samples[: min(count, len(self._samples))]
            if entry.timeStamp > last_seen
        ]
        return sorted(found, key=lambda entry: entry.stamp)

    def _read_ring(self, handle: Any, kind: int, last_seen: int, into: Any) -> tuple[int, int, int]:
        """(code, type of the values, how many); without a buffer, how many there may be."""
        value_type, count = ctypes.c_uint(), ctypes.c_uint(len(into) if into is not None else 0)
        code = self._symbol("nvmlDeviceGetSamples")(
            handle,
            ctypes.c_uint(kind),
            ctypes.c_ulonglong(last_seen),
            ctypes.byref(value_type),
            ctypes.byref(count),
            into,
        )
        return code, value_type.value, count.value

    def processes(self, handle: Any) -> list[ProcessRecord]:
        """The compute processes of a GPU.

        The buffer is pre-filled, so that the bytes a driver wrote show its record size: reading 32-byte
        records as 24 makes up processes.
        """
        for _ in range(2):
            room = len(self._records) // _LONG_RECORD_BYTES
            ctypes.memset(self._records, _FILL, len(self._records))
            count = ctypes.c_uint(room)
            code = self._symbol("nvmlDeviceGetComputeRunningProcesses_v3")(handle, ctypes.byref(count), self._records)
            _check_count(count.value)
            if code != reasons.INSUFFICIENT_SIZE:
                break
            self._records = ctypes.create_string_buffer((2 * count.value + 5) * _LONG_RECORD_BYTES)
        if code:
            raise CallError(code)
        if count.value > room:
            raise CallError(reasons.NOT_SENSIBLE)
        written = self._records.raw
        beyond = written[count.value * _RECORD_BYTES : count.value * _LONG_RECORD_BYTES]
        size = _LONG_RECORD_BYTES if beyond.strip(bytes([_FILL])) else _RECORD_BYTES
        found = []
        for start in range(0, count.value * size, size):
            pid = int.from_bytes(written[start : start + 4], sys.byteorder)
            memory = int.from_bytes(written[start + 8 : start + 16], sys.byteorder)
            found.append(ProcessRecord(pid, memory if memory < 1 << 62 else None))
        return found

    def process_utilization(self, handle: Any, last_seen: int) -> list[tuple[int, int, int]]:
        """(pid, stamp, SM percent) rows since `last_seen`; real drivers also return older ones."""
        for _ in range(2):
            count = ctypes.c_uint(len(self._uses))
            code = self._symbol("nvmlDeviceGetProcessUtilization")(
                handle, self._uses, ctypes.byref(count), ctypes.c_ulonglong(last_seen)
            )
            _check_count(count.value)
            if code != reasons.INSUFFICIENT_SIZE:
                break
            self._uses = (pynvml.c_nvmlProcessUtilizationSample_t * (2 * count.value + 5))()
        if code == reasons.NOT_FOUND:
            return []
        if code:
            raise CallError(code)
        return [(row.pid, row.timeStamp, row.smUtil) for row in self._uses[: count.value] if row.pid]


def _check_count(count: int) -> None:
    """Raises CallError for a number of entries that cannot be."""
    if count > _MOST_ENTRIES:
        raise CallError(reasons.NOT_SENSIBLE)


def union_value(value: Any, value_type: int) -> float:
    """Reads `nvmlValue_t` by its type tag."""
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return getattr(value, member[value_type]) if value_type < len(member) else value.ullVal  # type: ignore[no-any-return]
