"""`gpuwatch report [FILE]`: watches for a while, or reads a recording, then writes what was seen."""

from __future__ import annotations

import argparse
import gc
import math
from dataclasses import replace
from pathlib import Path

from gpuwatch.cli.arguments import add_output, add_simulate, add_watching, duration
from gpuwatch.cli.moments import FORMS, extent, moment, span
from gpuwatch.cli.output import ExitCode, GpuwatchError, append_step_summary, output_to, say
from gpuwatch.cli.session import NothingSeen, Progress, Session, is_empty, open_session, quiet_log
from gpuwatch.cli.signals import StopSignals
from gpuwatch.edits.source import read_source
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.report.build import build_report
from gpuwatch.report.model import Report, as_json
from gpuwatch.report.observation import (
    Observation,
    finding_stretches,
    fine_curves,
    leave_out,
    phase_stretches,
    short_history,
)
from gpuwatch.text import json_text

_DEFAULT_SECONDS = 60.0
_FORMATS = ("md", "json", "text", "html", "junit")
_FAILING = {None: (), "warning": ("critical", "warning"), "critical": ("critical",)}

_END_SEEN_SECONDS = 2.0
"""The end of a process is known at once; the sources that read it poll a few times a second."""

_FIRST_SAMPLE_SECONDS = 30.0
"""Beyond a duration that passed before the attached process was sampled, as a busy machine lets a short one pass."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watches, then writes the report to stdout; after Ctrl-C the report so far, marked INCOMPLETE.\n"
        "With a FILE: the same report of a recording, even while it is still being written."
    )
    parser.epilog = "On GitHub Actions the report is also appended to the job's summary ($GITHUB_STEP_SUMMARY)."
    parser.add_argument("file", nargs="?", metavar="FILE", help="a recording made by `gpuwatch record`")
    parser.add_argument("--from", dest="start", type=moment, metavar="T", help=f"with FILE: where to begin: {FORMS}")
    parser.add_argument("--to", dest="end", type=moment, metavar="T", help="with FILE: where to end")
    parser.add_argument(
        "--duration",
        type=duration,
        default=_DEFAULT_SECONDS,
        metavar="S",
        help=f"seconds to watch, 0: until Ctrl-C (default {_DEFAULT_SECONDS:.0f})",
    )
    add_watching(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=_FORMATS,
        default="md",
        help="md: Markdown (default); html: one page with charts, for a browser; junit: a test case per rule, for CI",
    )
    form.add_argument("--patch", action="store_true", help="write only the fixes, as one patch for `git apply`")
    parser.add_argument("--series", action="store_true", help="with --format json: include the curves of the charts")
    parser.add_argument(
        "--price-per-kwh",
        type=price,
        metavar="P",
        help="price of a kilowatt-hour in your currency, such as 0.30: adds the cost to each figure of energy",
    )
    add_output(parser)
    parser.add_argument(
        "--fail-on",
        choices=("warning", "critical"),
        help="exit 1 on a finding of at least this severity (junit: what fails, default warning)",
    )
    add_simulate(parser)


def price(text: str) -> float:
    """A number that is neither negative nor endless."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price per kilowatt-hour, such as 0.30")
    return value


def report(arguments: argparse.Namespace) -> int:
    if arguments.file is None:
        return _report(arguments)
    gc.disable()  # a long recording's figures are made once and none is garbage: looking for it costs a tenth
    try:
        return _report(arguments)
    finally:
        gc.enable()


def _report(arguments: argparse.Namespace) -> int:
    _check(arguments)
    write = output_to(arguments.output)
    with_curves = arguments.format == "html" or arguments.series
    seen = observed(arguments, with_curves=with_curves)
    document = build_report(seen, with_series=with_curves, price_per_kwh=arguments.price_per_kwh)
    write(_patch(seen, document) if arguments.patch else _rendered(document, arguments))
    append_step_summary(lambda: _step_summaries(document))
    if document.gpuwatch.incomplete:
        return ExitCode.INTERRUPTED
    failing = _FAILING[arguments.fail_on]
    return ExitCode.FINDINGS if any(each.severity in failing for each in document.findings) else ExitCode.OK


def observed(arguments: argparse.Namespace, *, with_curves: bool = False) -> Observation:
    """What was seen of the machine and its runs, live or in a recording."""
    observe = _watch if arguments.file is None else _read
    return leave_out(observe(arguments, with_curves), arguments.config.settings.ignored)


