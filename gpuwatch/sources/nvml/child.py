"""The program of the NVML child: `python -m gpuwatch.sources.nvml.child [OPTIONS-AS-JSON] [--survey]`."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import time
from types import ModuleType

from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.wire import Marker, Options, Output

_NOTHING_LOADED = frozenset({reasons.LIBRARY_NOT_FOUND, reasons.DRIVER_NOT_LOADED})
"""After these the same process can try again. Other failures want a fresh one, because a library that an
update has replaced stays mapped."""

_NO_WHEEL = "The Python package nvidia-ml-py is missing: pip install nvidia-ml-py."


def run(options: Options, output: Output) -> None:
    """Watches until the reader goes away or only a fresh process helps; the last line then says so."""
    marker = Marker(options.marker_fd)
    output.line(next=options.init_seconds, samples=[])  # alive, before anything of the driver's is touched
    try:
        _import_pynvml()
    except ImportError:
        state = {"time_ns": time.monotonic_ns(), "status": "absent", "reason": _NO_WHEEL}
        output.line(next=options.retry_seconds, samples=[("NvmlState", state)], restart_in=options.retry_seconds)
        return
    _run_with(options, output, marker)


def _import_pynvml() -> None:
    """Imports it without ctypes.util, which it asks on Windows only, and which brings 1.5 MB of other modules along."""
    name, is_needed = "ctypes.util", sys.platform == "win32" or "ctypes.util" in sys.modules
    if not is_needed:
        placeholder = ModuleType(name)
        placeholder.find_library = lambda _name: None  # type: ignore[attr-defined]
        sys.modules[name] = placeholder
    try:
        importlib.import_module("pynvml")
    finally:
        if not is_needed:
            del sys.modules[name]


def _run_with(options: Options, output: Output, marker: Marker) -> None:
    """The part that needs pynvml, imported here and not above because it may be missing."""
    from gpuwatch.sources.nvml.driver import Ledger
    from gpuwatch.sources.nvml.machine import Machine, StartOverError, Watch, costs, start, stop, survey

    ledger = Ledger()
    while True:
        code = start(marker, ledger)
        try:
            if code:
                status = "absent" if code in _NOTHING_LOADED else "failing"
                raise StartOverError(
                    options.retry_seconds, status, reasons.init_sentence(code), here=code in _NOTHING_LOADED
                )
            machine = Machine(options, output, marker, ledger)
            machine.enumerate()
            if options.survey:
                survey(machine)
                return
            Watch(machine).run()
        except StartOverError as end:
            here = end.here and not options.survey
            state = {"time_ns": time.monotonic_ns(), **end.state, **costs(ledger)}
            successor = {} if here else {"restart_in": end.seconds}
            output.line(next=end.seconds, samples=[("NvmlState", state)], **successor)
            if not here:
                return
            time.sleep(end.seconds)
            stop(marker, ledger)


def main() -> None:
    """Ends when its reader does. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()  # the parent reads in which thread the driver crashed
    output = Output()
    output.end_with_reader()
    with contextlib.suppress(BrokenPipeError):  # the reader has gone
        run(Options.from_arguments(sys.argv[1:]), output)
    with contextlib.suppress(OSError):  # a library has filled the pipe
        sys.stderr.flush()
    os._exit(0)  # an interpreter that winds down under a thread in NVML crashes (nvitop#222)


if __name__ == "__main__":
    main()
