"""The readings of a device: their limits and periods, the samples made of them, and noticing a loss.

Some take more than one call of the wheel: field values, rings, GPM, NVLink, and the list of processes.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import pynvml

from gpuwatch.metrics import COUNTER_LIMIT, GPU
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.driver import Caller, CallError, Driver, Ledger, RingEntry, attempt, union_value, wheel

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

    Without the +-10% a training period near a multiple of the interval would always be caught at the same
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


POWER_INSTANT = 186
POWER_AVERAGE = 185
ENERGY = 83
MEMORY_TEMPERATURE = 82
PCIE_TX = 197
PCIE_RX = 198
THROTTLED_POWER = 74
THROTTLED_SW_THERMAL = 269
THROTTLED_HW_THERMAL = 270
THROTTLED_POWER_BRAKE = 271

SENSORS = (
    POWER_INSTANT,
    POWER_AVERAGE,
    ENERGY,
    MEMORY_TEMPERATURE,
    PCIE_TX,
    PCIE_RX,
    THROTTLED_POWER,
    THROTTLED_SW_THERMAL,
    THROTTLED_HW_THERMAL,
    THROTTLED_POWER_BRAKE,
)
"""The 1 s lane. Sync boost (76) is left out: nothing on screen or in a rule uses it."""

ECC_CORRECTED = 3
ECC_UNCORRECTED = 4
RETIRED_CORRECTABLE = 29
RETIRED_UNCORRECTABLE = 30
PCIE_REPLAYS = 94
REMAPPED_UNCORRECTABLE = 143
REMAP_PENDING = 144
REMAP_FAILED = 145
RECOVERY_ACTION = 230

HEALTH = (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    RETIRED_CORRECTABLE,
    RETIRED_UNCORRECTABLE,
    PCIE_REPLAYS,
    REMAPPED_UNCORRECTABLE,
    REMAP_PENDING,
    REMAP_FAILED,
    RECOVERY_ACTION,
)

_LAST_OLD_FIELD = 100
"""Fields up to here are older than any driver that still runs; some older drivers refuse a whole batch for one
number they do not know."""


class Fields:
    """Field values of one GPU: many figures in one call; those that the GPU does not have are requested once.

    They go by number and not by name, because the driver decides what exists and not the wheel.
    """

    def __init__(self, caller: Caller, numbers: tuple[int, ...]) -> None:
        self._caller = caller
        self._numbers = numbers
        self.codes: dict[int, int] = dict.fromkeys(numbers, reasons.NOT_YET)

    def read(self) -> dict[int, float]:
        """Value by field number; `codes` says why one is absent."""
        if not self._numbers:
            raise CallError(reasons.NOT_SUPPORTED)
        try:
            return self._sort(self._ask(self._numbers))
        except CallError as error:
            self.codes.update(dict.fromkeys(self._numbers, error.code))
            if error.code != reasons.INVALID_ARGUMENT:
                raise
        old = tuple(number for number in self._numbers if number <= _LAST_OLD_FIELD)
        answers = self._ask(old)
        self._numbers = old
        return self._sort(answers)

    def _ask(self, numbers: tuple[int, ...]) -> Any:
        return self._caller.call("nvmlDeviceGetFieldValues", list(numbers), variant=numbers)

    def _sort(self, answers: Any) -> dict[int, float]:
        values = {}
        for answer in answers:
            self.codes[answer.fieldId] = answer.nvmlReturn
            if answer.nvmlReturn == 0:
                values[answer.fieldId] = union_value(answer.value, answer.valueType)
        permanent = [n for n in self._numbers if self.codes[n] in reasons.PERMANENT]
        if permanent:
            self._numbers = tuple(n for n in self._numbers if n not in permanent)
        return values


POWER_RING = 0
UTILIZATION_RING = 1
_ORIGIN_JUMP_NS = 5_000_000_000
_LOOK_BACK_AFTER = 16
"""Dry drains until everything is requested: a wall clock set back makes all new stamps "already seen"."""


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
    """One ring of one GPU, drained from where the last drain ended. A GPU's rings share their clock.

    A 1 Hz poll of a 0.5 s on, 0.5 s off load reads "5%, idle" or "steady 50%", depending on the sensor's window; the
    ring of about 72 entries in 10 s shows it.
    """

    def __init__(self, caller: Caller, driver: Driver, kind: int, clock: StampClock) -> None:
        self._caller = caller
        self._driver = driver
        self._kind = kind
        self._clock = clock
        self.newest_stamp = 0
        self._dry = 0
        self._field, self._scale = ("power_watts", 1e-3) if kind == POWER_RING else ("utilization_percent", 1.0)

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


GPM_METRICS = {2: "sm_activity_percent", 5: "tensor_activity_percent", 10: "dram_activity_percent"}
_LEAST_SECONDS = 0.1
_MOST_PERCENT = 100.5
"""The driver divides two counters that it does not read at the same moment."""


class Gpm:
    """How busy the SMs, the tensor cores and the memory are, on Hopper and later. "100% utilization" does not say.

    Of one GPU, or of one MIG instance of it (`instance` is the GPU instance's id). A value is the mean between two
    samples that lie at least 100 ms apart.
    """

    def __init__(self, caller: Caller, instance: int | None = None) -> None:
        self._caller = caller
        self._instance = instance
        self._samples: list[Any] = []
        self._taken_at: float | None = None
        self._supported = False

    def read(self) -> dict[str, float]:
        """Metric by name since the previous reading.

        Raises:
            CallError: not supported here, or this is the first of two samples.
        """
        if not self._supported:
            self._probe()
        older, newer = self._samples
        if self._instance is None:
            self._caller.call("nvmlGpmSampleGet", newer)
        else:
            self._caller.call("nvmlGpmMigSampleGet", self._instance, newer)
        now, before = time.monotonic(), self._taken_at
        self._taken_at = now
        self._samples = [newer, older]
        if before is None or now - before < _LEAST_SECONDS:
            raise CallError(reasons.NOT_YET)
        return self._metrics(older, newer)

    def _probe(self) -> None:
        self._caller.call("nvmlGpmQueryDeviceSupport", using=_require_support)
        alloc = wheel("nvmlGpmSampleAlloc")
        self._samples = [self._caller.call("nvmlGpmSampleAlloc", using=lambda _handle: attempt(alloc)) for _ in "ab"]
        self._supported = True

    def _metrics(self, older: Any, newer: Any) -> dict[str, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = older, newer
        request.numMetrics = len(GPM_METRICS)
        for slot, number in enumerate(GPM_METRICS):
            request.metrics[slot].metricId = number
        self._caller.call("nvmlGpmMetricsGet", using=lambda _handle: pynvml.nvmlGpmMetricsGet(request))
        found = {}
        for slot, name in enumerate(GPM_METRICS.values()):
            metric = request.metrics[slot]
            percent = 100.0 if 100.0 < metric.value <= _MOST_PERCENT else metric.value
            value = sensible(name, percent, self._caller.ledger) if metric.nvmlReturn == 0 else None
            if value is not None:
                found[name] = round(value, 2)
        return found


def _require_support(handle: Any) -> None:
    """Makes "no" an error of the call, which is then remembered as any other refusal."""
    if not attempt(wheel("nvmlGpmQueryDeviceSupport"), handle).isSupportedDevice:
        raise CallError(reasons.NOT_SUPPORTED)


LINK_COUNT = 91
LINK_STATE = 165

NVLINK_TOTALS = {"nvlink_crc_errors": (38, 45), "nvlink_replays": (52,), "nvlink_recoveries": (59,)}
"""Up to Ampere: one number for all links. CRC errors are counted apart for flow control and for data."""

NVLINK_BY_LINK = {"nvlink_crc_errors": (163,), "nvlink_replays": (161,), "nvlink_recoveries": (162, 215)}
"""From Hopper on, link by link. Blackwell has no 161 to 163 and counts recoveries in 215."""

_HOPPER = (9, 0)
_MOST_LINKS = 64


class Links:
    """Links that report their state, and those of them that are up."""

    __slots__ = ("active", "total")

    def __init__(self, total: int, active: int) -> None:
        self.total = total
        self.active = active


class NvLink:
    """NVLink of one GPU: how many links are up, and what they have had to repeat.

    Two calls every 30 s, however many links there are: field values carry a link's number as their scope. Before Hopper
    the state is one call a link (NCCL asks alike), so there it is read every 60 s. What this GPU does not have is
    requested once.
    """

    def __init__(self, caller: Caller, capability: tuple[int, int] | None) -> None:
        self._caller = caller
        self.is_scoped = capability is not None and tuple(capability) >= _HOPPER
        self._count: int | None = None
        self._numbers = NVLINK_BY_LINK if self.is_scoped else NVLINK_TOTALS
        self._absent: set[int] = set()

    def links(self) -> Links:
        """How many links there are and how many are up; one that does not report is left out."""
        count = self._known_count()
        states = self._states_by_field(count) if self.is_scoped else self._states_one_by_one(count)
        reported = [state for state, code in states if not code]
        if not reported:
            raise CallError(states[0][1])
        return Links(len(reported), sum(state == 1 for state in reported))

    def errors(self) -> dict[str, int]:
        """The counters that the driver keeps, over all links; they only grow."""
        count = self._known_count()
        wanted = [number for numbers in self._numbers.values() for number in numbers if number not in self._absent]
        scopes = range(count) if self.is_scoped else range(1)
        if not wanted:
            raise CallError(reasons.NOT_SUPPORTED)
        answers = self._ask([(number, scope) for number in wanted for scope in scopes])
        counted: dict[int, list[int]] = {number: [] for number in wanted}
        codes: dict[int, set[int]] = {number: set() for number in wanted}
        for answer in answers:
            codes[answer.fieldId].add(answer.nvmlReturn)
            if answer.nvmlReturn == 0:
                counted[answer.fieldId].append(int(union_value(answer.value, answer.valueType)))
        self._absent.update(number for number in wanted if codes[number] <= reasons.PERMANENT)
        return {
            name: sum(sum(counted.get(number, ())) for number in numbers)
            for name, numbers in self._numbers.items()
            if any(counted.get(number) for number in numbers)
        }

    def _known_count(self) -> int:
        if self._count is None:
            (answer,) = self._ask([(LINK_COUNT, 0)])
            if answer.nvmlReturn not in reasons.PERMANENT | {0}:
                raise CallError(answer.nvmlReturn)
            found = 0 if answer.nvmlReturn else int(union_value(answer.value, answer.valueType))
            self._count = found if 0 <= found <= _MOST_LINKS else 0
        if not self._count:
            raise CallError(reasons.NOT_SUPPORTED)
        return self._count

    def _states_by_field(self, count: int) -> list[tuple[int | None, int]]:
        answers = self._ask([(LINK_STATE, link) for link in range(count)])
        return [(int(union_value(answer.value, answer.valueType)), answer.nvmlReturn) for answer in answers]

    def _states_one_by_one(self, count: int) -> list[tuple[int | None, int]]:
        return [self._caller.ask("nvmlDeviceGetNvLinkState", link) for link in range(count)]

    def _ask(self, numbers: list[tuple[int, int]]) -> Any:
        return self._caller.call("nvmlDeviceGetFieldValues", numbers, variant=("nvlink", tuple(numbers)))


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, a constant of the kernel
_COMMAND_CHARACTERS = 200
_ANSWER_SECONDS = 0.5
_MOST_WAITING = 8
_STALE_MICROSECONDS = 10_000_000

CANNOT_MAP = "the driver gives host pids, which this container cannot see (docker run --pid=host)"
CANNOT_MAP_WSL = "under WSL the driver gives pids of Windows"


class PidMap:
    """From the host's pids, which NVML reports, to ours.

    On the host they are the same. In a container they only can be mapped where the host's /proc is mounted
    (`proc_root`): there `NSpid:` lists a process's pid in each namespace from the host's inwards.
    """

    def __init__(self, proc_root: str) -> None:
        self._root = proc_root
        self._on_host = _namespace(proc_root) == _FIRST_PID_NAMESPACE
        self._depth = len(self._namespace_pids("self"))
        self._waiting: dict[int, threading.Thread] = {}
        self._names: dict[int, str] = {}
        self.known = self._on_host or self._depth > 1
        self.reason = None if self.known else CANNOT_MAP_WSL if reasons.in_wsl() else CANNOT_MAP

    def pid(self, host_pid: int) -> int | None:
        """Our pid of a process, or None where it cannot be mapped or is gone."""
        if not self.known:
            return None
        pids = self._namespace_pids(str(host_pid))
        return pids[self._depth - 1] if len(pids) >= self._depth > 0 else None

    def command(self, host_pid: int) -> str | None:
        """The command line, cut to 200 characters."""
        if not self.known:
            return None
        words = os.fsdecode(self._raw_command(host_pid).rstrip(b"\0").replace(b"\0", b" "))
        return words[:_COMMAND_CHARACTERS] or None

    def user(self, host_pid: int) -> str | None:
        """The name of the user it runs as, or the number of one that has no name here."""
        uids = self._status(str(host_pid), b"Uid:") if self.known else []
        if len(uids) < 2:
            return None
        uid = uids[1]  # the effective one, as `ps` shows it
        if uid not in self._names:
            self._names[uid] = _login_name(uid) or str(uid)
        return self._names[uid]

    def age_seconds(self, host_pid: int) -> float | None:
        """Since it started."""
        if not self.known:
            return None
        try:
            with open(f"{self._root}/{host_pid}/stat", "rb") as stat, open(f"{self._root}/uptime", "rb") as uptime:
                # The name, in parentheses, may hold anything; the 20th field after it is the start.
                ticks = int(stat.read(1024).rpartition(b")")[2].split()[19])
                return max(0.0, float(uptime.read(64).split()[0]) - ticks / _TICKS_PER_SECOND)
        except (OSError, ValueError, IndexError):
            return None

    def _raw_command(self, host_pid: int) -> bytes:
        """Empty where a process keeps who reads it waiting, in a system call that holds the lock of its memory."""
        self._waiting = {pid: reader for pid, reader in self._waiting.items() if reader.is_alive()}
        found: list[bytes] = []

        def read() -> None:
            try:
                with open(f"{self._root}/{host_pid}/cmdline", "rb") as file:
                    found.append(file.read(4 * _COMMAND_CHARACTERS))
            except OSError:
                return

        if host_pid not in self._waiting and len(self._waiting) < _MOST_WAITING:
            reader = threading.Thread(target=read, name="gpuwatch-cmdline", daemon=True)
            reader.start()
            reader.join(_ANSWER_SECONDS)
            if reader.is_alive():
                self._waiting[host_pid] = reader
        return found[0] if found else b""

    def _namespace_pids(self, name: str) -> list[int]:
        return self._status(name, b"NSpid:")

    def _status(self, name: str, key: bytes) -> list[int]:
        try:
            with open(f"{self._root}/{name}/status", "rb") as file:
                for row in file:
                    if row.startswith(key):
                        return [int(word) for word in row.split()[1:]]
        except (OSError, ValueError):
            return []
        return []


def _login_name(uid: int) -> str | None:
    import pwd  # not on Windows, where the rest of this module still imports

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _namespace(proc_root: str) -> str | None:
    try:
        return os.readlink(f"{proc_root}/self/ns/pid")
    except OSError:
        return None


class Processes:
    """The process list of one GPU or MIG instance, joined with each process's SM share where there is one."""

    def __init__(self, caller: Caller, driver: Driver, pids: PidMap, ring: Ring | None) -> None:
        self._caller = caller
        self._driver = driver
        self._pids = pids
        self._ring = ring
        self._last_stamp = 0
        self.memory_bytes: int | None = None

    def read(self) -> list[dict[str, object]]:
        """One record for each process; `memory_bytes` of this object becomes their sum, if all are known."""
        records = self._caller.call("nvmlDeviceGetComputeRunningProcesses_v3", using=self._driver.processes)
        shares = self._shares() if records and self._ring else {}
        sizes = [record.memory_bytes for record in records]
        self.memory_bytes = sum(size for size in sizes if size is not None) if None not in sizes else None
        return [
            {
                "host_pid": record.pid,
                "pid": self._pids.pid(record.pid),
                "memory_bytes": record.memory_bytes,
                "sm_percent": shares.get(record.pid),
                "command": self._pids.command(record.pid),
                "user": self._pids.user(record.pid),
                "age_seconds": self._pids.age_seconds(record.pid),
            }
            for record in records
        ]

    def _shares(self) -> dict[int, float]:
        """SM percent by host pid: each process's newest row, without stale ones, which drivers also return."""
        try:
            rows = self._caller.call(
                "nvmlDeviceGetProcessUtilization", self._last_stamp, using=self._driver.process_utilization
            )
        except CallError:
            return {}  # the list is worth having without it
        newest = max([stamp for _, stamp, _ in rows] + [self._ring.newest_stamp if self._ring else 0], default=0)
        fresh = [row for row in rows if row[1] > self._last_stamp and newest - row[1] <= _STALE_MICROSECONDS]
        self._last_stamp = max((stamp for _, stamp, _ in fresh), default=self._last_stamp)
        return {pid: float(min(percent, 100)) for pid, _, percent in sorted(fresh, key=lambda row: row[1])}


def unmapped_reason(pids: PidMap, code: int) -> str | None:
    """Why the list, or the pids in it, are missing."""
    if code:
        return reasons.reason_of(code)
    return pids.reason
