"""What a DataLoader worker does, by its stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpuwatch.reader.codes import Code
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples.stacks import WorkerPhase
from gpuwatch.sources.stacks.classify import Text
from gpuwatch.sources.stacks.culprit import Call, Culprit, name_calls, name_culprit
from gpuwatch.sources.stacks.places import Owner, Place, Places

_LOOP: Final = "torch/utils/data/_utils/worker.py"
_FETCH: Final = "torch/utils/data/_utils/fetch.py"
_QUEUES: Final = "multiprocessing/queues.py"
_COLLATES: Final = re.compile(r"\bcollate_fn\(")
_FEEDER_RESTS: Final = re.compile(r"nwait\(|nacquire\(|nrelease\(|popleft\(")
_KEPT: Final = 2048

WorkerReading = tuple[WorkerPhase, "Culprit | None", tuple[Call, ...]]
"""What it does, on which line, and by which calls it came there."""


class WorkerClassifier:
    """Reads the stacks of one trainer's workers. Frames outside of the worker's loop are not its own.

    A forked worker carries the stack its parent had when it was started: the user's training loop stands in it.
    """

    def __init__(self, places: Places, text: Text) -> None:
        self._places = places
        self._text = text
        self._read: dict[tuple[int | None, ...], tuple[Sequence[Code], WorkerReading]] = {}

    def is_worker(self, stacks: Sequence[Stack]) -> bool:
        """Whether the process runs a worker's loop."""
        return any(self._loop_index(stack.frames) is not None for stack in stacks)

    def read(self, stacks: Sequence[Stack]) -> WorkerReading | None:
        """What the worker does; None where its main thread was not seen.

        A batch is pickled and sent by a thread of the queue's own, after the main thread has gone on.
        """
        main = next((stack for stack in stacks if stack.is_main), None)
        if main is None:
            return None
        reading = self._of_main(main.frames)
        if reading[0] == "idle" and any(self._sends(stack.frames) for stack in stacks if not stack.is_main):
            return "send", None, ()
        return reading

    def _of_main(self, frames: Sequence[Frame]) -> WorkerReading:
        key = tuple(value for frame in frames for value in (id(frame.code), frame.line))
        known = self._read.get(key)
        if known is None:
            if len(self._read) >= _KEPT:
                self._read.clear()
            known = self._read[key] = tuple(frame.code for frame in frames), self._classify(frames)
        return known[1]

    def _classify(self, frames: Sequence[Frame]) -> WorkerReading:
        loop = self._loop_index(frames)
        if loop is None:
            return "other", None, ()
        # In a hooked worker the hook's frames stand in between.
        own = [frame for frame in frames[:loop] if self._places.of(frame.code.file).owner is not Owner.GPUWATCH]
        places = [self._places.of(frame.code.file) for frame in own]
        if not own:
            return _by_loop_line(self._text.line(frames[loop].code.file, frames[loop].line) or ""), None, ()
        called = places[-1].module
        if called == _QUEUES:
            return ("idle" if own[-1].code.name == "get" else "send"), None, ()
        phase = self._of_fetch(own, places) if called == _FETCH else "other"
        index = _culprit_index(places, phase)
        if index is None:
            return phase, None, ()
        line = self._text.line
        return phase, name_culprit(own, places, index, line), name_calls(own, places, index, line)

    def _of_fetch(self, own: Sequence[Frame], places: Sequence[Place]) -> WorkerPhase:
        fetch = next(frame for frame in reversed(own) if frame.code.name == "fetch" or frame is own[-1])
        line = self._text.line(fetch.code.file, fetch.line)
        if line is not None:
            return "collate" if _COLLATES.search(line) else "item"
        collates = any(
            "collate" in frame.code.name or place.module.endswith("collate.py")
            for frame, place in zip(own, places, strict=True)
        )
        return "collate" if collates else "item"

    def _loop_index(self, frames: Sequence[Frame]) -> int | None:
        for index, frame in enumerate(frames):
            if frame.code.name == "_worker_loop" and self._places.of(frame.code.file).module == _LOOP:
                return index
        return None

    def _sends(self, frames: Sequence[Frame]) -> bool:
        """Whether a queue's feeder is at work: it rests in a condition's wait."""
        feeder = next((i for i, f in enumerate(frames) if f.code.name == "_feed" and self._module(f) == _QUEUES), None)
        if feeder is None:
            return False
        if feeder > 0:
            return self._module(frames[feeder - 1]) != "threading.py"
        return not _FEEDER_RESTS.search(self._text.line(frames[0].code.file, frames[0].line) or "nwait(")

    def _module(self, frame: Frame) -> str:
        return self._places.of(frame.code.file).module


def _culprit_index(places: Sequence[Place], phase: WorkerPhase) -> int | None:
    """The user's innermost frame; where a library's dataset does all of it, the innermost of a library."""
    for owner in (Owner.USER, Owner.LIBRARY) if phase == "item" else (Owner.USER,):
        for index, place in enumerate(places):
            if place.owner is owner and not place.module.startswith("torch/utils/data/_utils/"):
                return index
    return None


def _by_loop_line(line: str) -> WorkerPhase:
    if "data_queue.put" in line:
        return "send"
    if "index_queue.get" in line:
        return "idle"
    return "item" if "fetch(" in line else "other"
