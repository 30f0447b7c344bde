"""The command line of `gpuwatch report`."""

from __future__ import annotations

import argparse
from typing import Any

from gpuwatch.cli.errors import GpuwatchError

DEFAULT_SECONDS = 60.0
FORMATS = ("md", "json", "text", "html", "junit")


def add(commands: Any) -> None:
    """Adds the command."""
    # These modules import each other: the shared options are there by the time this runs.
    from gpuwatch.cli.arguments import add_simulate, add_watching, seconds
    from gpuwatch.cli.moments import FORMS, moment

    report = commands.add_parser(
        "report",
        help="watch for a while, or read a recording, then write a report",
        description="Watches, then writes the report to stdout; Ctrl-C writes what was seen so far, as INCOMPLETE.\n"
        "With a FILE: the same report of a recording, also while it is still being written.",
        epilog="On GitHub Actions the report is also appended to the job's summary ($GITHUB_STEP_SUMMARY).",
    )
    report.set_defaults(command="report")
    report.add_argument("file", nargs="?", metavar="FILE", help="a recording made by `gpuwatch record`")
    report.add_argument("--from", dest="start", type=moment, metavar="T", help=f"with FILE: where to begin: {FORMS}")
    report.add_argument("--to", dest="end", type=moment, metavar="T", help="with FILE: where to end")
    report.add_argument(
        "--duration",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"seconds to watch, 0: until Ctrl-C (default {DEFAULT_SECONDS:.0f})",
    )
    add_watching(report)
    form = report.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=FORMATS,
        default="md",
        help="md: Markdown (default); html: one page with charts, for a browser; junit: a test case per rule, for CI",
    )
    form.add_argument("--patch", action="store_true", help="only the fixes, as one patch for `git apply`")
    report.add_argument("--series", action="store_true", help="with --format json: the curves of the charts, too")
    report.add_argument("-o", "--output", metavar="FILE", help="write to a file, whole or not at all")
    report.add_argument(
        "--fail-on",
        choices=("warning", "critical"),
        help="exit 1 when a finding is that bad (junit: what fails, default warning)",
    )
    add_simulate(report)


def check(arguments: argparse.Namespace) -> None:
    """Refuses options that do not go together.

    Raises:
        GpuwatchError: says which.
    """
    if arguments.series and arguments.format != "json":
        raise GpuwatchError("--series adds the curves to the JSON: give --format json with it")
    if arguments.file is None:
        if arguments.start or arguments.end:
            raise GpuwatchError("--from and --to choose a part of a recording: name its FILE")
        if arguments.simulate is not None and arguments.duration == 0:
            raise GpuwatchError("--duration 0 would never end in simulated time: give the seconds to simulate")
        return
    for option, is_given in (
        ("--duration", arguments.duration != DEFAULT_SECONDS),
        ("--attach", arguments.attach is not None),
        ("--simulate", arguments.simulate is not None),
    ):
        if is_given:
            instead = ": choose a part of it with --from and --to" if option == "--duration" else ""
            raise GpuwatchError(f"{option} is for watching, and {arguments.file} is a recording{instead}")
