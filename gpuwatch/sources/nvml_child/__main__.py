"""`python -m gpuwatch.sources.nvml_child [OPTIONS-AS-JSON] [--survey]`: runs the child."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys

from gpuwatch.sources.nvml_child.options import Options
from gpuwatch.sources.nvml_child.output import Output
from gpuwatch.sources.nvml_child.run import run


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
