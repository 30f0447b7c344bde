"""The command line of `gpuwatch export`."""

from __future__ import annotations

from typing import Any

FORMATS = ("csv", "parquet", "jsonl", "chrome-trace")
DEFAULT_TABLE = "gpu"


def add(commands: Any) -> None:
    """Adds the command."""
    # These modules import each other: what is needed of them is there by the time this runs.
    from gpuwatch.cli.moments import FORMS, moment

    export = commands.add_parser(
        "export",
        help="a recording as CSV, Parquet, JSON lines, or a trace for Perfetto",
        description="Writes what a recording holds, for other tools. Units are in names; what is not known is empty.\n"
        "CSV and Parquet have a table per kind of sample: `-o FOLDER/` writes all of them, else --table picks one.\n"
        "A CSV text that a spreadsheet would run as a formula (= + - @ first) gets an apostrophe before it.",
    )
    export.set_defaults(command="export", table=None)
    export.add_argument("file", metavar="FILE", help="a recording made by `gpuwatch record`")
    form = export.add_mutually_exclusive_group(required=True)
    helps = ("comma-separated", "Apache Parquet (needs pyarrow)", "everything, an object a line", "for ui.perfetto.dev")
    for name, text in zip(FORMATS, helps, strict=True):
        form.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=text)
    export.add_argument("--table", metavar="NAME", help=f"with --csv or --parquet (default {DEFAULT_TABLE})")
    export.add_argument("-o", "--output", metavar="OUT", help="a file; for --csv and --parquet also a folder")
    export.add_argument("--from", dest="start", type=moment, metavar="T", help=f"where to begin: {FORMS}")
    export.add_argument("--to", dest="end", type=moment, metavar="T", help="where to end")
