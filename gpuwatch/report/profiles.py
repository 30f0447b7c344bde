"""Captured stacks as a call tree, as collapsed lines and as a speedscope file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuwatch._version import __version__
from gpuwatch.numbers import grouped
from gpuwatch.sources.stacks.capture import FramePlace, Lane, Profile
from gpuwatch.text import printable

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
    for number, count in Counter(lane.samples).items():
        node = root
        for place in lane.stacks[number]:
            node = node.below.setdefault(label_of(place), _Node())
            node.samples += count
    return root


def _below(node: _Node, total: int, least_share: float, depth: int) -> Iterator[str]:
    waiting = [(child, label, depth) for label, child in sorted(node.below.items(), key=lambda item: item[1].samples)]
    while waiting:
        current, label, level = waiting.pop()
        if current.samples < least_share * total:
            continue
        yield f"{100 * current.samples / total:5.1f} % {'  ' * level}{label}"
        is_chain = len(current.below) == 1 and next(iter(current.below.values())).samples == current.samples
        children = sorted(current.below.items(), key=lambda item: item[1].samples)
        waiting += [(child, name, level if is_chain else level + 1) for name, child in children]


def collapsed(profile: Profile) -> Iterator[str]:
    """`process;outermost;...;innermost count`, the count being samples."""
    for lane in profile.lanes:
        counts: Counter[str] = Counter()
        for number, count in Counter(lane.samples).items():
            counts[";".join([plain(lane.name), *map(label_of, lane.stacks[number])])] += count
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
