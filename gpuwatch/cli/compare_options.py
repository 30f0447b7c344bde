"""The command line of `gpuwatch compare`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

FORMATS = ("text", "md", "json")


def with_sides(argv: Sequence[str]) -> list[str]:
    """`compare B... -- A...` as options, for argparse drops the `--` that says which side a file is on."""
    if "compare" not in argv or "--" not in argv:
        return list(argv)
    cut = list(argv).index("--")
    return [*argv[:cut], *(f"--after={name}" for name in argv[cut + 1 :])]


def add(commands: Any) -> None:
    """Adds the command."""
    # These modules import each other: what is needed of them is there by the time this runs.
    from gpuwatch.cli.moments import FORMS, moment

    compare = commands.add_parser(
        "compare",
        help="before and after: two recordings, or several of each, compared",
        description="Compares recordings, or reports written with --format json. A folder stands for all in it.\n"
        "  gpuwatch compare before.gpuwatch after.gpuwatch\n"
        "  gpuwatch compare b1.gpuwatch b2.gpuwatch b3.gpuwatch -- a1.gpuwatch a2.gpuwatch a3.gpuwatch\n"
        "With several runs on each side the difference has a 95 % interval (Welch's test on the runs' means),\n"
        "and ~ stands where it may be chance.",
        epilog="Exit codes: 0 compared, 1 a --fail-if came true, 2 could not compare. "
        "On GitHub Actions the comparison is also appended to the job's summary ($GITHUB_STEP_SUMMARY).",
    )
    compare.set_defaults(command="compare")
    compare.add_argument("files", nargs="*", metavar="FILE", help="BEFORE AFTER, or BEFORE... -- AFTER...")
    compare.add_argument("--before", action="append", default=[], metavar="FILE", help="one more on the before side")
    compare.add_argument("--after", action="append", default=[], metavar="FILE", help="one more on the after side")
    for side in ("", "before-", "after-"):
        only = f", of the {side[:-1]} side only" if side else f": {FORMS}"
        for word, does in (("from", "begin"), ("to", "end")):
            compare.add_argument(
                f"--{side}{word}", dest=f"{side[:-1]}_{word}", type=moment, metavar="T", help=f"where to {does}{only}"
            )
    compare.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="GATE",
        help="exit 1 where it is true: 'samples_per_second<-3%%' (change), 'utilization_percent<85' (value after)",
    )
    compare.add_argument("--format", choices=FORMATS, default="text", help="default text")
    compare.add_argument("-o", "--output", metavar="FILE", help="write to a file, whole or not at all")


def sides(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The names of both sides.

    Raises:
        GpuwatchError: which file is on which side is not clear.
    """
    from gpuwatch.cli.errors import GpuwatchError

    before, after, files = list(arguments.before), list(arguments.after), list(arguments.files)
    if not before and not after and len(files) == 2:
        return files[:1], files[1:]
    if files and before:
        raise GpuwatchError(f"{files[0]} is on neither side: give each file of the before side with --before")
    before = before or files
    if not after:
        raise GpuwatchError(
            "which of these are before, and which after? `gpuwatch compare BEFORE AFTER`, "
            "or with several of each `gpuwatch compare BEFORE... -- AFTER...`"
        )
    if not before:
        raise GpuwatchError("there is nothing to compare with: name the files of the before side in front of `--`")
    return before, after
