"""`gpuwatch export`: a recording for other tools."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from gpuwatch.cli.arguments import unknown
from gpuwatch.cli.moments import FORMS, moment, span
from gpuwatch.cli.output import ExitCode, GpuwatchError, OutputFile, say, writing_stdout
from gpuwatch.export.samples import Axis, json_lines, samples_of
from gpuwatch.export.tables import TABLES, CsvWriter, MissingLibraryError, ParquetWriter, RowMaker, TableFiles
from gpuwatch.export.trace import chrome_trace
from gpuwatch.numbers import grouped
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotOpenError
from gpuwatch.text import encodable

_FORMATS = {
    "csv": "comma-separated",
    "parquet": "Apache Parquet (needs pyarrow)",
    "jsonl": "everything, one object per line",
    "chrome-trace": "for ui.perfetto.dev",
    "tensorboard": "curves and findings for TensorBoard and `wandb sync` (needs tensorboardX); -o names the folder",
}
_DEFAULT_TABLE = "gpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the contents of a recording for other tools. Column names carry units; unknown values are empty.\n"
        "CSV and Parquet have one table per kind of sample: `-o FOLDER/` writes all of them, --table picks one.\n"
        "A CSV text that a spreadsheet would run as a formula (it begins with = + - or @) gets an apostrophe before it."
    )
    parser.add_argument("file", metavar="FILE", help="a recording made by `gpuwatch record`")
    form = parser.add_mutually_exclusive_group(required=True)
    for name, text in _FORMATS.items():
        form.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=text)
    parser.add_argument("--table", metavar="NAME", help=f"with --csv or --parquet (default {_DEFAULT_TABLE})")
    parser.add_argument("-o", "--output", metavar="OUT", help="a file; for --csv and --parquet also a folder")
    parser.add_argument("--from", dest="start", type=moment, metavar="T", help=f"where to begin: {FORMS}")
    parser.add_argument("--to", dest="end", type=moment, metavar="T", help="where to end")


def export(arguments: argparse.Namespace) -> int:
    _check(arguments)
    try:
        with Recording(Path(arguments.file)) as recording:
            _export(arguments, recording)
            if recording.meta.problem:  # damage is found as the file is read
                say(f"gpuwatch: {recording.meta.problem}")
    except (CannotOpenError, MissingLibraryError) as error:
        raise GpuwatchError(str(error).rstrip(".")) from error
    return ExitCode.OK


def _export(arguments: argparse.Namespace, recording: Recording) -> None:
    start_ns, end_ns = span(recording, arguments.start, arguments.end)
    axis = Axis(recording.start_ns + 1, recording.wall_time)  # a recording is (start, end]
    if arguments.format in ("csv", "parquet"):
        _tables(arguments, recording, axis, start_ns, end_ns)
        return
    if arguments.format == "tensorboard":
        _tensorboard(Path(arguments.output), recording, axis, start_ns, end_ns)
        return
    samples = samples_of(recording, start_ns, end_ns)
    if arguments.format == "jsonl":
        _write(json_lines(samples, axis), arguments.output)
        return
    about = {
        "label": encodable(recording.meta.label),
        "host": encodable(recording.meta.hostname),
        "start": axis.wall_text(axis.start_ns),
        "gpuwatch": recording.meta.version,
    }
    _write(chrome_trace(samples, axis, end_ns, about), arguments.output)


def _check(arguments: argparse.Namespace) -> None:
    in_tables = arguments.format in ("csv", "parquet")
    if arguments.table is not None and not in_tables:
        raise GpuwatchError(f"--table is for --csv and --parquet: --{arguments.format} holds everything")
    if arguments.table is not None and arguments.table not in TABLES:
        raise GpuwatchError(unknown("table", arguments.table, list(TABLES)))
    if arguments.format == "tensorboard":
        if arguments.output in (None, "-") or Path(arguments.output).is_file():
            raise GpuwatchError("TensorBoard reads folders: give -o FOLDER, such as the training's own log folder")
    elif not in_tables and arguments.output not in (None, "-") and Path(arguments.output).is_dir():
        raise GpuwatchError(f"-o {arguments.output} is a folder: give the name of a file in it")
    if arguments.format == "parquet" and arguments.output in (None, "-"):
        raise GpuwatchError(
            "a Parquet file has its index at its end and cannot be written to a pipe: give -o FILE or -o FOLDER/"
        )


def _tables(arguments: argparse.Namespace, recording: Recording, axis: Axis, start_ns: int, end_ns: int) -> None:
    make, suffix = (CsvWriter, "csv") if arguments.format == "csv" else (ParquetWriter, "parquet")
    folder = _folder(arguments)
    wanted = [arguments.table or _DEFAULT_TABLE] if folder is None else [arguments.table] if arguments.table else TABLES
    with ExitStack() as files:

        def open_file(name: str) -> BinaryIO:
            place = arguments.output if folder is None else str(folder / f"{name}.{suffix}")
            return files.enter_context(_file(place))

        tables = TableFiles(make, open_file)
        if folder is None:
            tables.begin(arguments.table or _DEFAULT_TABLE)
        maker = RowMaker(axis, {gpu.uuid: gpu.index for gpu in recording.gpus()}, wanted)
        for sample in samples_of(recording, start_ns, end_ns):
            for name, row in maker.rows(sample):
                tables.write(name, row)
        tables.close()
    counted = ", ".join(f"{name} ({grouped(rows)})" for name, rows in tables.rows.items())
    if folder is not None:
        say(f"gpuwatch: {len(tables.rows)} tables in {folder}: {counted or 'nothing was recorded'}")
    elif arguments.table is None:
        say(f"gpuwatch: wrote table {counted}; --table NAME writes another, -o FOLDER/ all: {', '.join(TABLES)}")


def _tensorboard(folder: Path, recording: Recording, axis: Axis, start_ns: int, end_ns: int) -> None:
    from gpuwatch.export.tensorboard import write_events
    from gpuwatch.report.recorded import observe

    seen = observe(recording, start_ns, end_ns, with_curves=True)
    names = {gpu.facts.uuid: f"gpu{gpu.facts.label}" for gpu in seen.snapshot.gpus}
    names |= {run.id: _in_a_tag(f"{run.title}-{run.pid}") for run in seen.snapshot.runs}
    try:
        count = write_events(folder, seen.curves, seen.snapshot.findings, axis, names)
    except OSError as error:
        raise GpuwatchError(f"{folder} cannot be written to ({error.strerror}): give another -o FOLDER") from error
    say(f"gpuwatch: {grouped(count)} scalars in {folder}; choose the horizontal axis WALL in TensorBoard")


def _in_a_tag(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)


def _folder(arguments: argparse.Namespace) -> Path | None:
    """The folder of `-o`: one that is there, or is written with a slash at its end."""
    name = arguments.output
    if name in (None, "-") or not (name.endswith("/") or Path(name).is_dir()):
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpuwatchError(f"the folder {name} cannot be made ({error.strerror}): give another -o FOLDER/") from error
    return folder


def _write(texts: Iterable[str], output: str | None) -> None:
    with _file(output) as file:
        for text in texts:
            file.write(text.encode())


@contextmanager
def _file(output: str | None) -> Iterator[BinaryIO]:
    """The file of `-o`, else stdout; what is written is ASCII or sanitized, so a terminal may have it."""
    if output not in (None, "-"):
        with OutputFile(str(output)).open() as file:
            yield file
        return
    with writing_stdout("OUT"):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
