"""The file format of speedscope (https://www.speedscope.app), a profile per thread on one time axis each."""

from __future__ import annotations

from typing import Any

from gpuwatch._version import __version__
from gpuwatch.report.profiles.labels import label_of, plain
from gpuwatch.sources.stacks.capture import FramePlace, Profile

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(profile: Profile) -> dict[str, Any]:
    """The document; weights are seconds, each look standing for the time to the next.

    The thread with the most looks was there all the time. One with fewer, such as a worker of one epoch, was not: its
    looks weigh no more, so that it lasts for its part of the profile.
    """
    numbers: dict[FramePlace, int] = {}
    lanes = []
    weight = profile.seconds / max((len(lane.looks) for lane in profile.lanes), default=1)
    for lane in profile.lanes:
        stacks = [[numbers.setdefault(place, len(numbers)) for place in stack] for stack in lane.stacks]
        lanes.append(
            {
                "type": "sampled",
                "name": plain(lane.name),
                "unit": "seconds",
                "startValue": 0,
                "endValue": weight * len(lane.looks),
                "samples": [stacks[number] for number in lane.looks],
                "weights": [weight] * len(lane.looks),
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
