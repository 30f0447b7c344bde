"""The line to blame for a sample: the innermost frame of the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.places import Owner, Place

_LAUNCHERS = frozenset({"torch", "accelerate", "lightning", "pytorch_lightning", "ray", "deepspeed", "debugpy"})


@dataclass(frozen=True, slots=True)
class Culprit:
    """A line of the user's code. `leaf` is the library function at work below it, None where it runs itself."""

    file: str
    line: int
    function: str
    text: str | None
    leaf: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the user's code that calls a function of the user's, maybe through a library."""

    file: str
    line: int
    function: str
    callee_file: str
    callee: str
    text: str | None


def culprit_index(frames: Sequence[Frame], places: Sequence[Place]) -> int | None:
    """The innermost frame of the user's own.

    A trainer that is itself installed (`python -m package.train`) has none: then the package that the program began
    with is the user's, as far as it is not a launcher's.
    """
    for index, place in enumerate(places):
        if place.owner is Owner.USER:
            return index
    package = next((place.package for place in reversed(places) if place.owner is Owner.LIBRARY), None)
    if package is None or package in _LAUNCHERS:
        return None
    return next(index for index, place in enumerate(places) if place.package == package)


def name_culprit(
    frames: Sequence[Frame], places: Sequence[Place], index: int, line_text: Callable[[str, int | None], str | None]
) -> Culprit:
    """The frame at `index`, with the innermost library frame below it."""
    frame = frames[index]
    return Culprit(
        file=frame.code.file,
        line=frame.line or frame.code.first_line,
        function=_function(frame),
        text=line_text(frame.code.file, frame.line),
        leaf=_leaf(frames[:index], places),
    )


def name_calls(
    frames: Sequence[Frame], places: Sequence[Place], index: int, line_text: Callable[[str, int | None], str | None]
) -> tuple[Call, ...]:
    """The calls by which the user's code came to the frame at `index`, the innermost first, each once."""
    whose = places[index]
    if whose.owner is not Owner.USER and whose.package in _LAUNCHERS:
        return ()
    own = [
        frame
        for frame, place in zip(frames[index:], places[index:], strict=True)
        if place.owner is whose.owner and (place.owner is Owner.USER or place.package == whose.package)
    ]
    calls = (
        Call(
            file=caller.code.file,
            line=caller.line or caller.code.first_line,
            function=_function(caller),
            callee_file=callee.code.file,
            callee=_function(callee),
            text=line_text(caller.code.file, caller.line),
        )
        for callee, caller in pairwise(own)
        if callee.code is not caller.code  # of a function that calls itself the first call counts
    )
    return tuple(dict.fromkeys(calls))


def _function(frame: Frame) -> str:
    return frame.code.qualified_name or frame.code.name


def _leaf(inner: Sequence[Frame], places: Sequence[Place]) -> str | None:
    """A library's frame rather than the standard library's that it calls: "PIL/Image.py:open", not "posixpath"."""
    for owner in (Owner.LIBRARY, Owner.STANDARD):
        for frame, place in zip(inner, places, strict=False):
            if place.owner is owner:
                return place.shown(frame.code.name)
    return None
