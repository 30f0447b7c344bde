"""XID errors, as events: from NVML's event set, and from the kernel log where it is readable.

NVML's events missed XID 79, 119 and 120 in DCGM#162; the log has them, but only root may read it on most hosts.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections import deque

import pynvml

from gpuwatch.sources.nvml_child.calls import Caller, CallError, attempt, wheel
from gpuwatch.sources.nvml_child.device import Record
from gpuwatch.sources.nvml_child.marker import EVENT_WAIT, LIBRARY
from gpuwatch.sources.nvml_child.options import Avoid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WAIT_MILLISECONDS = 10_000
_SAME_EVENT_SECONDS = 5.0
_LOG_BYTES = 8192
_LOG_READS = 64
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")


class XidWatch:
    """Both origins, without saying the same event twice."""

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
