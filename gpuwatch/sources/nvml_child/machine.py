"""The machine as NVML shows it once it has started: versions, GPUs, MIG instances."""

from __future__ import annotations

import pynvml

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, Ledger, attempt, wheel
from gpuwatch.sources.nvml_child.device import Device, Record
from gpuwatch.sources.nvml_child.driver import Driver
from gpuwatch.sources.nvml_child.facts import read_facts, text
from gpuwatch.sources.nvml_child.gpu import Gpu
from gpuwatch.sources.nvml_child.lanes import Lanes
from gpuwatch.sources.nvml_child.marker import LIBRARY, Marker
from gpuwatch.sources.nvml_child.mig import MigInstance, find_instances
from gpuwatch.sources.nvml_child.options import Options
from gpuwatch.sources.nvml_child.output import Output
from gpuwatch.sources.nvml_child.processes import PidMap

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
    "The NVIDIA driver claims {} GPUs, which cannot be: compare with `nvidia-smi -L`, and restart the machine if it "
    "says the same."
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
        """Finds all devices and tells their facts one by one, so that a slow driver is not taken for a dead one.

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
                raise StartOverError(again, "restarting", f"GPU {index} is another one than before: {uuid}.")

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
        """Facts that could not be read at the start, asked for again: GpuFacts where they are whole now."""
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
