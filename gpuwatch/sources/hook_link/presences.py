"""Trainers that have left word in a folder but are not linked: hooked, and silent so far."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from gpuwatch.samples import LinkLoss, RunFacts, Sample, TrainerEnded
from gpuwatch.sources.hook_link.processes import Processes
from gpuwatch.sources.hook_link.rendezvous import Presence, Rendezvous

_PATIENCE_NS: Final = 2_000_000_000
_SILENT: Final = "hooked, but has done nothing that the hook reports since this gpuwatch came"
_LINKED_ELSEWHERE: Final = "hooked, but already linked to {} other gpuwatch, the most that a run serves; close one"
_MOST_LINKS: Final = 4
_MAX_SEARCHES: Final = 8  # of all processes, for trainers of other pid namespaces, in one pass
_RECHECK_NS: Final = 5_000_000_000


@dataclass(slots=True)
class _Silent:
    pid: int
    start_ticks: int
    since_ns: int
    announced: str = ""  # the sentence
    checked_ns: int = 0
    killed: bool = False


class PresenceWatch:
    """Names the silent trainers, and removes the files of dead ones."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._silent: dict[str, _Silent] = {}
        self._foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}
        self._crowded: set[tuple[int, int]] = set()
        self._searches = 0

    def look(self, folders: Iterable[Rendezvous], linked: Container[str], now_ns: int) -> list[Sample]:
        """Looks through the folders; `linked` holds the trainers that speak for themselves."""
        samples: list[Sample] = []
        found: set[str] = set()
        foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}
        self._searches = 0
        for folder in folders:
            folder.remove_old_drafts(time.time())
            for presence in folder.presences():
                pid = self._pid_here(folder, presence, foreign)
                if pid is None:
                    if self._processes.sees_all:
                        folder.remove(presence.name)
                    continue
                if not pid or not names_its_own(self._processes, folder, pid):
                    continue
                trainer = f"{pid}.{presence.start_ticks}"
                if not self._processes.is_alive(pid, presence.start_ticks):
                    folder.remove(presence.name)
                    if trainer in self._silent:
                        self._silent[trainer].killed = True
                elif trainer not in linked:
                    found.add(trainer)
                    samples += self._notice(trainer, pid, presence, now_ns)
            samples += self._crowd(folder, now_ns)
        self._foreign = foreign
        return samples + self._part(found, linked, now_ns)

    def _notice(self, trainer: str, pid: int, presence: Presence, now_ns: int) -> list[Sample]:
        silent = self._silent.setdefault(trainer, _Silent(pid, presence.start_ticks, now_ns))
        if now_ns - silent.since_ns < _PATIENCE_NS or now_ns - silent.checked_ns < _RECHECK_NS:
            return []
        silent.checked_ns = now_ns
        links = self._processes.connected_links(pid) or 0
        why = _LINKED_ELSEWHERE.format(links) if links >= _MOST_LINKS else _SILENT
        if why == silent.announced:
            return []
        silent.announced = why
        return [
            RunFacts(
                time_ns=now_ns,
                trainer=trainer,
                pid=pid,
                start_ticks=presence.start_ticks,
                command=presence.command,
                cwd=presence.cwd,
                rung="proc",
                hooked=True,
                climb=why,
                notes=(why,),
            )
        ]

    def _crowd(self, folder: Rendezvous, now_ns: int) -> list[Sample]:
        """Says once of a folder that not all of its files are read."""
        if not folder.is_crowded:
            self._crowded.discard(folder.identity)
            return []
        if folder.identity in self._crowded:
            return []
        self._crowded.add(folder.identity)
        detail = f"{folder.path} holds more presence files than are read: remove those of runs that ended"
        return [LinkLoss(None, now_ns, detail=detail)]

    def _part(self, found: set[str], linked: Container[str], now_ns: int) -> list[Sample]:
        """Lets go of those that are linked by now, or dead."""
        samples: list[Sample] = []
        for trainer, silent in list(self._silent.items()):
            if trainer in linked:
                del self._silent[trainer]
            elif trainer not in found and not self._processes.is_alive(silent.pid, silent.start_ticks):
                del self._silent[trainer]
                if silent.announced:
                    samples.append(TrainerEnded(trainer, now_ns, "killed" if silent.killed else "exited"))
        return samples

    def _pid_here(
        self,
        folder: Rendezvous,
        presence: Presence,
        foreign: dict[tuple[tuple[int, int], Presence], int | None],
    ) -> int | None:
        """The trainer's pid in this namespace; None for one in another container that is not found, 0 for a later try.

        All containers' trainers may be pid 1, so the number alone would name somebody else, whose life then
        decides over the file.
        """
        if presence.pid_namespace in (None, self._processes.pid_namespace):
            return presence.pid
        key = (folder.identity, presence)
        pid = self._foreign.get(key, 0)
        if pid == 0:
            if self._searches >= _MAX_SEARCHES:
                return 0
            self._searches += 1
            matches = (
                pid
                for pid in self._processes.pids()
                if self._processes.start_ticks(pid) == presence.start_ticks
                and self._processes.own_number(pid) == presence.pid
            )
            pid = next(matches, None)
        foreign[key] = pid
        return pid


def names_its_own(processes: Processes, folder: Rendezvous, pid: int) -> bool:
    """Whether a presence file may speak of this process: a folder's owner could name anybody's.

    True of one that is gone, whose file only remains to be removed.
    """
    return processes.user(pid) in (None, folder.owner)
