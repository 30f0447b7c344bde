"""Folders in which trainers wait that look elsewhere than this monitor: containers, other users, other settings.

A trainer takes its folder from its own environment (a batch system sets TMPDIR, a container has its own /tmp), so
each process's environment says where it would look. A process is examined once, when it is new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwatch.sources.hook_link.processes import Processes, mounts_of, rendezvous_path
from gpuwatch.sources.hook_link.rendezvous import Rendezvous, RendezvousError

_NEW_PER_LOOK: Final = 200
_MAX_PLACES: Final = 256
_VISITORS: Final = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """Where some processes would look: a path in a mount namespace, of a user."""

    namespace: int
    path: Path
    owner: int


class FolderFinder:
    """Finds folders with trainers' presence files other than the monitor's own."""

    def __init__(self, processes: Processes, user: int) -> None:
        self._processes = processes
        self._user = user
        self._namespace = processes.mount_namespace(os.getpid())
        self._seen: set[int] = set()
        self._places: dict[_Place, list[int]] = {}
        self._mounts: dict[int, dict[str, str]] = {}  # by mount namespace, of one look

    def look(self, known: set[tuple[int, int]]) -> Iterator[Rendezvous]:
        """Opens the folders that hold presence files and are not among the `known` identities."""
        self._mounts.clear()
        self._examine_new()
        for place, visitors in list(self._places.items()):
            folder = self._open(place, visitors)
            if folder is None:
                continue
            if folder.identity not in known and folder.names("trainer-", ".json"):
                known.add(folder.identity)
                yield folder
            else:
                folder.close()

    def _examine_new(self) -> None:
        pids = set(self._processes.pids())
        self._seen &= pids
        for pid in sorted(pids - self._seen, reverse=True)[:_NEW_PER_LOOK]:
            self._seen.add(pid)
            place = self._place_of(pid)
            if place is None:
                continue
            if place not in self._places and len(self._places) >= _MAX_PLACES:
                self._places.pop(next(iter(self._places)))
            visitors = self._places.setdefault(place, [])
            visitors.append(pid)
            del visitors[:-_VISITORS]

    def _place_of(self, pid: int) -> _Place | None:
        owner = self._processes.owner(pid)
        if owner is None or (self._user not in (0, owner)):
            return None
        environment = self._processes.environment(pid)
        namespace = self._processes.mount_namespace(pid)
        if not environment or namespace is None:
            return None
        here = namespace == self._namespace
        root = Path("/") if here else self._processes.root / str(pid) / "root"
        if namespace not in self._mounts:
            self._mounts[namespace] = mounts_of(root)
        try:
            inside = self._processes.user_inside(pid, owner)
            path = rendezvous_path(environment, inside, root, self._mounts[namespace])
        except OSError:
            return None
        return _Place(namespace, path, owner) if path.is_absolute() else None

    def _open(self, place: _Place, visitors: list[int]) -> Rendezvous | None:
        if place.namespace == self._namespace:
            return _try_open(place, None)
        for pid in reversed(visitors):
            if self._processes.mount_namespace(pid) == place.namespace:
                return _try_open(place, self._processes.root / str(pid) / "root")
        del self._places[place]
        return None


def _try_open(place: _Place, root: Path | None) -> Rendezvous | None:
    try:
        return Rendezvous.open(place.path, place.owner, root)
    except RendezvousError:
        return None  # not there, or not to be trusted: the hook refuses it as well
