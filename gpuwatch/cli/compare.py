"""`gpuwatch compare`: compares two sides of recordings or reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwatch.cli.compare_options import sides
from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.moments import Moment, span
from gpuwatch.cli.output import OutputFile, say, write_stdout
from gpuwatch.cli.step_summary import append_step_summary
from gpuwatch.compare.comparison import compare as compared
from gpuwatch.compare.document import document, render_markdown, render_text, tables
from gpuwatch.compare.gates import judge, parse_gate
from gpuwatch.compare.measured import CannotCompareError, Measured, measured, measured_report
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.summary import summarize
from gpuwatch.recording.types import CannotOpenError
from gpuwatch.text.escape import json_text

_RECORDING = b"SQLite format 3\x00"
_SUFFIXES = (".gpuwatch", ".json")
_MOST_REPORT_BYTES = 64 * 1024 * 1024


def compare(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    before_names, after_names = sides(arguments)
    output = None if arguments.output in (None, "-") else OutputFile(arguments.output)
    try:
        gates = [parse_gate(text) for text in arguments.fail_if]
        before = _side(before_names, arguments.before_from or arguments._from, arguments.before_to or arguments._to)
        after = _side(after_names, arguments.after_from or arguments._from, arguments.after_to or arguments._to)
    except (CannotCompareError, CannotOpenError) as error:
        raise GpuwatchError(str(error).rstrip(".")) from error
    comparison = compared(before, after)
    judgements = judge(comparison, gates)
    shown = tables(comparison, judgements)
    if arguments.format == "json":
        text = json_text(document(comparison, judgements), indent=2) + "\n"
    else:
        text = render_markdown(shown) if arguments.format == "md" else render_text(shown)
    if output is None:
        write_stdout(text)
    else:
        output.write(text)
    append_step_summary([render_markdown(shown)])
    for judgement in judgements:
        if judgement.outcome != "passed":
            say(f"gpuwatch: {judgement.sentence}")
    outcomes = {judgement.outcome for judgement in judgements}
    if all(change.difference is None for change in comparison.changes):
        say("gpuwatch: nothing could be compared: no figure is known on both sides")
        return ExitCode.CANNOT_MEASURE
    if "unknown" in outcomes:
        return ExitCode.CANNOT_MEASURE
    return ExitCode.FINDINGS if "failed" in outcomes else ExitCode.OK


def _side(names: list[str], start: Moment | None, end: Moment | None) -> list[Measured]:
    return [_measured(path, start, end) for name in names for path in _files(name)]


def _files(name: str) -> list[Path]:
    path = Path(name)
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if not found:
        raise GpuwatchError(f"no recording (*.gpuwatch) or report (*.json) is in the folder {name}")
    return found


def _measured(path: Path, start: Moment | None, end: Moment | None) -> Measured:
    if not path.exists():
        hint = ": options stand in front of `--`" if path.name.startswith("-") else ""
        raise GpuwatchError(f"there is no file {path}{hint}")
    with path.open("rb") as file:
        data = file.read(len(_RECORDING))
        if data != _RECORDING and path.suffix != ".gpuwatch":
            if start or end:
                raise GpuwatchError(f"{path} is no recording: --from and --to choose a part of one")
            return measured_report(str(path), data + file.read(_MOST_REPORT_BYTES))
    with Recording(path) as recording:
        try:
            part = span(recording, start, end)
        except GpuwatchError as error:  # of several files, one is too short
            raise GpuwatchError(f"{path}: {error}") from None
        return measured(str(path), summarize(recording, *part))
