"""Whom the watch of a simulated machine is narrowed to: the demo of attaching can be attached and detached, too."""

from __future__ import annotations


class SimulatedFocus:
    """One process, or everything; no process of this machine is ever looked at.

    Args:
        pid: of the simulated run that is attached to at the start.
    """

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    @property
    def attached_pid(self) -> int | None:
        """Its pid; None where everything is shown."""
        return self._pid

    def attach(self, pid: int | None) -> None:
        """Narrows it to another one."""
        self._pid = pid

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""
        return None if self._pid is None else frozenset((self._pid,))
