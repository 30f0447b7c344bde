"""`gpuwatch compare`: compares two sides of recordings or reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwatch.cli.arguments import add_output
from gpuwatch.cli.moments import FORMS, Moment, moment, span
from gpuwatch.cli.output import ExitCode, GpuwatchError, append_step_summary, output_to, say
from gpuwatch.compare.comparison import CannotCompareError, Measured, judge, measured, measured_report, parse_gate
from gpuwatch.compare.comparison import compare as compared
from gpuwatch.compare.document import document, render_markdown, render_text, tables
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotOpenError
from gpuwatch.recording.stretch import summarize
from gpuwatch.text import json_text

_RECORDING = b"SQLite format 3\x00"
_SUFFIXES = (".gpuwatch", ".json")
_MOST_REPORT_BYTES = 64 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares recordings, or reports written with --format json. A folder means all files in it.\n"
        "  gpuwatch compare before.gpuwatch after.gpuwatch\n"
        "  gpuwatch compare b1.gpuwatch b2.gpuwatch b3.gpuwatch -- a1.gpuwatch a2.gpuwatch a3.gpuwatch\n"
        "With several runs on each side the difference has a 95% interval (Welch's test on the runs' means),\n"
        "and ~ marks a difference that may be chance."
    )
    parser.epilog = (
        "Exit codes: 0 compared, 1 a --fail-if holds, 2 could not compare.\n"
        "On GitHub Actions the comparison is also appended to the job's summary ($GITHUB_STEP_SUMMARY)."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="BEFORE AFTER, or BEFORE... -- AFTER...")
    parser.add_argument(
        "--before", action="append", default=[], metavar="FILE", help="one more file for the before side"
    )
    parser.add_argument("--after", action="append", default=[], metavar="FILE", help="one more file for the after side")
    for side in ("", "before-", "after-"):
        only = f", for the {side[:-1]} side only" if side else f": {FORMS}"
        for word, does in (("from", "begin"), ("to", "end")):
            parser.add_argument(
                f"--{side}{word}", dest=f"{side[:-1]}_{word}", type=moment, metavar="T", help=f"where to {does}{only}"
            )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="GATE",
        help="exit 1 if this holds: 'samples_per_second<-3%%' (change), 'utilization_percent<85' (value after)",
    )
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help="default text")
    add_output(parser)


def compare(arguments: argparse.Namespace) -> int:
    before_names, after_names = _sides(arguments)
    write = output_to(arguments.output)
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
    write(text)
    append_step_summary(lambda: [render_markdown(shown)])
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


def _sides(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The names of both sides."""
    before, after, files = list(arguments.before), list(arguments.after), list(arguments.files)
    if not before and not after and len(files) == 2:
        return files[:1], files[1:]
    if files and before:
        raise GpuwatchError(f"{files[0]} is on neither side: give each file of the before side with --before")
    before = before or files
    if not after:
        raise GpuwatchError(
            "it is not clear which files are before and which are after: `gpuwatch compare BEFORE AFTER`, "
            "or with several of each `gpuwatch compare BEFORE... -- AFTER...`"
        )
    if not before:
        raise GpuwatchError("the before side is empty: name its files before `--`")
    return before, after


def _side(names: list[str], start: Moment | None, end: Moment | None) -> list[Measured]:
    return [_measured(path, start, end) for name in names for path in _files(name)]


def _files(name: str) -> list[Path]:
    path = Path(name)
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if not found:
        raise GpuwatchError(f"there is no recording (*.gpuwatch) or report (*.json) in the folder {name}")
    return found


def _measured(path: Path, start: Moment | None, end: Moment | None) -> Measured:
    if not path.exists():
        hint = ": options come before `--`" if path.name.startswith("-") else ""
        raise GpuwatchError(f"there is no file {path}{hint}")
    with path.open("rb") as file:
        data = file.read(len(_RECORDING))
        if data != _RECORDING and path.suffix != ".gpuwatch":
            if start or end:
                raise GpuwatchError(f"{path} is not a recording: --from and --to choose a part of one")
            return measured_report(str(path), data + file.read(_MOST_REPORT_BYTES))
    with Recording(path) as recording:
        try:
            part = span(recording, start, end)
        except GpuwatchError as error:  # of several files, one is too short
            raise GpuwatchError(f"{path}: {error}") from None
        return measured(str(path), summarize(recording, *part))
