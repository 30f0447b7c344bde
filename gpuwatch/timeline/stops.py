"""When a training process was stopped (SIGSTOP, Ctrl+Z, a debugger), as the once-a-second looks at /proc show it."""

from __future__ import annotations

from collections import deque

STOPPED_STATES = frozenset({"T", "t"})
_KEPT = 64


class StopLog:
    """The stops of one trainer. Their edges are known to a second; the step that holds one tells the rest."""

    __slots__ = ("_done", "_first_ns", "_last_ns", "_over_ns")

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last_ns = 0
        self._over_ns = 0
        self._done: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    @property
    def since_ns(self) -> int | None:
        """When the stop that lasts was seen first."""
        return self._first_ns

    def see(self, time_ns: int, state: str | None) -> tuple[int, int | None] | None:
        """Takes one look at the process; the start and the end (if it is over) of a stop that begins or ends here."""
        if state in STOPPED_STATES:
            if time_ns <= self._over_ns:
                return None
            self._last_ns = time_ns
            if self._first_ns is None:
                self._first_ns = time_ns
                return time_ns, None
            return None
        # It went on somewhere between two looks.
        return self.close((self._last_ns + time_ns) // 2)

    def close(self, end_ns: int) -> tuple[int, int | None] | None:
        """Ends the stop that lasts, if one does."""
        if self._first_ns is None:
            return None
        start_ns, self._first_ns = self._first_ns, None
        self._over_ns = max(end_ns, self._last_ns)
        self._done.append((start_ns, self._last_ns))
        return start_ns, max(end_ns, start_ns + 1)

    def within(self, start_ns: int, end_ns: int) -> bool:
        """Whether a stop was seen between two moments: a stopped process ends nothing, so it lies in there whole."""
        if self._first_ns is not None and start_ns <= self._first_ns < end_ns:
            return True
        return any(start_ns <= first and last <= end_ns for first, last in self._done)
