"""What `gpuwatch report FILE` sees: a recording."""

from __future__ import annotations

import argparse

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.report.observation import Observation


def read_for_report(arguments: argparse.Namespace, *, with_curves: bool) -> Observation:
    """What the recording holds between the moments that were asked for."""
    raise GpuwatchError(f"{arguments.file}: this version of gpuwatch reads no recordings yet")
