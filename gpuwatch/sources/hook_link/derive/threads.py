"""Which thread trains: the one that runs backward or the optimizer, whatever its name."""

from __future__ import annotations

from typing import Final

_MAX_THREADS: Final = 64
_MOVED_AFTER: Final = 8
_OPTIMIZERS_WITHOUT_BACKWARD: Final = 3


class TrainingThread:
    """Settles on a thread, and follows when the training moves.

    The optimizer alone settles nothing at first: where it runs inside the backward, it may run on a thread of the
    autograd engine.
    """

    def __init__(self) -> None:
        self.optimizers = 0
        self._run_backward: set[int] = set()
        self._elsewhere = 0

    def stays(self) -> None:
        """Notes a backward on the training thread."""
        self._elsewhere = 0

    def moves(self, current: int | None, thread: int) -> bool:
        """Whether a backward on another thread makes that one the training thread."""
        if len(self._run_backward) < _MAX_THREADS:
            self._run_backward.add(thread)
        if current is not None and current in self._run_backward:
            self._elsewhere += 1
            if self._elsewhere < _MOVED_AFTER:
                return False
        self._elsewhere = 0
        return True

    def optimizer(self, current: int | None, thread: int) -> tuple[bool, bool]:
        """Whether an optimizer step belongs to the training, and whether it settles the training thread."""
        if thread == current:
            self.optimizers += 1
            return True, False
        if thread in self._run_backward:
            return False, False
        self.optimizers += 1
        return True, current is None and self.optimizers > _OPTIMIZERS_WITHOUT_BACKWARD
