"""The machine as NVML shows it: its devices, the loop that polls them, XID errors, and the survey for `doctor`."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable

import pynvml

from gpuwatch.sources.nvml import readings, reasons
from gpuwatch.sources.nvml.driver import Caller, CallError, Driver, Ledger, attempt, wheel
from gpuwatch.sources.nvml.gpu import Gpu, MigInstance, find_instances, read_facts, text
from gpuwatch.sources.nvml.readings import Device, Lanes, Pace, PidMap, Record
from gpuwatch.sources.nvml.wire import EVENT_WAIT, LIBRARY, Avoid, Marker, Options, Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_NO_GPU = (
    "The NVIDIA driver is loaded but shows no GPU: look at `lspci | grep -i nvidia`, and in a container at "
    "NVIDIA_VISIBLE_DEVICES."
)


MOST_GPUS = 128
"""More than any machine has; a driver that claims more is not believed."""
_TOO_MANY_GPUS = (
    "The NVIDIA driver reports {} GPUs, which is impossible: compare with `nvidia-smi -L`, and restart the machine if "
    "it says the same."
)


class StartOverError(Exception):
    """NVML has to be started again after `seconds`: in a fresh process, or here if nothing was opened yet."""

    def __init__(self, seconds: float, status: str, reason: str, here: bool = False, **details: Any) -> None:
        super().__init__(reason)
        self.seconds = seconds
        self.here = here
        self.state = {"status": status, "reason": reason, **details}


def start(marker: Marker, ledger: Ledger) -> int:
    """Loads and initialises NVML; returns the code, 0 when it works."""
    if wheel("nvmlGpmSampleGet") is None:
        return reasons.NOT_IN_WHEEL
    caller = Caller(None, LIBRARY, ledger, marker, {})
    _, code = caller.ask("nvmlInit", using=lambda _none: pynvml.nvmlInit())
    marker.clear()
    return code


def stop(marker: Marker, ledger: Ledger) -> None:
    """Ends NVML in this process, so that `start` begins again; it may not have been started."""
    Caller(None, LIBRARY, ledger, marker, {}).ask("nvmlShutdown", using=lambda _none: attempt(wheel("nvmlShutdown")))
    marker.clear()


class Machine:
    """All devices. A changed GPU count, MIG mode or driver makes a new one, in a new process.

    NVML state then never outlives what it was made for, and handles never go stale (LibreHardwareMonitor#2523).
    """

    def __init__(self, options: Options, output: Output, marker: Marker, ledger: Ledger) -> None:
        self.options = options
        self.output = output
        self.marker = marker
        self.ledger = ledger
        self.lanes = Lanes(options.interval_seconds, options.slow_seconds, options.rare_seconds)
        self.driver = Driver()
        self.devices: list[Device] = []
        self.gpus: list[Gpu] = []
        self.notes: list[str] = []
        self.count = 0
        self._uuids: dict[int, str] = {}
        self._pids = PidMap(options.proc_root)
        self.library = self._caller(None, LIBRARY)
        self._patience = options.init_seconds / 3
        self.versions: dict[str, Any] = {
            "driver_version": text(self.ask("nvmlSystemGetDriverVersion")[0]),
            "cuda_version": _cuda_version(self.ask("nvmlSystemGetCudaDriverVersion")[0]),
        }

    def enumerate(self) -> None:
        """Finds all devices and emits their facts one by one, so that a slow driver is not taken for a dead one.

        Raises:
            StartOverError: there is no GPU, or none can be opened, or they changed meanwhile.
        """
        count, code = self.ask("nvmlDeviceGetCount")
        again = self.options.retry_seconds
        if code:
            raise StartOverError(again, "failing", reasons.init_sentence(code), **self.versions)
        if count == 0:
            raise StartOverError(again, "absent", _NO_GPU, here=True, gpu_count=0, **self.versions)
        if count > MOST_GPUS:
            raise StartOverError(again, "failing", _TOO_MANY_GPUS.format(count), **self.versions)
        self.count = int(count)
        codes = [self._add_gpu(index) for index in range(self.count)]
        self.check_unchanged(again)
        self.marker.clear()
        self.output.line(next=self.lanes.interval + 2, samples=[], enumerated=[device.uuid for device in self.devices])
        if not self.devices:
            raise StartOverError(again, "failing", reasons.init_sentence(codes[0]), **self.versions)

    def check_unchanged(self, again: float) -> None:
        """Whether each index still has the GPU that was enumerated there.

        Raises:
            StartOverError: one has another, or there are more or fewer; NVML is to be started again after `again` s.
        """
        now, code = self.ask("nvmlDeviceGetCount")
        if not code and now != self.count:
            raise StartOverError(again, "restarting", f"The number of GPUs changed from {self.count} to {now}.")
        for index, known in self._uuids.items():
            uuid = self._uuid_of(self._find(index)[0], index)
            if uuid and uuid != known:
                raise StartOverError(again, "restarting", f"GPU {index} is not the same GPU as before: {uuid}.")

    def ask(self, name: str) -> tuple[Any, int]:
        """A question to the library, not to a device: (value, 0) or (None, code)."""
        function = wheel(name)
        return self.library.ask(name, using=lambda _none: attempt(function))

    def _add_gpu(self, index: int) -> int:
        """Adds one GPU, and under MIG its instances; returns the code that prevented it."""
        handle, code = self._find(index)
        if code:
            reason = reasons.reason_of(code)
            self.notes.append(f"GPU {index}: {reason}")
            self.output.line(next=self._patience, samples=[], lost_index=[index, reason])
            return code
        known = self._uuid_of(handle, index)
        if not known or any(device.uuid == known for device in self.devices):
            self.check_unchanged(self.options.retry_seconds)  # else what comes or goes just now would get this name
            known = f"GPU-index-{index}"  # two GPUs under one name would be one row
        else:
            self._uuids[index] = known
        caller = self._caller(handle, known)
        self.output.line(next=self._patience, samples=[], found=[index, caller.device])
        facts, may_come = read_facts(caller, index, self.options.proc_root)
        samples: list[Record] = [("GpuFacts", facts)]
        gpu = Gpu(caller, self.lanes, facts, self.driver, self._pids)
        gpu.facts_may_come = may_come
        self.gpus.append(gpu)
        self.devices.append(gpu)
        for instance, its_facts in find_instances(caller, facts, self._caller) if facts["mig"] else []:
            self.devices.append(MigInstance(instance, caller, self.lanes, self.driver, self._pids))
            samples.append(("GpuFacts", its_facts))
        lost_index = [index, reasons.reason_of(reasons.AVOIDED)]
        avoided = {"lost_index": lost_index} if caller.is_avoided_entirely() else {}
        self.output.line(next=self._patience, samples=samples, **avoided)
        return 0

    def complete_facts(self) -> list[Record]:
        """Facts that could not be read at the start, read again: GpuFacts where they are complete now."""
        records: list[Record] = []
        for gpu in self.gpus:
            if not gpu.facts_may_come or gpu.lost_code:
                continue
            facts, gpu.facts_may_come = read_facts(gpu.caller, gpu.index, self.options.proc_root)
            if not gpu.facts_may_come:
                gpu.facts = facts
                records.append(("GpuFacts", facts))
        return records

    def _find(self, index: int) -> tuple[Any, int]:
        """The handle of the GPU at an index, and 0; or None and the code."""
        return self._caller(None, f"index:{index}").ask(
            "nvmlDeviceGetHandleByIndex", using=lambda _none: _handle(index)
        )

    def _uuid_of(self, handle: Any, index: int) -> str | None:
        if handle is None:
            return None
        return text(self._caller(handle, f"index:{index}").ask("nvmlDeviceGetUUID")[0])

    def _caller(self, handle: Any, device: str) -> Caller:
        return Caller(handle, device, self.ledger, self.marker, self.options.avoid)


def costs(ledger: Ledger) -> dict[str, Any]:
    """The part of NvmlState that this process counts."""
    return {"calls": ledger.calls, "call_seconds": round(ledger.seconds, 6), "dropped_values": ledger.dropped}


def _handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def _cuda_version(number: int | None) -> str | None:
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


_WAIT_MILLISECONDS = 10_000
_SAME_EVENT_SECONDS = 5.0
_LOG_BYTES = 8192
_LOG_READS = 64
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")


class XidWatch:
    """XID errors as events, from NVML's event set and from the kernel log where it is readable, each event once.

    NVML's events missed XID 79, 119 and 120 in DCGM#162; the log has them, but only root may read it on most hosts.
    """

    def __init__(
        self,
        library: Caller,
        callers: list[Caller],
        pci_by_uuid: dict[str, str],
        kernel_log: str | None,
        avoid: Avoid,
    ) -> None:
        self._found: deque[tuple[int, str | None, int, str]] = deque()
        self._said: dict[tuple[str | None, int], float] = {}
        self._uuid_by_pci = {_short_pci(pci): uuid for uuid, pci in pci_by_uuid.items()}
        self._log = _open_at_end(kernel_log)
        self._uuid_by_handle = {_address(caller.handle): caller.device for caller in callers}
        avoided = avoid.get(LIBRARY, {}).get(EVENT_WAIT, 0) > time.monotonic_ns()
        event_set = None if avoided else self._register(library, callers)
        if event_set is not None:
            threading.Thread(target=self._wait, args=(event_set,), name="xid", daemon=True).start()

    def events(self) -> list[Record]:
        """What came since the last call."""
        self._read_log()
        records: list[Record] = []
        while self._found:
            time_ns, uuid, xid, text = self._found.popleft()
            now = time.monotonic()
            if now - self._said.get((uuid, xid), -_SAME_EVENT_SECONDS) < _SAME_EVENT_SECONDS:
                continue
            self._said[(uuid, xid)] = now
            records.append(("XidEvent", {"time_ns": time_ns, "uuid": uuid, "xid": xid, "text": text}))
        return records

    def _register(self, library: Caller, callers: list[Caller]) -> Any:
        """An event set with all GPUs that offer XID events, or None."""
        event_set, code = library.ask("nvmlEventSetCreate", using=lambda _none: attempt(wheel("nvmlEventSetCreate")))
        if code:
            return None
        kind = pynvml.nvmlEventTypeXidCriticalError
        registered = [
            caller
            for caller in callers
            if not caller.ask("nvmlDeviceRegisterEvents", kind, using=lambda h, k: _register(h, k, event_set))[1]
        ]
        return event_set if registered else None

    def _wait(self, event_set: Any) -> None:
        """Runs until the process ends: NVML must not be shut down under a waiting thread (nvitop#222)."""
        while True:
            try:
                data = attempt(wheel(EVENT_WAIT), event_set, _WAIT_MILLISECONDS)
            except CallError as error:
                if error.code == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                return
            uuid = self._uuid_by_handle.get(_address(data.device))
            self._found.append((time.monotonic_ns(), uuid, int(data.eventData), ""))

    def _read_log(self) -> None:
        if self._log is None:
            return
        for _ in range(_LOG_READS):
            try:
                chunk = os.read(self._log, _LOG_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # /dev/kmsg: records were overwritten before we came; the next read goes on
            except OSError:
                os.close(self._log)
                self._log = None
                return
            if not chunk:
                return
            for row in chunk.decode("utf-8", errors="replace").splitlines():
                found = _XID.search(row)
                if found:
                    uuid = self._uuid_by_pci.get(_short_pci(found[1]))
                    self._found.append((time.monotonic_ns(), uuid, int(found[2]), found[3][:200]))


def _register(handle: Any, kind: int, event_set: Any) -> None:
    attempt(wheel("nvmlDeviceRegisterEvents"), handle, kind, event_set)


def _open_at_end(path: str | None) -> int | None:
    if path is None:
        return None
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        return None  # not permitted, as usual: NVML's events remain
    return log


def _short_pci(text: str) -> str:
    """`00000000:3B:00.0` and `0000:3b:00` are the same device."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest.split('.')[0]}"


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


_MOST_GROWTH_BYTES = 256_000_000


def _memory_bytes() -> int:
    """The resident memory of this process; 0 where it cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


class Watch:
    """Polls an enumerated machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pace = Pace(machine.options.interval_seconds)
        pci = {gpu.uuid: gpu.pci_bus_id for gpu in machine.gpus if gpu.pci_bus_id}
        callers = [gpu.caller for gpu in machine.gpus]
        self._xids = XidWatch(machine.library, callers, pci, machine.options.kernel_log, machine.options.avoid)
        self._memory_at_first = _memory_bytes()
        self._missed_polls = 0
        self._state_at = 0.0
        self._rare_at = time.monotonic() + machine.lanes.rare

    def run(self) -> None:
        """Until the reader goes away.

        Raises:
            StartOverError: when only a fresh process helps.
        """
        first = True
        while True:
            began = time.monotonic()
            self._round(began, first)
            self._check_any_left()
            if first:
                _trim_memory()
            self._check_memory()
            self._sleep(began)
            first = False

    def _round(self, now: float, first: bool) -> None:
        """All devices once. The first round is reported device by device: each is on screen as soon as it can be."""
        output, before = self._machine.output, self._machine.ledger.seconds
        records: list[Record] = self._xids.events()
        for device in self._machine.devices:
            if device.caller.is_avoided_entirely():
                continue
            records += device.poll(now)
            if first:
                output.line(next=self._machine.lanes.interval + 2, samples=records)
                records = []
        if now >= self._rare_at:
            self._rare_at = now + self._machine.lanes.rare
            self._check_unchanged()
            records += self._machine.complete_facts()
        self._machine.marker.clear()
        self._pace.spent(self._machine.ledger.seconds - before)
        if now >= self._state_at:
            self._state_at = now + self._machine.lanes.slow
            records.append(self._state())
        output.line(next=self._pace.interval(), samples=records)

    def _sleep(self, began: float) -> None:
        left = began + self._pace.pause() - time.monotonic()
        if left > 0:
            time.sleep(left)
        else:
            self._missed_polls += int(-left // self._pace.interval()) + 1

    def _check_unchanged(self) -> None:
        self._machine.check_unchanged(0.0)
        for gpu in self._machine.gpus:
            mode = gpu.mig_mode.value
            if mode is not None and bool(mode[0]) != gpu.mig:
                switched = "on" if mode[0] else "off"
                raise StartOverError(0.0, "restarting", f"MIG was switched {switched} on GPU {gpu.index}.")

    def _check_any_left(self) -> None:
        codes = {gpu.lost_code for gpu in self._machine.gpus}
        if 0 not in codes:
            code = next(iter(codes)) if len(codes) == 1 else reasons.UNKNOWN
            raise StartOverError(self._machine.options.retry_seconds, "failing", reasons.init_sentence(code))

    def _check_memory(self) -> None:
        """Ends a process that the library has filled: a leak per call would otherwise take the training's memory."""
        now = _memory_bytes()
        if now - self._memory_at_first > _MOST_GROWTH_BYTES:
            raise StartOverError(
                0.0,
                "restarting",
                f"The memory of the process that calls the NVIDIA driver has grown to {now // 10**6} MB; "
                "a new process takes over.",
            )

    def _state(self) -> Record:
        machine, notes = self._machine, list(self._machine.notes)
        if self._pace.interval() > 1.2 * machine.options.interval_seconds:
            notes.append(f"this driver answers slowly, so it is read every {self._pace.interval():.1f} s")
        return "NvmlState", {
            "time_ns": time.monotonic_ns(),
            "status": "ok",
            "reason": "; ".join(notes) or None,
            "gpu_count": machine.count,
            "missed_polls": self._missed_polls,
            **machine.versions,
            **costs(machine.ledger),
        }


def _trim_memory() -> None:
    """Gives back what only the start needed, 0.7 MB; a C library that is not glibc has no such call."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_REPEATS = 3

Question = tuple[str, str, "tuple[Any, ...]", "Callable[..., Any] | None"]
"""Function, what it provides, arguments, and our own way to call it."""


def questions(driver: Driver) -> list[Question]:
    """Every NVML function of the poll plan."""
    return [
        ("nvmlDeviceGetUtilizationRates", "utilization", (), None),
        ("nvmlDeviceGetSamples", "utilization ring", (), lambda h: driver.samples(h, readings.UTILIZATION_RING, 0)),
        ("nvmlDeviceGetSamples", "power ring", (), lambda h: driver.samples(h, readings.POWER_RING, 0)),
        ("nvmlDeviceGetFieldValues", "power, energy, PCIe and throttle counters", (list(readings.SENSORS),), None),
        ("nvmlDeviceGetFieldValues", "memory health", (list(readings.HEALTH),), None),
        ("nvmlDeviceGetPowerUsage", "power, if the fields have none", (), None),
        ("nvmlDeviceGetMemoryInfo", "memory", (pynvml.nvmlMemory_v2,), None),
        ("nvmlDeviceGetClockInfo", "SM clock", (pynvml.NVML_CLOCK_SM,), None),
        ("nvmlDeviceGetClockInfo", "memory clock", (pynvml.NVML_CLOCK_MEM,), None),
        ("nvmlDeviceGetTemperature", "temperature", (pynvml.NVML_TEMPERATURE_GPU,), None),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttle reasons", (), None),
        ("nvmlGpmQueryDeviceSupport", "SM, tensor and memory activity", (), None),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes", (), driver.processes),
        ("nvmlDeviceGetProcessUtilization", "SM share by process", (), lambda h: driver.process_utilization(h, 0)),
        ("nvmlDeviceGetFanSpeed", "fan", (), None),
        ("nvmlDeviceGetPerformanceState", "performance state", (), None),
        ("nvmlDeviceGetCurrPcieLinkGeneration", "PCIe generation", (), None),
        ("nvmlDeviceGetCurrPcieLinkWidth", "PCIe width", (), None),
        ("nvmlDeviceGetEnforcedPowerLimit", "power limit", (), None),
        ("nvmlDeviceGetMigMode", "MIG", (), None),
        ("nvmlDeviceGetSupportedEventTypes", "XID events", (), None),
    ]


def survey(machine: Machine) -> None:
    """Asks everything of every GPU, one line an answer, and polls it once; the last line bears the versions."""
    output = machine.output
    for gpu in machine.gpus:
        for question in questions(machine.driver):
            answer = ask(gpu.caller, *question)
            output.line(answer={"uuid": gpu.uuid, "index": gpu.index, **answer})
        output.line(next=machine.lanes.interval + 2, samples=gpu.poll(time.monotonic()))
    output.line(done=machine.versions)


def ask(
    caller: Caller, function: str, provides: str, arguments: tuple[Any, ...], using: Callable[..., Any] | None
) -> dict[str, Any]:
    """The median time of three calls after a first one, or why there is no answer."""
    microseconds, error = [], None
    for repeat in range(_REPEATS + 1):
        before = caller.ledger.seconds
        try:
            value = caller.call(function, *arguments, using=using, variant=provides)
            if function == "nvmlGpmQueryDeviceSupport" and not value.isSupportedDevice:
                error = reasons.reason_of(reasons.NOT_SUPPORTED)
        except CallError as refusal:
            error = reasons.reason_of(refusal.code)
        if repeat:
            microseconds.append((caller.ledger.seconds - before) * 1e6)
        if error:
            break
    cost = round(sorted(microseconds)[len(microseconds) // 2], 1) if microseconds else None
    return {"function": function, "provides": provides, "microseconds": cost, "error": error}
