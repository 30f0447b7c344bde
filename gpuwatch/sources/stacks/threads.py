"""Which thread of a process trains, and which threads make its batches.

A thread feeds the training if it runs code in a loop that puts into a queue, or a task of a thread pool. Which queue it
is cannot be seen, so it is sampled only where the training thread waits for a queue or a task itself now and then. A
DataLoader's thread that pins what its workers send stands between them and the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.containment import Cache
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import FeederPhase, StackPhase
from gpuwatch.sources.stacks.classify import Classifier, Owner, Place, Reading
from gpuwatch.sources.stacks.source_text import SourceText

_CHECK_NS: Final = 3_000_000_000
_TRUSTED_NS: Final = 60_000_000_000


class TrainingThread:
    """The main thread, until another is seen in backward or optimizer and the main one never is.

    Threads that only wait for a loader prefetch; backward by autograd's own threads has no frame of the call.
    """

    def __init__(self, process: Interpreter, classifier: Classifier) -> None:
        self._process = process
        self._classifier = classifier
        self._thread: int | None = None
        self._trained_ns: int | None = None
        self._checked_ns: int | None = None
        self._missed = 0

    def stack(self) -> Stack | None:
        """The training thread's stack now; None where it was torn."""
        if self._thread is None:
            return self._process.main_stack()
        found = next((stack for stack in self._process.stacks() if stack.thread == self._thread), None)
        self._missed = 0 if found is not None else self._missed + 1
        if self._missed >= 100:
            self._thread, self._missed = None, 0
        return found

    def note(self, reading: Reading, now_ns: int) -> None:
        """Takes note of whether the sampled thread trains."""
        if reading.trains:
            self._trained_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Samples all threads every few seconds while the present one was not seen to train.

        Raises:
            CannotReadError: The process is gone.
        """
        if self._trained_ns is not None and now_ns - self._trained_ns < _TRUSTED_NS:
            return
        if self._checked_ns is not None and now_ns - self._checked_ns < _CHECK_NS:
            return
        self._checked_ns = now_ns
        for stack in self._process.stacks():
            if not stack.is_main and stack.frames and self._classifier.read(stack.frames).trains:
                self._thread, self._trained_ns = stack.thread, now_ns
                return


_PUTS: Final = frozenset({"put", "put_nowait"})
_POOL: Final = "concurrent/futures/thread.py"
_FETCH: Final = "torch/utils/data/_utils/fetch.py"
_PIN: Final = "torch/utils/data/_utils/pin_memory.py"
_QUEUES: Final = frozenset({"queue.py", "multiprocessing/queues.py"})
_KEPT: Final = 2048
_WAITED_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class FeederSample:
    """One sample of one such thread."""

    stack: Stack
    reading: Reading
    phase: FeederPhase


class Feeders:
    """The threads other than the training thread."""

    def __init__(self, process: Interpreter, classifier: Classifier, text: SourceText) -> None:
        self._process = process
        self._classifier = classifier
        self._text = text
        self._puts: Cache[tuple[str, int | None], bool] = Cache(_KEPT)
        self._sampled_ns: int | None = None
        self._waited_ns: int | None = None
        self._saves = False

    def is_due(self, now_ns: int, rate_hz: float, *, waits: bool) -> bool:
        """Whether they are to be sampled now: as often as the rate asks for, while the training waits now and then.

        Also while it computes: how busy they are says how long they take for a batch.
        """
        if waits:
            self._waited_ns = now_ns
        if self._waited_ns is None or now_ns - self._waited_ns > _WAITED_NS:
            return False
        return self._sampled_ns is None or now_ns - self._sampled_ns >= 1e9 / rate_hz

    def sample(self, trainer: Stack, now_ns: int) -> tuple[FeederSample, ...] | None:
        """A sample of each of them; None where they save.

        Raises:
            CannotReadError: The process is gone.
        """
        self._sampled_ns = now_ns
        found = tuple(self._found(trainer))
        feeding = [sample for sample in found if sample.phase not in ("pin", "pin-idle")]
        self._saves = bool(feeding) and all(sample.reading.phase == "save" for sample in feeding)
        return None if self._saves else found

    @property
    def waited_for(self) -> StackPhase:
        """What the training thread waits for, as they were seen last: a checkpoint that a thread writes, or data."""
        return "save" if self._saves else "wait"

    def _found(self, trainer: Stack) -> Iterator[FeederSample]:
        for stack in self._process.stacks():
            if stack.thread == trainer.thread or not stack.frames:
                continue
            places = [self._classifier.places.of(frame.code.file) for frame in stack.frames]
            if any(place.module == _PIN for place in places):
                yield FeederSample(stack, self._classifier.read(stack.frames), self._pins(stack.frames, places))
            elif self._feeds(stack.frames, places):
                reading = self._classifier.read(stack.frames)
                yield FeederSample(stack, reading, self._phase(stack.frames, reading))

    def _pins(self, frames: Sequence[Frame], places: Sequence[Place]) -> FeederPhase:
        """It takes batches over, pins them and puts them into a queue; between batches it waits for the workers'."""
        is_waiting = any(place.module in _QUEUES for place in places) and not self._classifier.receives(frames, places)
        return "pin-idle" if is_waiting else "pin"

    def _feeds(self, frames: Sequence[Frame], places: Sequence[Place]) -> bool:
        if any(place.module == _POOL for place in places):
            return any(place.owner is Owner.USER for place in places)
        return any(
            self._is_in_putting_loop(frame)
            for frame, place in zip(frames, places, strict=True)
            if place.owner is Owner.USER or (place.owner is Owner.LIBRARY and place.package != "torch")
        )

    def _is_in_putting_loop(self, frame: Frame) -> bool:
        key = frame.code.file, frame.line
        known = self._puts.get(key)
        if known is None:
            known = self._puts[key] = any(loop.calls & _PUTS for loop in self._text.loops(*key))
        return known

    def _phase(self, frames: Sequence[Frame], reading: Reading) -> FeederPhase:
        modules = [self._classifier.places.of(frame.code.file).module for frame in frames]
        if reading.waits:
            return "make" if _FETCH in modules or reading.receiving else "wait"
        inner = next((module for module in modules if module != "threading.py"), None)
        return "idle" if inner in _QUEUES or reading.handed else "make"
