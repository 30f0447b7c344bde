"""`gpuwatch watch`: one line per second, for logs, pipes and screen readers."""

from __future__ import annotations

import argparse

from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.nothing_seen import NothingSeen
from gpuwatch.cli.output import say, write_stdout
from gpuwatch.cli.session import Session, open_session
from gpuwatch.cli.stopping import StopSignals
from gpuwatch.cli.watch_line import watch_line
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.text.escape import printable

_PAST_NS = 1_500_000_000


def watch(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    with open_session(arguments) as session:
        return watch_session(session, arguments.duration)


def watch_session(session: Session, duration_seconds: float | None = None) -> int:
    """Writes lines until the time is over, the user stops it, the reader goes, or the attached process ends."""
    lines = _Lines(session)
    nothing = NothingSeen(patient=False)

    def on_tick(snapshot: Snapshot) -> None:
        nothing.look(snapshot)
        lines.take(snapshot)

    with StopSignals(session.monitor.stop) as signals:
        session.monitor.run_until(session.now_ns())  # a simulated past takes seconds of a duration on a busy machine
        deadline_ns = session.now_ns() + round(duration_seconds * 1e9) if duration_seconds else None
        session.monitor.run_until(deadline_ns, on_tick=on_tick, stop=lambda: nothing.is_sure or session.has_ended())
    if nothing.is_sure:
        nothing.refuse(session.monitor.snapshot())
    if signals.received:
        return ExitCode.INTERRUPTED
    if session.has_ended():
        say(f"gpuwatch: {session.narrowed_to} has ended")
    return ExitCode.OK


class _Lines:
    """Writes a line for a snapshot when it is time for one, and tells of findings as they come and go."""

    def __init__(self, session: Session) -> None:
        # Polls jitter by 10 %, and a new finding brings a snapshot of its own.
        self._pause_ns = round(0.7e9 * max(0.5, session.interval_seconds))
        self._session = session
        self._written_ns: int | None = None
        self._told: dict[tuple[str, str | None, str | None], str] = {}
        """Whom each finding that stands is about."""
        self._climbs: set[str] = set()
        self._notices: set[str] = set()

    def take(self, snapshot: Snapshot) -> None:
        """Looks at a new snapshot. A simulated one may still be living through its past."""
        if self._session.now_ns() - snapshot.time_ns > _PAST_NS:
            return
        for notice in snapshot.notices:
            if notice not in self._notices:
                self._notices.add(notice)
                say(f"gpuwatch: {printable(notice)}")
        self._tell(snapshot)
        if self._session.attached is not None:
            self._tell_climbs(snapshot)
        if self._written_ns is not None and snapshot.time_ns - self._written_ns < self._pause_ns:
            return
        self._written_ns = snapshot.time_ns
        write_stdout(f"{printable(watch_line(snapshot))}\n")

    def _tell_climbs(self, snapshot: Snapshot) -> None:
        """How to see more of what was attached to, once per cause."""
        for run in snapshot.runs:
            if run.rung != "exact" and run.how_to_climb and run.how_to_climb not in self._climbs:
                self._climbs.add(run.how_to_climb)
                say(f"gpuwatch: {run.title} ({run.pid}): {run.how_to_climb}")

    def _tell(self, snapshot: Snapshot) -> None:
        now = {(found.rule, found.run, found.gpu): found for found in snapshot.findings}
        for key, found in now.items():
            if key not in self._told:
                self._told[key] = subject_of(found, snapshot)
                say(f"{found.severity.value.upper()} {found.rule}: {self._told[key]}{found.summary}")
        for key in sorted(self._told.keys() - now.keys(), key=str):
            say(f"over: {self._told.pop(key)}{key[0]}")


def subject_of(found: Finding, snapshot: Snapshot) -> str:
    """Whom a finding is about, to begin its sentence with: "train.py (4711): "; nothing where it says so itself."""
    names = [f"{run.title} ({run.pid})" for run in snapshot.runs if run.id == found.run]
    names += [f"GPU {gpu.facts.index}" for gpu in snapshot.gpus if found.run is None and gpu.facts.uuid == found.gpu]
    return f"{names[0]}: " if names and names[0] not in found.summary else ""
