"""`gpuwatch stacks PID`: the sampled stacks of a process and its workers, for those who want the flame graph."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import OutputFile, say, write_stdout
from gpuwatch.cli.stopping import StopSignals
from gpuwatch.reader.attach import attach
from gpuwatch.reader.types import CannotReadError
from gpuwatch.report.profiles import collapsed, speedscope, tree
from gpuwatch.sources.host.identify import CannotAttachError, identify
from gpuwatch.sources.host.procfs import TreeWalker, read_arguments, read_stat
from gpuwatch.sources.host.run import WORKER_NAME
from gpuwatch.sources.stacks.capture import Capture, Profile
from gpuwatch.text.escape import json_text

_PROC = Path("/proc")
_MAIN_THREAD_HZ = 100.0
_ALL_THREADS_HZ = 10.0
"""A thread that maps memory waits while another process reads: 1 000 maps a second beside 100 looks a second at 60
threads stood still for 24 % of the time, beside looks at the main thread alone for nothing that could be measured."""


def stacks(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    output = None if arguments.output in (None, "-") else OutputFile(arguments.output)
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
        raise GpuwatchError(f"no stack of process {profile.pid} could be read: it ended or was only starting")
    text = _rendered(profile, arguments.format)
    if output is None:
        write_stdout(text)
    else:
        output.write(text)
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
