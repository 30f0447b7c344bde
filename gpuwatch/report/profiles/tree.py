"""A call tree in text: where each thread's time goes, from its outermost frame inwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuwatch.report.profiles.labels import label_of, plain
from gpuwatch.sources.stacks.capture import Lane, Profile
from gpuwatch.text.numbers import grouped

LEAST_SHARE = 0.01


@dataclass
class _Node:
    looks: int = 0
    below: dict[str, _Node] = field(default_factory=dict)


def tree(profile: Profile, least_share: float = LEAST_SHARE) -> Iterator[str]:
    """The lines. Frames below `least_share` of a thread are left out; a chain without forks is not indented."""
    samples = grouped(sum(len(lane.looks) for lane in profile.lanes))
    yield (
        f"{samples} samples of process {profile.pid} and its workers in {profile.seconds:.1f} s, "
        f"every {1000 * profile.interval_seconds:.0f} ms; shares are of each thread's samples"
    )
    if profile.rejected:
        yield f"{grouped(profile.rejected)} samples met a stack that was changing and are not counted"
    for lane in profile.lanes:
        yield ""
        yield f"{plain(lane.name)}, {grouped(len(lane.looks))} samples"
        yield from _below(_merged(lane), len(lane.looks), least_share, 0)


def _merged(lane: Lane) -> _Node:
    root = _Node()
    for number, looks in Counter(lane.looks).items():
        node = root
        for place in lane.stacks[number]:
            node = node.below.setdefault(label_of(place), _Node())
            node.looks += looks
    return root


def _below(node: _Node, total: int, least_share: float, depth: int) -> Iterator[str]:
    waiting = [(child, label, depth) for label, child in sorted(node.below.items(), key=lambda item: item[1].looks)]
    while waiting:
        current, label, level = waiting.pop()
        if current.looks < least_share * total:
            continue
        yield f"{100 * current.looks / total:5.1f} % {'  ' * level}{label}"
        is_chain = len(current.below) == 1 and next(iter(current.below.values())).looks == current.looks
        children = sorted(current.below.items(), key=lambda item: item[1].looks)
        waiting += [(child, name, level if is_chain else level + 1) for name, child in children]
