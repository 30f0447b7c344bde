"""The command line of `gpuwatch record`."""

from __future__ import annotations

import argparse
import re
from typing import Any

from gpuwatch.cli.errors import GpuwatchError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_LEAST_BYTES = 1024**2


def add(commands: Any) -> None:
    """Adds the command."""
    # These modules import each other: the shared options are there by the time this runs.
    from gpuwatch.cli.arguments import add_simulate, add_watching, seconds

    record = commands.add_parser(
        "record",
        help="record what is seen into a file: gpuwatch record -- python train.py",
        usage="gpuwatch record [OPTION...] [-- COMMAND [ARGUMENT...]]",
        description="Records into a file until Ctrl-C. With a COMMAND: starts it with the hook in it, records until it "
        "ends, and exits\nwith its exit code; its input, output and signals are its own.",
        epilog="Play the file with `gpuwatch replay FILE`, write a report of it with `gpuwatch report FILE`.",
    )
    record.set_defaults(command="record", command_line=[])
    record.add_argument(
        "-o", "--output", metavar="FILE", help="default: gpuwatch-YYYYmmdd-HHMMSS.gpuwatch in this folder"
    )
    record.add_argument("-f", "--force", action="store_true", help="replace the file if it is there")
    record.add_argument(
        "--duration",
        type=seconds,
        metavar="S",
        help="seconds to record (default: until Ctrl-C); a COMMAND goes on to its end",
    )
    record.add_argument(
        "--record-max",
        type=_size,
        metavar="SIZE",
        help="the file's most, such as 500M or 1G: beyond it the oldest details go, the minutes' figures stay",
    )
    add_watching(record)
    add_simulate(record)


def check(arguments: argparse.Namespace) -> None:
    """Refuses options that do not go together.

    Raises:
        GpuwatchError: says which.
    """
    if not arguments.command_line:
        return
    for option, value in (("--attach", arguments.attach), ("--simulate", arguments.simulate)):
        if value is not None:
            raise GpuwatchError(f"{option} and a command exclude each other: the command is what is recorded")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 1G")
    size = round(float(found[1]) * _UNITS[found[2].upper()])
    if size < _LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is less than 1M, which some minutes of eight GPUs take")
    return size