def _check(arguments: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if arguments.series and arguments.format != "json":
        raise GpuwatchError("--series adds the curves to the JSON: give --format json with it")
    if arguments.file is None:
        if arguments.start or arguments.end:
            raise GpuwatchError("--from and --to choose a part of a recording: give its FILE")
        if arguments.simulate is not None and arguments.duration == 0:
            raise GpuwatchError("--duration 0 would never end in simulated time: give the seconds to simulate")
        return
    for option, is_given in (
        ("--duration", arguments.duration != _DEFAULT_SECONDS),
        ("--attach", arguments.attach is not None),
        ("--simulate", arguments.simulate is not None),
    ):
        if is_given:
            instead = ": choose a part of it with --from and --to" if option == "--duration" else ""
            raise GpuwatchError(f"{option} is for watching, and {arguments.file} is a recording{instead}")


def _read(arguments: argparse.Namespace, with_curves: bool) -> Observation:
    """What the recording holds between the moments that were asked for."""
    from gpuwatch.recording.schema import CannotOpenError
    from gpuwatch.report.recorded import MinutesOnce, observe

    quiet_log()
    try:
        recording = MinutesOnce(Path(arguments.file))
    except CannotOpenError as error:
        raise GpuwatchError(str(error).rstrip(".")) from error
    with recording:
        start_ns, end_ns = span(recording, arguments.start, arguments.end)
        if start_ns >= end_ns:
            wait = "" if recording.meta.ended else " yet: wait until its first second is written"
            raise GpuwatchError(f"{arguments.file} holds no samples{wait}")
        seen = observe(recording, start_ns, end_ns, with_curves=with_curves, settings=arguments.config.settings)
        if not seen.scene.gpus and not seen.scene.runs:
            problem = recording.meta.problem
            if problem:
                raise GpuwatchError(f"no report can be made of {arguments.file}: {problem.rstrip('.')}")
            raise GpuwatchError(
                f"{arguments.file} holds neither a GPU nor a training run in this part; it {extent(recording)}"
            )
        return seen


def _watch(arguments: argparse.Namespace, with_curves: bool) -> Observation:
    """What is seen up to the end of the duration, of the attached process, or of the user's patience."""
    with open_session(arguments) as session:
        return _watched(session, arguments.duration or None, with_curves)


def _watched(session: Session, duration_seconds: float | None, with_curves: bool) -> Observation:
    monitor = session.monitor
    started_ns = session.now_ns()
    deadline_ns = None if duration_seconds is None else started_ns + round(duration_seconds * 1e9)
    nothing = NothingSeen(patient=duration_seconds is None)
    with StopSignals(monitor.stop) as signals, Progress(started_ns, duration_seconds) as progress:

        def on_tick(snapshot: Snapshot) -> None:
            progress.show(snapshot)
            nothing.see(snapshot)

        monitor.run_until(deadline_ns, on_tick=on_tick, stop=lambda: nothing.is_sure or session.has_ended())
        if session.attached is not None:
            sample_by_ns = session.now_ns() + round(_FIRST_SAMPLE_SECONDS * 1e9)
            monitor.run_until(sample_by_ns, on_tick=on_tick, stop=lambda: session.has_ended() or _is_sampled(monitor))
        if session.has_ended():
            seen_by_ns = session.now_ns() + round(_END_SEEN_SECONDS * 1e9)
            monitor.run_until(seen_by_ns, stop=lambda: _has_seen_the_end(monitor))
    snapshot = monitor.snapshot()
    if not signals.received:
        if session.has_ended() and is_empty(snapshot) and not nothing.saw_something:
            raise GpuwatchError(f"{session.narrowed_to} ended before anything could be measured")
        nothing.refuse(snapshot)
    # A clock that jumps stops at the deadline; the machine's goes on while the report is made.
    end_ns = deadline_ns if session.virtual and deadline_ns and not signals.received else session.now_ns()
    scene = monitor.final_scene(max(1, end_ns - started_ns) / 1e9)
    notes = [*snapshot.notices]
    if session.has_ended() and not signals.received:
        notes.append(f"{session.narrowed_to} ended, so gpuwatch stopped watching")
    of_time = (monitor.timeline, scene, started_ns, scene.now_ns, session.interval_seconds)
    return Observation(
        snapshot=replace(
            snapshot,
            time_ns=scene.now_ns,
            started_ns=started_ns,
            wall_time=snapshot.wall_time + (scene.now_ns - snapshot.time_ns) / 1e9,
        ),
        scene=scene,
        charts=short_history(*of_time),
        curves=fine_curves(*of_time) if with_curves else (),
        stretches=(
            *phase_stretches(monitor.timeline, started_ns, scene.now_ns),
            *finding_stretches(snapshot.findings, started_ns, scene.now_ns),
        ),
        interrupted=signals.received,
        notes=tuple(notes),
        read_source=read_source if snapshot.origin.kind == "live" else None,
    )


def _is_sampled(monitor: Monitor) -> bool:
    """Whether of any run more is known than what the system says of its process."""
    ranks = (rank for run in monitor.snapshot().runs for rank in run.ranks)
    return any(rank.facts.trainer in monitor.timeline.trainers for rank in ranks)


def _has_seen_the_end(monitor: Monitor) -> bool:
    """Whether there is a run, and every one has ended: the last samples may still be on their way."""
    runs = monitor.snapshot().runs
    return bool(runs) and all(run.ended for run in runs)


def _patch(seen: Observation, document: Report) -> bytes:
    """The patch; what is not in it goes to stderr."""
    from gpuwatch.report.findings import fix_patch

    patch = fix_patch(seen)
    for line in (*seen.notes, *patch.by_hand):
        say(f"gpuwatch: {line}")
    if not patch.data:
        sentences = [] if patch.by_hand else [each.sentence for each in document.verdict]
        why = "nothing can be changed safely" if patch.by_hand else "; ".join(sentences).rstrip(".")
        say(f"gpuwatch: the patch is empty: {why}")
    return patch.data


def _rendered(document: Report, arguments: argparse.Namespace) -> str:
    """Each renderer is imported only where it is asked for."""
    match arguments.format:
        case "json":
            return json_text(as_json(document), indent=None if arguments.series else 2) + "\n"
        case "md":
            from gpuwatch.report.text import render_markdown

            return render_markdown(document)
        case "html":
            from gpuwatch.report.html import render_html

            return render_html(document)
        case "junit":
            from gpuwatch.report.junit import render_junit

            return render_junit(document, arguments.fail_on or "warning")
        case _:
            from gpuwatch.report.text import render_text

            return render_text(document)


def _step_summaries(document: Report) -> tuple[str, str]:
    from gpuwatch.report.text import render_markdown, short_step_summary

    return render_markdown(document), short_step_summary(document)
