"""The command line of `gpuwatch replay`."""

from __future__ import annotations

import argparse
from typing import Any

SPEEDS = (0.25, 60.0)


def add(commands: Any) -> None:
    """Adds the command."""
    from gpuwatch.cli.config_options import add_config
    from gpuwatch.cli.moments import FORMS, moment

    replay = commands.add_parser(
        "replay",
        help="play a recording: the dashboard as it was",
        description="The dashboard over a recording, with its findings as they came; rules that the config ignores\n"
        "say nothing, those that it gives other thresholds judge again. space holds it, [ ] and { }\n"
        "jump, < > change the speed.",
    )
    replay.set_defaults(command="replay")
    replay.add_argument("file", metavar="FILE", help="a recording made by `gpuwatch record` or the dashboard's r")
    replay.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="recorded seconds per second, 0.25 to 60 (default 1)"
    )
    replay.add_argument("--from", dest="start", type=moment, metavar="T", help=f"where to begin: {FORMS}")
    add_config(replay)


def _speed(text: str) -> float:
    try:
        value = float(text.rstrip("xX"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed such as 4 or 0.5") from None
    least, most = SPEEDS
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
    return value
