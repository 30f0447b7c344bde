"""What `gpuwatch report FILE` sees: a recording, or the part of it that was asked for."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.moments import extent, span
from gpuwatch.cli.session import quiet_log
from gpuwatch.recording.types import CannotOpenError
from gpuwatch.report.observation import Observation
from gpuwatch.report.recorded import MinutesOnce, observe


def read_for_report(arguments: argparse.Namespace, *, with_curves: bool) -> Observation:
    """What the recording holds between the moments that were asked for.

    Raises:
        GpuwatchError: it cannot be read, or nothing is in it.
    """
    quiet_log()
    try:
        recording = MinutesOnce(Path(arguments.file))
    except CannotOpenError as error:
        raise GpuwatchError(str(error).rstrip(".")) from error
    with recording:
        start_ns, end_ns = span(recording, arguments.start, arguments.end)
        if start_ns >= end_ns:
            wait = "" if recording.meta.ended else " yet: wait for the first second of it"
            raise GpuwatchError(f"{arguments.file} holds no samples{wait}")
        seen = observe(recording, start_ns, end_ns, with_curves=with_curves, settings=arguments.config.settings)
        if not seen.scene.gpus and not seen.scene.runs:
            problem = recording.meta.problem
            if problem:
                raise GpuwatchError(f"nothing can be reported of {arguments.file}: {problem.rstrip('.')}")
            raise GpuwatchError(
                f"{arguments.file} holds neither a GPU nor a training run in this part; it {extent(recording)}"
            )
        return seen
