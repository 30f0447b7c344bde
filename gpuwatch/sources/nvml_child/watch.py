"""The polling loop: one round over all devices, one line, one jittered pause."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.device import Record
from gpuwatch.sources.nvml_child.events import XidWatch
from gpuwatch.sources.nvml_child.lanes import Pace
from gpuwatch.sources.nvml_child.machine import Machine, StartOverError, costs

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
                f"The NVIDIA driver library has grown the process that calls it to {now // 10**6} MB; "
                "a new process takes over.",
            )

    def _state(self) -> Record:
        machine, notes = self._machine, list(self._machine.notes)
        if self._pace.interval() > 1.2 * machine.options.interval_seconds:
            notes.append(f"this driver answers slowly, so it is asked every {self._pace.interval():.1f} s")
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
