"""Collapsed stacks, a line each: what flamegraph.pl, inferno and speedscope read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuwatch.report.profiles.labels import label_of, plain
from gpuwatch.sources.stacks.capture import Profile


def collapsed(profile: Profile) -> Iterator[str]:
    """`process;outermost;...;innermost count`, the count being looks."""
    for lane in profile.lanes:
        counts: Counter[str] = Counter()
        for number, looks in Counter(lane.looks).items():
            counts[";".join([plain(lane.name), *map(label_of, lane.stacks[number])])] += looks
        for stack, looks in sorted(counts.items()):
            yield f"{stack} {looks}"
