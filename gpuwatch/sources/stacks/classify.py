"""What one stack of a training thread means, apart from the role of the loop it stands in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gpuwatch.reader.codes import Code
from gpuwatch.reader.stacks import Frame
from gpuwatch.samples.stacks import StackPhase
from gpuwatch.sources.stacks.culprit import Call, Culprit, culprit_index, name_calls, name_culprit
from gpuwatch.sources.stacks.marks import Mark, hands_on, mark_of
from gpuwatch.sources.stacks.places import Owner, Place, Places
from gpuwatch.sources.syntax_child.protocol import Request, request_in_text

_KEPT: Final = 2048
_EVALUATES: Final = re.compile(
    r"(?:.*_)?(?:eval\w*|evaluate|valid\w*|val|test\w*|estimate_loss|infer\w*|predict\w*)", re.I
)
_TAKES_OVER: Final = re.compile(r"loads\(|_recv_bytes\(|recv_bytes\(\)")
_DECIDING: Final[dict[Mark, StackPhase]] = {
    Mark.LOG: "log",
    Mark.SYNC: "sync",
    Mark.COPY: "copy",
    Mark.FORWARD: "forward",
    Mark.MODULE: "forward",
    Mark.FEED: "wait",
}
_NO_LOOPS_BELOW: Final = frozenset({Mark.NEXT, Mark.START, Mark.MODULE, Mark.BACKWARD, Mark.OPTIMIZER})
_CALLS_OF: Final = frozenset({"wait", "start", "other", "copy"})
"""Phases in which batches are made, by a loader's next() or by the loop itself: calls of others have no reader."""
_FORWARD: Final = frozenset({Mark.MODULE, Mark.FORWARD, Mark.OPERATION})


class Text(Protocol):
    """Where lines of source come from."""

    def line(self, file: str, number: int | None) -> str | None:
        """The text of one line."""

    def request(self, file: str, number: int | None) -> Request | None:
        """What the statement at a line asks for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One stack, read. `phase` is what it is if the loop it stands in trains."""

    phase: StackPhase
    culprit: Culprit | None
    calls: tuple[Call, ...] = ()  # by which the culprit was called, where batches may be made: see _CALLS_OF
    trains: bool = False  # backward or optimizer
    evaluates: bool = False  # in an evaluation of a framework's, or a function that is named so and takes no gradients
    computes: bool = False  # some of torch.nn is at work
    waits: bool = False  # in a loader's next()
    receiving: bool = False  # unpickling and mapping what a worker sent
    handed: bool = False  # waits for what another thread or process hands over, not in a loader's next()
    next_frame: int | None = None  # the outermost frame of that next(), or of iter()
    where: int = 0  # stands for the lines of all frames but torch's and the standard library's
    around: int = 0  # stands for the lines of all frames around torch's own work, of which loops are written in some
    around_from: int = 0  # the innermost of these


