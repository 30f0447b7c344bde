"""`gpuwatch stacks PID`: the sampled stacks of a process and its workers, for those who want the flame graph."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from gpuwatch.cli.arguments import add_output, duration, number, pid
from gpuwatch.cli.output import ExitCode, GpuwatchError, output_to, say
from gpuwatch.cli.signals import StopSignals
from gpuwatch.foreign import read_arguments
from gpuwatch.procfs import TreeWalker, read_stat
from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError
from gpuwatch.report.profiles import collapsed, speedscope, tree
from gpuwatch.sources.host.identify import CannotAttachError, identify
from gpuwatch.sources.host.source import WORKER_NAME
from gpuwatch.sources.stacks.capture import Capture, Profile
from gpuwatch.text import json_text

_PROC = Path("/proc")
_MAIN_THREAD_HZ = 100.0
_ALL_THREADS_HZ = 10.0
"""A thread that maps memory waits while another process reads: one with 1 000 maps a second was blocked for 24 % of the
time by 100 samples a second of 60 threads, and for nothing that could be measured by samples of the main thread."""

_MOST_HZ = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gpuwatch stacks`."""
    parser.description = (
        "Samples the stacks of a running Python process and its DataLoader workers without stopping them, "
        "then writes them to stdout. Ctrl-C writes what was seen so far."
    )
    parser.add_argument("pid", type=pid, metavar="PID")
    parser.add_argument("--seconds", type=duration, default=10.0, metavar="S", help="how long to sample (default 10)")
    parser.add_argument(
        "--rate",
        type=_rate,
        metavar="HZ",
        help="samples per second (default 100; 10 with --threads, where each costs more)",
    )
    parser.add_argument("--threads", action="store_true", help="all threads, not only the main thread of each process")
    parser.add_argument(
        "--format",
        choices=("text", "collapsed", "speedscope"),
        default="text",
        help="text: a call tree (default); collapsed: for flamegraph.pl; speedscope: for www.speedscope.app",
    )
    add_output(parser)


def stacks(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    write = output_to(arguments.output)
    try:
        identity = identify(arguments.pid)
        capture = Capture(
            identity.pid,
            rate_hz=arguments.rate or (_ALL_THREADS_HZ if arguments.threads else _MAIN_THREAD_HZ),
            all_threads=arguments.threads,
            attach=attach,
            workers=Workers(_PROC).of,
        )
    except CannotAttachError as error:
        raise GpuwatchError(error.sentence.rstrip(".")) from error
    except CannotReadError as error:
        raise GpuwatchError(error.with_cure) from error
    with StopSignals(lambda: None) as signals:
        profile = capture.run(arguments.seconds, stop=lambda: signals.received)
    if profile.unreadable and not profile.lanes:
        raise GpuwatchError(profile.unreadable[0])
    for reason in profile.unreadable:
        say(f"gpuwatch: {reason}")
    if profile.ended:
        say(f"gpuwatch: process {profile.pid} ended after {profile.seconds:.1f} s, and so did the sampling")
    if not profile.lanes:
        raise GpuwatchError(f"no stack of process {profile.pid} could be read: it has ended or is still starting")
    write(_rendered(profile, arguments.format))
    return ExitCode.INTERRUPTED if signals.received else ExitCode.OK


class Workers:
    """Finds the DataLoader workers of a process: by their name, else as forks that carry its very command line.

    Torch names them since 2024 (pytorch#128448).
    """

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._walker = TreeWalker(proc_root)

    def of(self, pid: int) -> Iterable[int]:
        """The pids now."""
        command = read_arguments(self._proc_root, pid)
        for child in self._walker.descendants(pid):
            stat = read_stat(self._proc_root, child)
            if stat is None:
                continue
            if stat.command_name == WORKER_NAME or (
                stat.parent == pid and command and read_arguments(self._proc_root, child) == command
            ):
                yield child


def _rendered(profile: Profile, form: str) -> str:
    if form == "speedscope":
        return json_text(speedscope(profile)) + "\n"
    lines = collapsed(profile) if form == "collapsed" else tree(profile)
    return "".join(f"{line}\n" for line in lines)


def _rate(text: str) -> float:
    value = number(text)
    if not 1 <= value <= _MOST_HZ:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {_MOST_HZ} samples per second")
    return value
