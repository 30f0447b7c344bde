"""`gpuwatch report`: watches for a while, then writes what was seen."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.nothing_seen import NothingSeen, is_empty
from gpuwatch.cli.output import OutputFile, say, write_stdout
from gpuwatch.cli.progress import Progress
from gpuwatch.cli.session import Session, open_session
from gpuwatch.cli.stopping import StopSignals
from gpuwatch.edits.source import read_source
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.report.document import build_report
from gpuwatch.report.observation import Json, Observation
from gpuwatch.timeline.series import Chart, Series, SeriesName

_HISTORY_BUCKETS = 60
_END_SEEN_SECONDS = 2.0
"""That a process is gone is known at once; the sources that read it look some times a second."""
_FAILING = {None: (), "warning": ("critical", "warning"), "critical": ("critical",)}


def report(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.simulate is not None and not arguments.duration:
        raise GpuwatchError("--duration 0 would never end in simulated time: give the seconds to simulate")
    output = None if arguments.output in (None, "-") else OutputFile(arguments.output)
    with open_session(arguments) as session:
        seen = _watched(session, arguments.duration or None)
    document = build_report(seen)
    text = _patch(seen, document) if arguments.patch else _rendered(document, arguments.format)
    if output is None:
        write_stdout(text)
    else:
        output.write(text)
    if document["gpuwatch"]["incomplete"]:
        return ExitCode.INTERRUPTED
    failing = _FAILING[arguments.fail_on]
    return ExitCode.FINDINGS if any(each["severity"] in failing for each in document["findings"]) else ExitCode.OK


def _watched(session: Session, duration_seconds: float | None) -> Observation:
    """Everything that was seen up to the end of the duration, of the attached process, or of the user's patience."""
    monitor = session.monitor
    started_ns = session.now_ns()
    deadline_ns = None if duration_seconds is None else started_ns + round(duration_seconds * 1e9)
    nothing = NothingSeen(patient=duration_seconds is None)
    with StopSignals(monitor.stop) as signals, Progress(started_ns, duration_seconds) as progress:

        def on_tick(snapshot: Snapshot) -> None:
            progress.show(snapshot)
            nothing.look(snapshot)

        monitor.run_until(deadline_ns, on_tick=on_tick, stop=lambda: nothing.is_sure or session.has_ended())
        if session.has_ended():
            seen_by_ns = session.now_ns() + round(_END_SEEN_SECONDS * 1e9)
            monitor.run_until(seen_by_ns, stop=lambda: all(run.ended for run in monitor.snapshot().runs))
    snapshot = monitor.snapshot()
    if not signals.received:
        if session.has_ended() and is_empty(snapshot):
            raise GpuwatchError(f"{session.narrowed_to} ended before anything could be seen of it")
        nothing.refuse(snapshot)
    # A clock that jumps stops at the deadline; the machine's goes on while the report is made.
    end_ns = deadline_ns if session.virtual and deadline_ns and not signals.received else session.now_ns()
    scene = monitor.final_scene(max(1, end_ns - started_ns) / 1e9)
    notes = [*snapshot.notices]
    if session.has_ended() and not signals.received:
        notes.append(f"{session.narrowed_to} ended, and so did the watch")
    return Observation(
        snapshot=replace(
            snapshot,
            time_ns=scene.now_ns,
            started_ns=started_ns,
            wall_time=snapshot.wall_time + (scene.now_ns - snapshot.time_ns) / 1e9,
        ),
        scene=scene,
        charts=_charts(session, snapshot, started_ns, scene.now_ns),
        interrupted=signals.received,
        notes=tuple(notes),
        read_source=read_source if snapshot.origin.kind == "live" else None,
    )


def _charts(session: Session, snapshot: Snapshot, start_ns: int, end_ns: int) -> tuple[Chart, ...]:
    gpu_series: tuple[SeriesName, ...] = ("gpu.utilization_percent", "gpu.power_watts")
    run_series: tuple[SeriesName, ...] = ("run.wait_share", "run.step_seconds")
    wanted = [Series(name, gpu.facts.uuid) for gpu in snapshot.gpus for name in gpu_series]
    wanted += [Series(name, run.id) for run in snapshot.runs for name in run_series]
    # A bucket holds at least one poll: finer ones would show gaps that are none.
    polls = int((end_ns - start_ns) / 1e9 / session.interval_seconds)
    buckets = max(1, min(_HISTORY_BUCKETS, polls))
    return tuple(session.monitor.timeline.chart(series, start_ns, end_ns, buckets) for series in wanted)


def _patch(seen: Observation, document: Json) -> bytes:
    """The patch; what is not in it is told on stderr."""
    from gpuwatch.report.patch import fix_patch

    patch = fix_patch(seen)
    for line in (*seen.notes, *patch.by_hand):
        say(f"gpuwatch: {line}")
    if not patch.data:
        sentences = [] if patch.by_hand else [str(each["sentence"]) for each in document["verdict"]]
        why = "nothing of it can be changed safely" if patch.by_hand else "; ".join(sentences).rstrip(".")
        say(f"gpuwatch: the patch is empty: {why}")
    return patch.data


def _rendered(document: Json, form: str) -> str:
    if form == "json":
        return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if form == "md":
        from gpuwatch.report.markdown import render_markdown

        return render_markdown(document)
    from gpuwatch.report.text import render_text

    return render_text(document)
