"""Trainers that have left word in a folder but are not linked: hooked, and silent so far."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from gpuwatch.samples import RunFacts, Sample, TrainerEnded
from gpuwatch.sources.hook_link.processes import Processes
from gpuwatch.sources.hook_link.rendezvous import Presence, Rendezvous

_PATIENCE_NS: Final = 2_000_000_000
_NOTE: Final = "this process has the hook, but has done nothing the hook reports since this monitor came"


@dataclass(slots=True)
class _Silent:
    pid: int
    start_ticks: int
    since_ns: int
    announced: bool = False
    killed: bool = False


class PresenceWatch:
    """Names the silent trainers, and removes the files of dead ones."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._silent: dict[str, _Silent] = {}
        self._foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}

    def look(self, folders: Iterable[Rendezvous], linked: Container[str], now_ns: int) -> list[Sample]:
        """Looks through the folders; `linked` holds the trainers that speak for themselves."""
        samples: list[Sample] = []
        found: set[str] = set()
        foreign: dict[tuple[tuple[int, int], Presence], int | None] = {}
        for folder in folders:
            for presence in folder.presences():
                pid = self._pid_here(folder, presence, foreign)
                if pid is None:
                    continue
                trainer = f"{pid}.{presence.start_ticks}"
                if not self._processes.is_alive(pid, presence.start_ticks):
                    folder.remove(presence.name)
                    if trainer in self._silent:
                        self._silent[trainer].killed = True
                elif trainer not in linked:
                    found.add(trainer)
                    samples += self._notice(trainer, pid, presence, now_ns)
        self._foreign = foreign
        return samples + self._part(found, linked, now_ns)

    def _notice(self, trainer: str, pid: int, presence: Presence, now_ns: int) -> list[Sample]:
        silent = self._silent.setdefault(trainer, _Silent(pid, presence.start_ticks, now_ns))
        if silent.announced or now_ns - silent.since_ns < _PATIENCE_NS:
            return []
        silent.announced = True
        return [
            RunFacts(
                time_ns=now_ns,
                trainer=trainer,
                pid=pid,
                start_ticks=presence.start_ticks,
                command=presence.command,
                cwd=presence.cwd,
                rung="proc",
                notes=(_NOTE,),
            )
        ]

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
        """The trainer's pid in this namespace; None for one in another container that cannot be found.

        All containers' trainers may be pid 1, so the number alone would name somebody else, whose life then
        decides over the file.
        """
        if presence.pid_namespace in (None, self._processes.pid_namespace):
            return presence.pid
        key = (folder.identity, presence)
        pid = self._foreign.get(key, 0)
        if pid == 0:
            matches = (
                pid
                for pid in self._processes.pids()
                if self._processes.start_ticks(pid) == presence.start_ticks
                and self._processes.own_number(pid) == presence.pid
            )
            pid = next(matches, None)
        foreign[key] = pid
        return pid
