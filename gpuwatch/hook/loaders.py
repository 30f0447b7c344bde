"""The DataLoaders of this process: their numbers, their settings, and the line that built them."""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set

from . import batches
from .frames import Place
from .quiet import noting, own, quietly
from .ring import pulse
from .settings import batches_per_epoch, index_sampler, read_settings

_KEPT = 32
_SHAPES_KEPT = 64


class LoaderEntry:
    """One DataLoader that was built, or found in use."""

    __slots__ = (
        "inline",
        "iterated",
        "learned",
        "looks",
        "measure",
        "number",
        "place",
        "reference",
        "settings",
        "shapes",
    )

    def __init__(self, number: int, place: Optional[Place]) -> None:
        self.number = number
        self.place = place
        self.inline = False
        self.iterated = False
        self.learned = 0
        self.measure: Optional[batches.Measure] = None
        self.reference: Callable[[], Any] = lambda: None
        self.settings: Dict[str, Any] = {}
        self.looks = 0
        self.shapes: Set[Any] = set()

    def note_shapes(self, shapes: Any) -> None:
        """Counts a batch whose items have these shapes."""
        if shapes is not None:
            self.looks += 1
            if len(self.shapes) < _SHAPES_KEPT:
                self.shapes.add(shapes)

    def refresh(self) -> None:
        """Reads the settings as they are now; of a loader that is gone, the last ones stay."""
        loader = self.reference()
        if loader is not None:
            self.settings.update(read_settings(loader))
            if "batches_per_epoch" not in self.settings:
                self.settings["batches_per_epoch"] = batches_per_epoch(loader)


_entries: List[LoaderEntry] = []
_by_id: Dict[int, LoaderEntry] = {}
_last_number = 0


def wrap_loader(torch: ModuleType) -> None:
    """Learns where DataLoaders are built."""
    kind = torch.utils.data.DataLoader
    kind.__init__ = noting(kind.__init__, _register)


def wrap_stateful_loader(module: ModuleType) -> None:
    """The same for torchdata's loader, which calls none of its parent's methods."""
    module.StatefulDataLoader.__init__ = noting(module.StatefulDataLoader.__init__, _register)


def facts() -> List[Dict[str, Any]]:
    """The `loaders` list of docs/protocol.md: those that were iterated, the newest where there are many."""
    found = []
    for entry in [entry for entry in _entries if entry.iterated][-_KEPT:]:
        quietly(entry.refresh)
        place = entry.place
        shapes = {"batch_looks": entry.looks, "batch_shapes": len(entry.shapes)} if entry.looks else {}
        found.append({"loader": entry.number, **(place._asdict() if place else {}), **entry.settings, **shapes})
    return found


def new_entry(place: Optional[Place]) -> LoaderEntry:
    """An entry with a number of its own, for a DataLoader or for `gpuwatch.loader`."""
    global _last_number
    _last_number = min(_last_number + 1, 0xFFFF)
    entry = LoaderEntry(_last_number, place)
    _entries.append(entry)
    if len(_entries) > 4 * _KEPT:
        alive = [old for old in _entries[:-1] if old.reference() is not None]
        _entries[:] = [*alive[-3 * _KEPT :], entry]
    pulse.facts_changed = True
    return entry


def entry_of(loader: Any) -> LoaderEntry:
    """The entry of a DataLoader; one that was copied or unpickled has none yet."""
    return _by_id.get(id(loader)) or _register(loader, None)


def entry_with_sampler(sampler: Any) -> Optional[LoaderEntry]:
    """The entry of the DataLoader that draws from this sampler."""
    for entry in list(_by_id.values()):  # a loader may be collected meanwhile
        loader = entry.reference()
        if loader is not None and sampler is not None and index_sampler(loader) is sampler:
            return entry
    return None


def _register(loader: Any, place: Optional[Place]) -> LoaderEntry:
    entry = new_entry(place)
    identity = id(loader)
    if place is None or place.library is not None:
        entry.place = _place_of_the_original(loader) or place
    # Written in C: a Python callback of a weak reference would swallow a Ctrl-C that arrives in it.
    entry.reference = weakref.ref(loader, functools.partial(_by_id.pop, identity))
    _by_id[identity] = entry
    count = own(loader, "num_workers")
    entry.inline = type(count) is int and count == 0
    return entry


def _place_of_the_original(loader: Any) -> Optional[Place]:
    # accelerate and Lightning build a loader of their own around the dataset of one that is then never iterated; what
    # is to be changed is that one.
    dataset = own(loader, "dataset")
    for entry in reversed(_entries[:-1]):
        other = entry.reference()
        unused = other is not None and not entry.iterated and entry.place
        if unused and dataset is not None and own(other, "dataset") is dataset:
            return entry.place
    return None


PATCHES = {
    "torch": (wrap_loader,),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
