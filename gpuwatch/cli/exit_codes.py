"""What the exit code of a gpuwatch command means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The codes that a script may rely on; `gpuwatch run` has the code of its command."""

    OK = 0
    """Done. For `report` also: no finding at or above `--fail-on`. A reader that closes its pipe is no failure."""

    FINDINGS = 1
    """`report --fail-on SEVERITY` found something that bad, or worse; a `compare --fail-if` came true."""

    CANNOT_MEASURE = 2
    """Nothing could be measured or written: no GPU and no run, wrong arguments, a process that cannot be watched."""

    INTERRUPTED = 130
    """Ctrl-C or SIGTERM; `report` has written what was seen so far, marked INCOMPLETE."""
