"""The command line of `gpuwatch trial`."""

from __future__ import annotations

import argparse
from typing import Any

MOST_RUNS = 100
_EXAMPLES = """\
examples:
  gpuwatch trial num_workers=8 pin_memory=true -- python train.py
  gpuwatch trial --sweep num_workers=0,2,4,8 -- python train.py --epochs 1
  gpuwatch trial --arm 'num_workers=4' --arm 'num_workers=4 prefetch_factor=4' -- torchrun --nproc_per_node=8 train.py
  gpuwatch trial tf32=true --fail-if not-faster -- python train.py

changes: num_workers, pin_memory, persistent_workers, prefetch_factor, in_order (of the training's DataLoader),
non_blocking, tf32, cudnn_benchmark, compile, env.NAME, and with --arg the command's own flags.

exit codes: 0 compared, 1 --fail-if holds, 2 nothing could be compared, 130 interrupted.
"""


def add(commands: Any) -> None:
    """Adds the command."""
    trial = commands.add_parser(
        "trial",
        usage="gpuwatch trial [CHANGE ...] [--sweep NAME=V,V] [--arm 'CHANGE...'] [OPTION ...] -- COMMAND...",
        help="prove a change: the same training with and without it, alternating",
        description="Runs COMMAND with and without the changes, alternating, each in a fresh process that is stopped\n"
        "after a while, and says which is faster and how sure that is. Nothing of yours is edited: the hook does it.",
        epilog=_EXAMPLES,
    )
    trial.set_defaults(command="trial", command_line=[])
    trial.add_argument("changes", nargs="*", metavar="CHANGE", help="NAME=VALUE; several make one arm")
    trial.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=V,V", help="an arm per value; several: per combination"
    )
    trial.add_argument("--arm", action="append", default=[], metavar="'CHANGE...'", help="one more arm")
    trial.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="a flag of COMMAND to give, or to replace"
    )
    trial.add_argument("--runs", type=_runs, default=5, metavar="N", help="runs of each arm (default 5)")
    length = trial.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=_positive, default=None, metavar="S", help="of settled training per run (default 20)"
    )
    length.add_argument("--steps", type=_steps, metavar="N", help="settled steps per run, in place of seconds")
    trial.add_argument(
        "--patience", type=_positive, default=600.0, metavar="S", help="longest wait for a step (default 600)"
    )
    trial.add_argument(
        "--min-effect", type=_share, default=0.02, metavar="P%", help="the least change to call one (default 2%%)"
    )
    trial.add_argument(
        "--scratch", action="store_true", help="run in an empty folder each time; name data by absolute paths"
    )
    trial.add_argument(
        "--fail-if", choices=("slower", "not-faster"), help="exit 1 when an arm is slower, or when none is faster"
    )
    trial.add_argument("--format", choices=("text", "json", "md"), default="text", help="default text")
    trial.add_argument("-o", "--output", metavar="FILE", help="write to a file, whole or not at all")


def _runs(text: str) -> int:
    return _whole(text, 1, MOST_RUNS, "runs")


def _steps(text: str) -> int:
    return _whole(text, 10, 10**9, "steps")


def _whole(text: str, least: int, most: int, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {least} and {most} {what}")
    return int(text)


def _positive(text: str) -> float:
    from gpuwatch.cli.arguments import seconds

    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("0 seconds measure nothing")
    return value


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%").strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 2%") from None
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0% and 100%")
    return value / 100