class Classifier:
    """Reads stacks of one process. Equal stacks (the same lines of the same code) are read once."""

    def __init__(self, places: Places, text: Text) -> None:
        self.places = places
        self._text = text
        self._read: dict[tuple[int | None, ...], tuple[Sequence[Code], Reading]] = {}
        self._marks: dict[tuple[str, str], Mark | None] = {}
        self._hands_on: dict[tuple[str, str], bool] = {}
        self._last: tuple[Sequence[Frame], Reading] | None = None

    def read(self, frames: Sequence[Frame]) -> Reading:
        """What the stack means."""
        if self._last is not None and self._last[0] is frames:
            return self._last[1]
        # The code objects are kept with the answer, so that no other code object takes over an identity in the key.
        key = tuple([value for frame in frames for value in (id(frame.code), frame.line)])
        known = self._read.get(key)
        if known is None:
            if len(self._read) >= _KEPT:
                self._read.clear()
            known = self._read[key] = tuple(frame.code for frame in frames), self._classify(frames)
        self._last = frames, known[1]
        return known[1]

    def mark(self, frame: Frame) -> Mark | None:
        """What a frame by itself says."""
        key = frame.code.file, frame.code.name
        if key not in self._marks:
            self._marks[key] = mark_of(self.places.of(frame.code.file), frame.code.name)
        return self._marks[key]

    def hands_on(self, frame: Frame) -> bool:
        """Whether the frame only passes batches on from a loader to a loop."""
        key = frame.code.file, frame.code.name
        known = self._hands_on.get(key)
        if known is None:
            known = self._hands_on[key] = hands_on(self.places.of(key[0]), key[1])
        return known

    def _classify(self, frames: Sequence[Frame]) -> Reading:
        places = [self.places.of(frame.code.file) for frame in frames]
        marks = [self.mark(frame) for frame in frames]
        index = culprit_index(frames, places)
        phase = self._phase(frames, places, marks, index)
        if phase == "save" and Mark.SAVE in marks:
            index = _caller(frames, places, _last(marks, Mark.SAVE) + 1, index)
        culprit = None if index is None else name_culprit(frames, places, index, self._text.line)
        waits = Mark.NEXT in marks
        pulled = Mark.NEXT if waits else Mark.START
        next_frame = _last(marks, pulled) if pulled in marks else None
        handed = phase == "other" and Mark.HANDOVER in (marks if index is None else marks[:index])
        outside = max((index + 1 for index, mark in enumerate(marks) if mark in _NO_LOOPS_BELOW), default=0)
        return Reading(
            phase=phase,
            culprit=culprit,
            calls=self._calls(frames, places, phase, index, next_frame),
            trains=phase in ("backward", "optimizer"),
            evaluates=_evaluates(frames, places, marks),
            computes=phase == "forward" or Mark.MODULE in marks,
            waits=waits or phase == "wait",
            receiving=waits and self.receives(frames, places),
            handed=handed,
            next_frame=next_frame,
            where=_where(frames, places),
            around=hash((phase == "start", waits, *((id(frame.code), frame.line) for frame in frames[outside:]))),
            around_from=outside,
        )

    def _calls(
        self,
        frames: Sequence[Frame],
        places: Sequence[Place],
        phase: StackPhase,
        culprit: int | None,
        next_frame: int | None,
    ) -> tuple[Call, ...]:
        """Of a loader's next() those below it; of the loop's own Python and copies all."""
        outside = len(frames) if next_frame is None else next_frame
        if culprit is None or culprit >= outside or phase not in _CALLS_OF:
            return ()
        return name_calls(frames[:outside], places[:outside], culprit, self._text.line)

    def _phase(
        self, frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None], user: int | None
    ) -> StackPhase:
        if Mark.NEXT in marks:
            return "wait"
        if Mark.START in marks:
            return "start"
        if Mark.IMPORT in (marks if user is None else marks[:user]):
            return "other"
        if Mark.SAVE in marks:
            return "save"
        if Mark.COMPILE in marks:
            return "compile"
        backward, optimizer = _first(marks, Mark.BACKWARD), _first(marks, Mark.OPTIMIZER)
        # Of an optimizer in a backward hook and a backward in an optimizer's closure the inner one is at work.
        if optimizer is not None and (backward is None or optimizer < backward):
            called_back = any(mark in (Mark.CLOSURE, Mark.MODULE) for mark in marks[:optimizer])
            if not called_back:
                return "optimizer"
        elif backward is not None:
            return "backward"
        return self._by_lines(frames, places, marks, user)

    def _by_lines(
        self, frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None], user: int | None
    ) -> StackPhase:
        below = marks if user is None else marks[:user]
        for mark in below:
            if mark in _DECIDING:
                return _DECIDING[mark]
        if Mark.HANDOVER in below and not any(mark in _FORWARD for mark in marks):
            return "other"  # whatever the line does with what it gets: `queue.get().to(device)`
        leaf = _innermost_caller(places)
        request: StackPhase | None = None
        if leaf is not None and (user is None or leaf < user):
            # A framework's own line; its files are long, so only the line is looked at.
            request = request_in_text(self._text.line(frames[leaf].code.file, frames[leaf].line) or "")
        elif user is not None:
            request = self._text.request(frames[user].code.file, frames[user].line)
        if request is not None and request != "forward":
            return request
        if (request == "forward" and None not in below) or any(mark in _FORWARD for mark in marks):
            return "forward"
        return "other"

    def receives(self, frames: Sequence[Frame], places: Sequence[Place]) -> bool:
        """Whether the thread takes over a batch; waiting for one ends in a lock, a poll or a select."""
        if any(place.module == "torch/multiprocessing/reductions.py" for place in places):
            return True
        leaf, place = frames[0], places[0]
        if place.module == "multiprocessing/connection.py":
            return leaf.code.name in ("recv_bytes", "_recv_bytes", "_recv", "recv", "rebuild_connection")
        if place.module == "multiprocessing/queues.py":
            return _TAKES_OVER.search(self._text.line(leaf.code.file, leaf.line) or "") is not None
        return False


def _caller(frames: Sequence[Frame], places: Sequence[Place], start: int, other: int | None) -> int | None:
    """The user's line that calls what ends at `start`, which may call the user's own code back: __reduce__, in a save.

    `other` where none does.
    """
    index = culprit_index(frames[start:], places[start:])
    return other if index is None else start + index


def _innermost_caller(places: Sequence[Place]) -> int | None:
    """The innermost frame that is neither torch's nor the standard library's: whose line asked for what is done."""
    for index, place in enumerate(places):
        if place.owner is Owner.USER or (place.owner is Owner.LIBRARY and place.package not in ("torch", "numpy")):
            return index
    return None


def _where(frames: Sequence[Frame], places: Sequence[Place]) -> int:
    """Differs where a framework's loop below one line of the user's own moves on; a hang polls in torch only."""
    callers = (Owner.USER, Owner.LIBRARY)
    return hash(
        tuple(
            (frame.code.file, frame.code.name, frame.line)
            for frame, place in zip(frames, places, strict=True)
            if place.owner in callers and place.package != "torch"
        )
    )


def _evaluates(frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None]) -> bool:
    if Mark.EVALUATION in marks:
        return True
    return any(
        marks[index + 1] is Mark.NO_GRAD
        and places[index].owner is Owner.USER
        and _EVALUATES.fullmatch(frames[index].code.name) is not None
        for index in range(len(frames) - 1)
    )


def _first(marks: Sequence[Mark | None], mark: Mark) -> int | None:
    return next((index for index, found in enumerate(marks) if found is mark), None)


def _last(marks: Sequence[Mark | None], mark: Mark) -> int:
    return max(index for index, found in enumerate(marks) if found is mark)
