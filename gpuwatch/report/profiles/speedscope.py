"""The file format of speedscope (https://www.speedscope.app), a profile per thread on one time axis each."""

from __future__ import annotations

from typing import Any

from gpuwatch._version import __version__
from gpuwatch.report.profiles.labels import label_of
from gpuwatch.sources.stacks.capture import FramePlace, Profile

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(profile: Profile) -> dict[str, Any]:
    """The document; weights are seconds, each look standing for the time to the next."""
    numbers: dict[FramePlace, int] = {}
    lanes = []
    for lane in profile.lanes:
        stacks = [[numbers.setdefault(place, len(numbers)) for place in stack] for stack in lane.stacks]
        weight = profile.seconds / len(lane.looks)
        lanes.append(
            {
                "type": "sampled",
                "name": lane.name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": profile.seconds,
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
