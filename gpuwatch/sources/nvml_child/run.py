"""Starting NVML, and starting it again."""

from __future__ import annotations

import importlib
import sys
import time
from types import ModuleType

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.marker import Marker
from gpuwatch.sources.nvml_child.options import Options
from gpuwatch.sources.nvml_child.output import Output

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
    from gpuwatch.sources.nvml_child.calls import Ledger
    from gpuwatch.sources.nvml_child.machine import Machine, StartOverError, costs, start, stop
    from gpuwatch.sources.nvml_child.watch import Watch

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
                from gpuwatch.sources.nvml_child.survey import survey

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
