"""`gpuwatch replay FILE`: the dashboard for a recording."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.cli.config import add_config
from gpuwatch.cli.moments import FORMS, moment, one_moment
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.dashboard.launch import first_frame, run_dashboard
from gpuwatch.dashboard.terminal import terminal_problem

if TYPE_CHECKING:
    from gpuwatch.recording.reader import Recording

_SPEEDS = (0.25, 60.0)
"""Recorded seconds per second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The dashboard for a recording, with the findings as they appeared. The config applies: ignored rules are\n"
        "left out, rules with other thresholds judge again. Keys: space pauses, [ ] and { } jump, < > change the speed."
    )
    parser.add_argument(
        "file", metavar="FILE", help="a recording made by `gpuwatch record` or by key r of the dashboard"
    )
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="recorded seconds per second, 0.25 to 60 (default 1)"
    )
    parser.add_argument("--from", dest="start", type=moment, metavar="T", help=f"where to begin: {FORMS}")
    add_config(parser)


def replay(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file)
    problem = terminal_problem()
    if problem is not None:
        raise GpuwatchError(f"{problem.split(';')[0]}; `gpuwatch report {path}` writes a report of a recording")
    if not path.exists():  # refused before the screen is taken
        raise GpuwatchError(f"{path} does not exist: give the file that `gpuwatch record` wrote")
    with first_frame(f"REPLAY {path.name}"):
        from gpuwatch.cli.session import quiet_log
        from gpuwatch.monitor.replay import ReplayMonitor
        from gpuwatch.recording.reader import Recording
        from gpuwatch.recording.schema import CannotOpenError

        quiet_log()
        try:
            recording = Recording(path)
        except CannotOpenError as error:
            raise GpuwatchError(str(error).rstrip(".")) from error
        with recording:
            if recording.end_ns <= recording.start_ns:
                raise GpuwatchError(f"{path} holds no samples: there is nothing to play")
            if recording.meta.ended and not _shows_anything(recording):
                raise GpuwatchError(f"{path} holds neither a GPU nor a training run: there is nothing to play")
            at_ns = None if arguments.start is None else one_moment(recording, arguments.start, "--from")
            settings = arguments.config.settings
            player = ReplayMonitor(recording, speed=arguments.speed, at_ns=at_ns, settings=settings)
            label = player.snapshot().origin.label
            return run_dashboard(player, origin_label=label, replays=True)


def _shows_anything(recording: Recording) -> bool:
    """Whether there is a GPU or a process on the screen at any time."""
    from gpuwatch.samples import ProcessSample, RunFacts

    if recording.gpus():
        return True
    found = recording.samples(recording.start_ns, recording.end_ns, kinds=(RunFacts, ProcessSample))
    return next(iter(found), None) is not None


def _speed(text: str) -> float:
    try:
        value = float(text.rstrip("xX"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed such as 4 or 0.5") from None
    least, most = _SPEEDS
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
    return value
