"""`gpuwatch stacks PID`: the sampled stacks of a process and its workers, for those who want the flame graph."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwatch import __version__
from gpuwatch.cli.arguments import add_output, duration, number, pid
from gpuwatch.cli.output import ExitCode, GpuwatchError, output_to, say
from gpuwatch.cli.signals import StopSignals
from gpuwatch.foreign import read_arguments
from gpuwatch.numbers import grouped
from gpuwatch.procfs import TreeWalker, read_stat
from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError
from gpuwatch.sources.host.identify import CannotAttachError, identify
from gpuwatch.sources.host.source import WORKER_NAME
from gpuwatch.sources.stacks.capture import Capture, FramePlace, Lane, Profile
from gpuwatch.text import json_text, printable

_PROC = Path("/proc")
_MAIN_THREAD_HZ = 100.0
_ALL_THREADS_HZ = 10.0
"""A thread that maps memory waits while another process reads: one with 1,000 maps a second was blocked for 24% of the
time by 100 samples a second of 60 threads, and for nothing that could be measured by samples of the main thread."""

_MOST_HZ = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Samples the stacks of a running Python process and its DataLoader workers without stopping them,\n"
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
        say(f"gpuwatch: process {profile.pid} ended after {profile.seconds:.1f} s, so sampling stopped")
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


LEAST_SHARE = 0.01
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+t?)/")


def tree(profile: Profile, least_share: float = LEAST_SHARE) -> Iterator[str]:
    """The lines. Frames below `least_share` of a thread are left out; a chain without forks is not indented."""
    samples = grouped(sum(len(lane.samples) for lane in profile.lanes))
    yield (
        f"{samples} samples of process {profile.pid} and its workers in {profile.seconds:.1f} s, "
        f"every {1000 * profile.interval_seconds:.0f} ms; shares are of each thread's samples"
    )
    if profile.rejected:
        yield f"{grouped(profile.rejected)} samples hit a stack that was changing and are not counted"
    for lane in profile.lanes:
        yield ""
        yield f"{plain(lane.name)}, {grouped(len(lane.samples))} samples"
        yield from _below(_merged(lane), len(lane.samples), least_share, 0)


@dataclass
class _Node:
    samples: int = 0
    below: dict[str, _Node] = field(default_factory=dict)


def _merged(lane: Lane) -> _Node:
    root = _Node()
    for index, count in Counter(lane.samples).items():
        node = root
        for place in lane.stacks[index]:
            node = node.below.setdefault(label_of(place), _Node())
            node.samples += count
    return root


def _below(node: _Node, total: int, least_share: float, depth: int) -> Iterator[str]:
    waiting = [(child, label, depth) for label, child in sorted(node.below.items(), key=lambda item: item[1].samples)]
    while waiting:
        current, label, level = waiting.pop()
        if current.samples < least_share * total:
            continue
        yield f"{100 * current.samples / total:5.1f}% {'  ' * level}{label}"
        is_chain = len(current.below) == 1 and next(iter(current.below.values())).samples == current.samples
        children = sorted(current.below.items(), key=lambda item: item[1].samples)
        waiting += [(child, name, level if is_chain else level + 1) for name, child in children]


def collapsed(profile: Profile) -> Iterator[str]:
    """`process;outermost;...;innermost count`, the count being samples."""
    for lane in profile.lanes:
        counts: Counter[str] = Counter()
        for index, count in Counter(lane.samples).items():
            counts[";".join([plain(lane.name), *map(label_of, lane.stacks[index])])] += count
        for stack, count in sorted(counts.items()):
            yield f"{stack} {count}"


def speedscope(profile: Profile) -> dict[str, Any]:
    """The document; weights are seconds, each sample current_line for the time to the next.

    The thread with the most samples was there all the time. One with fewer, such as a worker of one epoch, was not:
    its samples weigh no more, so that it lasts for its part of the profile.
    """
    numbers: dict[FramePlace, int] = {}
    lanes = []
    weight = profile.seconds / max((len(lane.samples) for lane in profile.lanes), default=1)
    for lane in profile.lanes:
        stacks = [[numbers.setdefault(place, len(numbers)) for place in stack] for stack in lane.stacks]
        lanes.append(
            {
                "type": "sampled",
                "name": plain(lane.name),
                "unit": "seconds",
                "startValue": 0,
                "endValue": weight * len(lane.samples),
                "samples": [stacks[number] for number in lane.samples],
                "weights": [weight] * len(lane.samples),
            }
        )
    return {
        "$schema": SCHEMA,
        "name": f"gpuwatch stacks {profile.pid}",
        "exporter": f"gpuwatch {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(place) for place in numbers]},
        "profiles": lanes,
    }


def _frame(place: FramePlace) -> dict[str, Any]:
    _, file, line = place
    return {"name": label_of(place), "file": file, **({"line": line} if line else {})}


def label_of(place: FramePlace) -> str:
    """`function (file:line)`. What is in a library is named from its package on; no byte of it can steer a terminal."""
    function, file, line = place
    return plain(f"{function} ({_LIBRARY.sub('', file)}{f':{line}' if line else ''})")


def plain(name: str) -> str:
    """A name in a line of frames: a semicolon would end it."""
    return printable(name).replace(";", "\\x3b")
