"""Which thread of a process trains: nearly always the main one, whose stack alone is cheap to read."""

from __future__ import annotations

from typing import Final

from gpuwatch.reader.stacks import Stack
from gpuwatch.sources.stacks.classify import Classifier, Reading
from gpuwatch.sources.stacks.reading import Readable

_CHECK_NS: Final = 3_000_000_000
_TRUSTED_NS: Final = 60_000_000_000


class TrainingThread:
    """The main thread, until another is seen in backward or optimizer and the main one never is.

    Threads that only wait for a loader prefetch; backward by autograd's own threads has no frame of the call.
    """

    def __init__(self, process: Readable, classifier: Classifier) -> None:
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
        """Takes note of whether the thread that is looked at trains."""
        if reading.trains:
            self._trained_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Looks at all threads every few seconds while the present one was not seen to train.

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
