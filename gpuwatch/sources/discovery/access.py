"""How well each candidate can be seen from here, and how to see more of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gpuwatch.reader.types import CannotReadError, Reason
from gpuwatch.sources.discovery.process import Process
from gpuwatch.sources.host.identify import user_name
from gpuwatch.sources.host.process import ProcessKey

Rung = Literal["exact", "sampled", "proc", "hardware"]
CanRead = Callable[[int], CannotReadError | None]
"""Tries to read a process: None where that works, else why it does not."""

CLIMB_TO_EXACT: Final = "start it with `gpuwatch run` the next time: then every step and wait is measured"
_RETRY_NS: Final = 30_000_000_000
_LAST_RETRY_NS: Final = 3_600_000_000_000
_TRY_SECONDS: Final = 0.25
"""CPU time of one try, in which the monitor's thread does nothing else; 2 to 30 ms are usual."""
_SOON_NS: Final = 2_000_000_000
_GONE = (Reason.GONE, Reason.ZOMBIE)


class Standing(NamedTuple):
    """The best rung of a process, why it is not a better one, and how to climb."""

    rung: Rung
    refusal: str | None = None
    climb: str | None = None


class _Try(NamedTuple):
    time_ns: int
    error: CannotReadError | None
    pause_ns: int = _RETRY_NS


class Access:
    """Tries each candidate once, a few milliseconds each, and those that were refused again now and then.

    Args:
        can_read: the try.
        user: who asks; root may look at everybody's.
    """

    def __init__(self, can_read: CanRead, user: int | None = None) -> None:
        self._can_read = can_read
        self._user = os.geteuid() if user is None else user
        self._tries: dict[ProcessKey, _Try] = {}

    def needs_try(self, process: Process, now_ns: int) -> bool:
        """Whether nothing is known of it, or a refusal has grown old."""
        if self._is_foreign(process):
            return False
        known = self._tries.get(process.key)
        if known is None:
            return True
        if known.error is None:
            return False
        return now_ns - known.time_ns >= known.pause_ns

    def attempt(self, process: Process, now_ns: int) -> None:
        """Tries to read it, ever more seldom where what it holds is the reason for the refusal."""
        before, error = self._tries.get(process.key), self._can_read(process.pid)
        pause_ns = _RETRY_NS
        if error is not None and error.reason is Reason.NOT_READY:
            pause_ns = _SOON_NS
        elif error is not None and error.is_lasting and before is not None:
            pause_ns = min(4 * before.pause_ns, _LAST_RETRY_NS)
        self._tries[process.key] = _Try(now_ns, error, pause_ns)

    def forget_all_but(self, keys: Collection[ProcessKey]) -> None:
        """Keeps only what is known of these."""
        self._tries = {key: known for key, known in self._tries.items() if key in keys}

    def standing(self, process: Process, hooked: bool) -> Standing | None:
        """How it stands; None for one that has ended meanwhile."""
        if hooked:
            return Standing("exact")
        if self._is_foreign(process):
            owner = user_name(process.uid)
            who = f"{owner} or as root" if process.uid else "root"
            return Standing("hardware", f"belongs to {owner}", f"run gpuwatch as {who} (sudo)")
        known = self._tries.get(process.key)
        if known is None or known.error is None:
            return Standing("sampled", climb=CLIMB_TO_EXACT)
        if known.error.reason in _GONE:
            return None
        return Standing("proc", known.error.sentence, known.error.cure or CLIMB_TO_EXACT)

    def _is_foreign(self, process: Process) -> bool:
        return self._user not in (0, process.uid)


def try_to_read(pid: int, proc_root: Path = Path("/proc")) -> CannotReadError | None:
    """Attaches to a process and lets go of it: permission, build and version at once, without touching it.

    The reader takes 30 ms to import, which a machine without candidates is spared.
    """
    from gpuwatch.reader.attach import attach

    try:
        attach(pid, proc_root=proc_root, cpu_seconds=_TRY_SECONDS).close()
    except CannotReadError as error:
        return error
    return None
