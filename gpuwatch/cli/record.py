"""`gpuwatch record`: what is seen goes into a file, until Ctrl-C or until the command that was started has ended."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import threading
import time
from pathlib import Path

from gpuwatch.cli.arguments import add_alerts, add_simulate, add_watching, duration
from gpuwatch.cli.output import ExitCode, GpuwatchError, say
from gpuwatch.cli.run import environment_for, why_not_started
from gpuwatch.cli.session import NothingSeen, Progress, Session, open_session, simulated_session
from gpuwatch.cli.signals import Child, StopSignals
from gpuwatch.dashboard.words import recorded_words
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.recorder import default_name
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot
from gpuwatch.recording.schema import CannotRecordError

_END_SEEN_SECONDS = 1.0
"""The end of a command is known at once; the sources that see how its trainers ended poll a few times a second."""

_NOT_BELOW = (
    "runs train here, but none of them was started by {}: processes that srun or docker start are not its children; "
    "`gpuwatch record` without a command records every hooked run"
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_LEAST_BYTES = 1024**2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpuwatch record [OPTION...] [-- COMMAND [ARGUMENT...]]"
    parser.description = (
        "Records into a file until Ctrl-C. With a COMMAND: starts it with the hook in it, records until it "
        "ends, and exits\nwith its exit code; it keeps its own input, output and signals."
    )
    parser.epilog = "Play the file with `gpuwatch replay FILE`, write a report of it with `gpuwatch report FILE`."
    parser.set_defaults(command_line=[])
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: gpuwatch-YYYYmmdd-HHMMSS.gpuwatch in this folder"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--duration",
        type=duration,
        metavar="S",
        help="seconds to record (default: until Ctrl-C); the COMMAND itself runs to its end",
    )
    parser.add_argument(
        "--record-max",
        type=_size,
        metavar="SIZE",
        help="largest size of the file, such as 500M: above it the oldest details are dropped, not the minute figures",
    )
    add_watching(parser)
    add_alerts(parser)
    add_simulate(parser)


def record(arguments: argparse.Namespace) -> int:
    _check(arguments)
    path = Path(arguments.output or default_name(time.time()))
    _make_room(path, arguments.force)
    with _session(arguments) as session:
        if arguments.command_line:
            return _beside_command(session, path, arguments)
        return _until_stopped(session, path, arguments)


def _check(arguments: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if not arguments.command_line:
        return
    for option, value in (("--attach", arguments.attach), ("--simulate", arguments.simulate)):
        if value is not None:
            raise GpuwatchError(
                f"{option} cannot be combined with a command: with a command only that command is recorded"
            )


def _make_room(path: Path, force: bool) -> None:
    """Takes away what is there already, if the user wants that."""
    if not path.exists():
        return
    if not path.is_file():
        raise GpuwatchError(f"{path} is not a file: name one with -o FILE")
    if not force:
        raise GpuwatchError(f"{path} exists: give another name with -o FILE, or --force to replace it")
    for each in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm", "journal"))):
        each.unlink(missing_ok=True)


def _session(arguments: argparse.Namespace) -> Session:
    """The session; a simulated machine with a duration runs in time that jumps."""
    if arguments.simulate is None or not arguments.duration:
        return open_session(arguments)
    return simulated_session(
        arguments.simulate,
        virtual=True,
        interval=arguments.interval,
        settings=arguments.config.settings,
        lead_seconds=0.0,
    )


def _begin(session: Session, path: Path, arguments: argparse.Namespace) -> None:
    try:
        session.monitor.record(path, command=arguments.command_line, max_bytes=arguments.record_max)
    except CannotRecordError as error:
        raise GpuwatchError(str(error).rstrip(".")) from error
    ends = "it ends with the command" if arguments.command_line else "Ctrl-C ends it"
    say(f"gpuwatch: recording into {path}; {ends}")
    now = session.monitor.snapshot().recording
    if now is not None and now.note:
        say(f"gpuwatch: {now.note}")


def _until_stopped(session: Session, path: Path, arguments: argparse.Namespace) -> int:
    """Records until the duration is over, the attached process has ended, or the user has had enough."""
    monitor = session.monitor
    started_ns = session.now_ns()
    deadline_ns = started_ns + round(arguments.duration * 1e9) if arguments.duration else None
    nothing = NothingSeen(patient=True)
    words = Progress(started_ns, arguments.duration or None, doing="recording", hint="Ctrl-C: end of the recording")
    with StopSignals(monitor.stop) as signals:
        _begin(session, path, arguments)
        if sys.stderr is None or not sys.stderr.isatty():  # on a terminal the bar says it
            monitor.subscribe(_ProblemReporter().take)
        with words as progress:

            def on_tick(snapshot: Snapshot) -> None:
                nothing.see(snapshot)
                progress.show(snapshot)

            monitor.run_until(
                deadline_ns, on_tick=on_tick, stop=lambda: session.has_ended() or _is_over(monitor.snapshot())
            )
            if session.has_ended():
                monitor.run_until(
                    session.now_ns() + round(_END_SEEN_SECONDS * 1e9),
                    stop=lambda: all(run.ended for run in monitor.snapshot().runs),
                )
        ended = monitor.stop_recording()
    if ended is not None and ended.is_over:
        raise GpuwatchError((ended.problem or "the recording has ended").rstrip("."))
    nothing.see(monitor.snapshot())
    _say_result(ended, how_to_read=nothing.saw_something)
    if session.has_ended():
        say(f"gpuwatch: {session.narrowed_to} ended, so the recording stopped")
    if signals.received:
        return ExitCode.INTERRUPTED
    if ended is not None and ended.problem:  # it has been reported
        return ExitCode.CANNOT_MEASURE
    nothing.refuse(monitor.snapshot())
    return ExitCode.OK


def _beside_command(session: Session, path: Path, arguments: argparse.Namespace) -> int:
    """Starts the command and records until it ends; with a duration, only that long, but stays for its exit code."""
    monitor, command = session.monitor, arguments.command_line
    with Child() as child:
        _begin(session, path, arguments)
        try:
            pid = child.start(command, environment_for(command))
        except (OSError, ValueError) as error:
            monitor.stop_recording()
            path.unlink(missing_ok=True)
            code, sentence = why_not_started(command[0], error)
            say(f"gpuwatch: {sentence}")
            return code
        monitor.attach(pid)
        monitor.subscribe(_ProblemReporter(still="the command continues").take)
        monitor.start()
        ended = _wait(child, arguments.duration or None)
        if ended is not None:
            _let_end(monitor)
        _say_result(monitor.stop_recording())
        if ended is None:
            say("gpuwatch: the command continues; gpuwatch waits for its exit code")
        if monitor.timeline.trainer_identities() and all(
            run.visibility == "process" for run in monitor.snapshot().runs
        ):
            say(f"gpuwatch: {_NOT_BELOW.format(command[0])}")
        return _wait(child, None) or 0


def _wait(child: Child, seconds: float | None) -> int | None:
    """The exit code; None where the command outlives this many seconds."""
    deadline = None if seconds is None else time.monotonic() + seconds
    code, left = child.exit_code, seconds
    while code is None and (left is None or left > 0):
        code = child.wait(left)
        left = None if deadline is None else deadline - time.monotonic()
    return code


def _let_end(monitor: Monitor) -> None:
    """Waits a moment for the monitor to see how the trainers ended."""
    seen = threading.Event()

    def on_snapshot(snapshot: Snapshot) -> None:
        # Without a run yet, what a short one has sent may still be unread.
        if snapshot.runs and all(run.ended for run in snapshot.runs):
            seen.set()

    monitor.subscribe(on_snapshot)
    seen.wait(_END_SEEN_SECONDS)


def _is_over(snapshot: Snapshot) -> bool:
    return snapshot.recording is not None and snapshot.recording.is_over


class _ProblemReporter:
    """Says at once that nothing is being recorded: the user may come back in days.

    Args:
        still: what goes on though the recording is over for good; None where that ends the command, which says so.
    """

    def __init__(self, still: str | None = None) -> None:
        self._still = still
        self._reported: str | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Takes a snapshot; one problem is reported once, and again when the recording is over for it."""
        now = snapshot.recording
        if now is None or (now.is_over and self._still is None):
            return
        state = None if now.problem is None else "over" if now.is_over else "for now"
        if state is not None and state != self._reported:
            say(f"gpuwatch: {now.problem}{f'; {self._still}' if now.is_over else ''}")
        self._reported = state


def _say_result(ended: RecordingNow | None, *, how_to_read: bool = True) -> None:
    """What has become of it, unless that was reported when it happened."""
    if ended is None or ended.is_over:
        return
    say(f"gpuwatch: {recorded_words(ended, 'recorded')}")
    if not ended.bytes or not how_to_read:
        return
    say(f"gpuwatch: `gpuwatch replay {shlex.quote(str(ended.path))}` plays it, `gpuwatch report` makes a report of it")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 1G")
    size = round(float(found[1]) * _UNITS[found[2].upper()])
    if size < _LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is less than 1M, which is only a few minutes of eight GPUs")
    return size
