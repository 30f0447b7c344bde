"""What `gpuwatch report` sees without a recording: the machine, one process tree of it, or a simulated machine."""

from __future__ import annotations

import argparse
from dataclasses import replace

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.nothing_seen import NothingSeen, is_empty
from gpuwatch.cli.progress import Progress
from gpuwatch.cli.session import Session, open_session
from gpuwatch.cli.stopping import StopSignals
from gpuwatch.edits.source import read_source
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.report.observation import Observation, finding_stretches, fine_curves, phase_stretches, short_history

_END_SEEN_SECONDS = 2.0
"""That a process is gone is known at once; the sources that read it look some times a second."""

_FIRST_LOOK_SECONDS = 30.0
"""Beyond a duration that passed before the attached process was looked at, as a busy machine lets a short one pass."""


def watch_for_report(arguments: argparse.Namespace, *, with_curves: bool) -> Observation:
    """Watches as long as was asked for."""
    with open_session(arguments) as session:
        return _watched(session, arguments.duration or None, with_curves)


def _is_looked_at(monitor: Monitor) -> bool:
    """Whether of any run more is known than what the system says of its process."""
    ranks = (rank for run in monitor.snapshot().runs for rank in run.ranks)
    return any(rank.facts.trainer in monitor.timeline.trainers for rank in ranks)


def _has_seen_the_end(monitor: Monitor) -> bool:
    """Whether there is a run, and every one has ended: what was looked at last may still be on its way."""
    runs = monitor.snapshot().runs
    return bool(runs) and all(run.ended for run in runs)


def _watched(session: Session, duration_seconds: float | None, with_curves: bool) -> Observation:
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
        if session.attached is not None:
            look_by_ns = session.now_ns() + round(_FIRST_LOOK_SECONDS * 1e9)
            monitor.run_until(look_by_ns, on_tick=on_tick, stop=lambda: session.has_ended() or _is_looked_at(monitor))
        if session.has_ended():
            seen_by_ns = session.now_ns() + round(_END_SEEN_SECONDS * 1e9)
            monitor.run_until(seen_by_ns, stop=lambda: _has_seen_the_end(monitor))
    snapshot = monitor.snapshot()
    if not signals.received:
        if session.has_ended() and is_empty(snapshot) and not nothing.saw_something:
            raise GpuwatchError(f"{session.narrowed_to} ended before anything could be seen of it")
        nothing.refuse(snapshot)
    # A clock that jumps stops at the deadline; the machine's goes on while the report is made.
    end_ns = deadline_ns if session.virtual and deadline_ns and not signals.received else session.now_ns()
    scene = monitor.final_scene(max(1, end_ns - started_ns) / 1e9)
    notes = [*snapshot.notices]
    if session.has_ended() and not signals.received:
        notes.append(f"{session.narrowed_to} ended, and so did the watch")
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
