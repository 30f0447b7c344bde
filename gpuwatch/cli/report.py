"""`gpuwatch report [FILE]`: watches for a while, or reads a recording, then writes what was seen."""

from __future__ import annotations

import argparse
import gc

from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import OutputFile, check_stdout, say, write_stdout
from gpuwatch.cli.report_options import check
from gpuwatch.cli.step_summary import append_step_summary, is_asked_for
from gpuwatch.report.build import build_report
from gpuwatch.report.model import Report, as_json
from gpuwatch.report.observation import Observation, leave_out
from gpuwatch.text.escape import json_text

_FAILING = {None: (), "warning": ("critical", "warning"), "critical": ("critical",)}


def report(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.file is None:
        return _report(arguments)
    gc.disable()  # a long recording's figures are made once and none is garbage: looking for it costs a tenth
    try:
        return _report(arguments)
    finally:
        gc.enable()


def _report(arguments: argparse.Namespace) -> int:
    check(arguments)
    output = None if arguments.output in (None, "-") else OutputFile(arguments.output)
    if output is None:
        check_stdout()
    with_curves = arguments.format == "html" or arguments.series
    seen = leave_out(_seen(arguments, with_curves), arguments.config.settings.ignored)
    document = build_report(seen, with_series=with_curves)
    data = _patch(seen, document) if arguments.patch else _rendered(document, arguments)
    if output is None:
        write_stdout(data)
    else:
        output.write(data)
    if is_asked_for():
        from gpuwatch.report.markdown import render_step_summary, short_step_summary

        append_step_summary([render_step_summary(document), short_step_summary(document)])
    if document.gpuwatch.incomplete:
        return ExitCode.INTERRUPTED
    failing = _FAILING[arguments.fail_on]
    return ExitCode.FINDINGS if any(each.severity in failing for each in document.findings) else ExitCode.OK


def _seen(arguments: argparse.Namespace, with_curves: bool) -> Observation:
    if arguments.file is not None:
        from gpuwatch.cli.report_file import read_for_report

        return read_for_report(arguments, with_curves=with_curves)
    from gpuwatch.cli.report_watch import watch_for_report

    return watch_for_report(arguments, with_curves=with_curves)


def _patch(seen: Observation, document: Report) -> bytes:
    """The patch; what is not in it goes to stderr."""
    from gpuwatch.report.findings import fix_patch

    patch = fix_patch(seen)
    for line in (*seen.notes, *patch.by_hand):
        say(f"gpuwatch: {line}")
    if not patch.data:
        sentences = [] if patch.by_hand else [each.sentence for each in document.verdict]
        why = "nothing of it can be changed safely" if patch.by_hand else "; ".join(sentences).rstrip(".")
        say(f"gpuwatch: the patch is empty: {why}")
    return patch.data


def _rendered(document: Report, arguments: argparse.Namespace) -> str:
    """Each renderer is imported only where it is asked for."""
    match arguments.format:
        case "json":
            return json_text(as_json(document), indent=None if arguments.series else 2) + "\n"
        case "md":
            from gpuwatch.report.markdown import render_markdown

            return render_markdown(document)
        case "html":
            from gpuwatch.report.html.page import render_html

            return render_html(document)
        case "junit":
            from gpuwatch.report.junit import render_junit

            return render_junit(document, arguments.fail_on or "warning")
        case _:
            from gpuwatch.report.text import render_text

            return render_text(document)
