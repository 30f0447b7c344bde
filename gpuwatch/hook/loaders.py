"""The DataLoaders of this process: numbers, settings, the lines that built them, and what their batches hold.

Settings are those that docs/protocol.md lists. How many samples a batch holds is learned from the first batches of a
loader and then read in one step. Only built-in containers, plain tensors and what objects keep in their own
dictionaries are read, through the methods of the built-in types themselves: a property or `__getitem__` of a batch type
may do anything when it is called.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .quiet import Place, attributes, belongs_to, inherits, noting, own, quietly, type_name
from .ring import pulse

UNKNOWN_SIZE = -1
_LOADERS_KEPT = 32
_SHAPES_KEPT = 64
_LOADER_KEY = "gpuwatch_loader"  # in what multiprocessing hands on to the processes that it starts
_BATCH_DEPTH = 3
_CANDIDATES = 8
_COUNT_NAMES = ("_num_graphs", "num_graphs", "batch_size")
"""Attributes in which batch types keep how many samples they hold; the first two are PyTorch Geometric's."""
_PLAIN = (list, tuple, range, dict, str, bytes)
_MAP, _ITERABLE = 0, 1  # torch.utils.data.dataloader._DatasetKind
_START_METHODS = ("fork", "spawn", "forkserver")

Measure = Callable[[Any], int]


def read_settings(loader: Any) -> Dict[str, Any]:
    """The settings of a DataLoader; what its version of torch does not have is None."""
    held = attributes(loader)
    return {
        "dataset": type_name(held.get("dataset")),
        "iterable": _is_iterable(held.get("_dataset_kind")),
        "num_workers": _integer(held.get("num_workers")),
        "batch_size": batch_size(loader),
        "pin_memory": _flag(held.get("pin_memory")),
        "persistent_workers": _flag(held.get("persistent_workers")),
        "prefetch_factor": _integer(held.get("prefetch_factor")),
        "in_order": _flag(held.get("in_order")),
        "drop_last": _drops_last(held),
        "start_method": _start_method(held),
    }


def read_iterator_settings(iterator: Any) -> Dict[str, Any]:
    """What an iterator still knows of a loader that was never seen."""
    held = attributes(iterator)
    return {
        "dataset": type_name(held.get("_dataset")),
        "iterable": _is_iterable(held.get("_dataset_kind")),
        "num_workers": _integer(held.get("_num_workers")),
        "batch_size": _integer(own(held.get("_index_sampler"), "batch_size")),
        "pin_memory": _flag(held.get("_pin_memory")),
        "persistent_workers": _flag(held.get("_persistent_workers")),
        "prefetch_factor": _integer(held.get("_prefetch_factor")),
        "in_order": _flag(held.get("_in_order")),
        "drop_last": _flag(held.get("_drop_last")),
    }


def batch_size(loader: Any) -> Optional[int]:
    """The samples in a full batch; accelerate leaves the number to the sampler."""
    held = attributes(loader)
    size = _integer(held.get("batch_size"))
    return size if size is not None else _integer(own(held.get("batch_sampler"), "batch_size"))


def index_sampler(loader: Any) -> Any:
    """What a DataLoader draws its indices from, in batches or one by one."""
    held = attributes(loader)
    sampler = held.get("batch_sampler")
    return sampler if sampler is not None else held.get("sampler")


def batches_per_epoch(loader: Any) -> Optional[int]:
    """The length of a map-style loader, where all that it depends on is torch's or Python's own.

    A length that the program defines is its code: a sampler may count by drawing, and use up random numbers. It becomes
    known at the end of the first pass.
    """
    if _is_iterable(own(loader, "_dataset_kind")) is not False:
        return None
    sampler = index_sampler(loader)
    count = _length(own(sampler, "sampler")) if _is_batch_sampler(sampler) else _length(sampler)
    if count is None or not _is_batch_sampler(sampler):
        return count
    size, drops = _integer(own(sampler, "batch_size")), _flag(own(sampler, "drop_last"))
    if not size or drops is None:
        return None
    return count // size if drops else (count + size - 1) // size


def full_batches(loader: Any, iterator: Any) -> Optional[int]:
    """The number of batches in a pass, if torch alone makes them: then all but the last hold `batch_size` samples.

    A collate function of the user's may drop samples, a restored iterator begins in the middle.
    """
    held = attributes(loader)
    collate = held.get("collate_fn")
    if not _is_batch_sampler(held.get("batch_sampler")) or not _is_torchs(collate, "torch.utils.data._utils.collate"):
        return None
    home: Any = sys.modules["torch.utils.data.dataloader"]
    if type(iterator) not in (home._SingleProcessDataLoaderIter, home._MultiProcessingDataLoaderIter):
        return None
    return batches_per_epoch(loader)


def _length(source: Any) -> Optional[int]:
    """The number of items of a sampler or dataset whose type is known to run no code of the program in `len`."""
    kind = type(source)
    if kind in _PLAIN:
        return len(source)
    if not belongs_to(kind, "torch"):
        return None
    held, name = attributes(source), type_name(source)
    if name == "SequentialSampler":
        return _length(held.get("data_source"))
    if name == "RandomSampler":
        asked = held.get("_num_samples")
        return _integer(asked) if asked is not None else _length(held.get("data_source"))
    if name == "Subset":
        return _length(held.get("indices"))
    if name == "TensorDataset":
        tensors = held.get("tensors")
        return _rows(tensors[0]) if type(tensors) is tuple and tensors else None
    if name == "DistributedSampler":
        return _integer(held.get("num_samples"))
    return None


def _rows(tensor: Any) -> Optional[int]:
    torch: Any = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        return None
    with torch._C.DisableTorchFunction():
        return int(tensor.shape[0]) if tensor.dim() else None


def _is_batch_sampler(sampler: Any) -> bool:
    return type_name(sampler) == "BatchSampler" and belongs_to(type(sampler), "torch")


def _is_torchs(function: Any, module: str) -> bool:
    home = sys.modules.get(module)
    return home is not None and function is not None and any(function is each for each in vars(home).values())


def _integer(value: Any) -> Optional[int]:
    return value if type(value) is int else None


def _is_iterable(kind: Any) -> Optional[bool]:
    return {_MAP: False, _ITERABLE: True}.get(kind) if type(kind) is int else None


def _flag(value: Any) -> Optional[bool]:
    return value if type(value) is bool else None


def _drops_last(held: Dict[str, Any]) -> Optional[bool]:
    sampler = held.get("batch_sampler")
    return _flag(own(sampler, "drop_last")) if sampler is not None else _flag(held.get("drop_last"))


def _start_method(held: Dict[str, Any]) -> Optional[str]:
    if not _integer(held.get("num_workers")):
        return None
    home = sys.modules.get("multiprocessing.context")
    # A private attribute of the class that defines the property: torch's, or torchdata's loader.
    context = next((held[name] for name in held if name.endswith("__multiprocessing_context")), None)
    if context is None:
        # Its method get_start_method would fix the method, which the program may want to set later.
        context = own(own(home, "_default_context"), "_actual_context")
    if context is None or not belongs_to(type(context), "multiprocessing"):
        return None
    name = vars(type(context)).get("_name")
    return name if name in _START_METHODS else None


undispatched: Callable[[], Any] = nullcontext
"""A block in which no attribute of a tensor goes through a `__torch_function__` or mode of the program's."""
_modes: Callable[[], int] = int


def prepare(torch: Any) -> None:
    """Takes what keeps calls from the program's modes from this torch."""
    global undispatched, _modes
    undispatched = getattr(torch._C, "DisableTorchFunction", nullcontext)
    _modes = getattr(torch._C, "_len_torch_function_stack", int)


def unknown_size(batch: Any) -> int:
    """The measure of a batch whose size is not known."""
    return UNKNOWN_SIZE


def learn_measure(batch: Any, batch_size: Optional[int], tensor: Any, depth: int = _BATCH_DEPTH - 1) -> Measure:
    """A measure for batches like this one; `unknown_size` where nothing in it agrees with the loader's batch size.

    What agrees is looked for in the batch, then in its members, down to `depth` levels. Without a batch size (a dataset
    that makes its own batches) two tensors must share their first dimension and one of them be a vector, as labels are;
    a first dimension alone may as well be the colours of one image.
    """
    if type(batch) is tensor and batch.dim() > 0 and batch.shape[0] == batch_size:
        return _first_dimension(tensor)
    members = _members(batch)
    tensors = [(key, member) for key, member in members if type(member) is tensor and member.dim() > 0]
    if batch_size is None:
        sizes = {member.shape[0] for _, member in tensors}
        certain = len(tensors) > 1 and len(sizes) == 1 and any(member.dim() == 1 for _, member in tensors)
        return _member_dimension(batch, tensors[0][0], tensor) if certain else unknown_size
    for key, member in tensors:
        if member.shape[0] == batch_size:
            return _member_dimension(batch, key, tensor)
    for key, member in members:
        if type(member) in (list, tuple) and len(member) == batch_size:
            return _member_length(batch, key)
    if type(batch) in (list, tuple) and len(batch) == batch_size:
        return _batch_length(type(batch))
    for name in _COUNT_NAMES:
        count = own(batch, name)
        if type(count) is int and count == batch_size:
            return _attribute(type(batch), name)
    for key, member in members if depth else ():
        inner = learn_measure(member, batch_size, tensor, depth - 1) if type(member) is not tensor else unknown_size
        if inner is not unknown_size:
            return _inside(batch, key, inner)
    return unknown_size


def describe_batch(batch: Any, tensor: Any) -> Tuple[Optional[int], Optional[str]]:
    """The bytes of all tensors in a batch and the shapes of the first few, such as "float32[32,3,224,224]"."""
    found: List[Any] = []
    _gather(batch, tensor, found, _BATCH_DEPTH)
    if not found:
        return None, None
    size = sum(member.numel() * member.element_size() for member in found)
    shapes = [f"{str(m.dtype).replace('torch.', '')}[{','.join(map(str, m.shape))}]" for m in found[:4]]
    return size, ", ".join(shapes) + (", ..." if len(found) > len(shapes) else "")


def item_shapes(batch: Any, tensor: Any) -> Optional[Tuple[Tuple[int, ...], ...]]:
    """The shapes of the first few tensors without their first dimension, which is shorter in the last batch."""
    found: List[Any] = []
    _gather(batch, tensor, found, _BATCH_DEPTH)
    return tuple(tuple(member.shape[1:]) for member in found[:4]) or None


def _members(batch: Any) -> List[Tuple[Any, Any]]:
    kind = type(batch)
    if inherits(kind, list):
        return list(enumerate(list.__getitem__(batch, slice(_CANDIDATES))))
    if inherits(kind, tuple):
        return list(enumerate(tuple.__getitem__(batch, slice(_CANDIDATES))))
    contents = _dictionary(batch)
    if contents is None:
        return []
    # Only names and numbers can be used as keys again without the `__hash__` and `__eq__` of a class of the program's.
    return [(key, value) for key, value in dict.items(contents) if type(key) in (str, int)][:_CANDIDATES]


def _dictionary(batch: Any) -> Optional[Any]:
    kind = type(batch)
    if inherits(kind, dict):
        return batch
    found = attributes(batch)
    wrapper = getattr(sys.modules.get("collections"), "UserDict", None)
    if wrapper is not None and inherits(kind, wrapper):  # transformers' BatchEncoding
        data = found.get("data")
        return data if type(data) is dict else None
    return found or None


def _gather(batch: Any, tensor: Any, found: List[Any], depth: int) -> None:
    if type(batch) is tensor:
        found.append(batch)
    elif depth:
        for _, member in _members(batch):
            _gather(member, tensor, found, depth - 1)


def _first_size(tensor: Any) -> int:
    if _modes():  # a device set by torch.set_default_device is one, too
        with undispatched():
            shape = tensor.shape
    else:
        shape = tensor.shape
    return shape[0] if shape else UNKNOWN_SIZE


def _first_dimension(kind: type) -> Measure:
    return lambda batch: _first_size(batch) if type(batch) is kind else UNKNOWN_SIZE


def _member_dimension(batch: Any, key: Any, tensor: Any) -> Measure:
    kind = type(batch)
    if kind is list or kind is tuple:

        def measure(batch: Any) -> int:
            member = batch[key] if type(batch) is kind and len(batch) > key else None
            return _first_size(member) if type(member) is tensor else UNKNOWN_SIZE

        return measure

    def measure_any(batch: Any) -> int:
        member = _member(batch, key) if type(batch) is kind else None
        return _first_size(member) if type(member) is tensor else UNKNOWN_SIZE

    return measure_any


def _member(batch: Any, key: Any) -> Any:
    kind = type(batch)
    if inherits(kind, list):
        return list.__getitem__(batch, key) if list.__len__(batch) > key else None
    if inherits(kind, tuple):
        return tuple.__getitem__(batch, key) if tuple.__len__(batch) > key else None
    contents = _dictionary(batch)
    if contents is None or any(type(other) not in (str, int) for other in dict.keys(contents)):
        return None
    return dict.get(contents, key)


def _member_length(batch: Any, key: Any) -> Measure:
    kind = type(batch)

    def measure(batch: Any) -> int:
        member: Any = _member(batch, key) if type(batch) is kind else None
        return len(member) if type(member) in (list, tuple) else UNKNOWN_SIZE

    return measure


def _batch_length(kind: Any) -> Measure:
    return lambda batch: len(batch) if type(batch) is kind else UNKNOWN_SIZE


def _attribute(kind: type, name: str) -> Measure:
    def measure(batch: Any) -> int:
        count = own(batch, name) if type(batch) is kind else None
        return count if type(count) is int else UNKNOWN_SIZE

    return measure


def _inside(batch: Any, key: Any, inner: Measure) -> Measure:
    kind = type(batch)
    return lambda batch: inner(_member(batch, key)) if type(batch) is kind else UNKNOWN_SIZE


class LoaderEntry:
    """One DataLoader that was built, or found in use."""

    __slots__ = (
        "inline",
        "inspected",
        "iterated",
        "learned",
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
        self.measure: Optional[Measure] = None
        self.reference: Callable[[], Any] = lambda: None
        self.settings: Dict[str, Any] = {}
        self.inspected = 0
        self.shapes: Set[Any] = set()

    def note_shapes(self, shapes: Any) -> None:
        """Counts a batch whose items have these shapes."""
        if shapes is not None:
            self.inspected += 1
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
    for entry in [entry for entry in _entries if entry.iterated][-_LOADERS_KEPT:]:
        quietly(entry.refresh)
        place = entry.place
        shapes = {"batches_inspected": entry.inspected, "batch_shapes": len(entry.shapes)} if entry.inspected else {}
        found.append({"loader": entry.number, **(place._asdict() if place else {}), **entry.settings, **shapes})
    return found


def new_entry(place: Optional[Place]) -> LoaderEntry:
    """An entry with a number of its own, for a DataLoader or for `gpuwatch.loader`."""
    global _last_number
    _last_number = min(_last_number + 1, 0xFFFF)
    entry = LoaderEntry(_last_number, place)
    _entries.append(entry)
    if len(_entries) > 4 * _LOADERS_KEPT:
        alive = [old for old in _entries[:-1] if old.reference() is not None]
        _entries[:] = [*alive[-3 * _LOADERS_KEPT :], entry]
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


def start_workers_of(loader: int) -> None:
    """The processes started from here on are workers of this loader; of none that is known where it is 0."""
    if loader:
        _handed_on()[_LOADER_KEY] = loader
    else:
        _handed_on().pop(_LOADER_KEY, None)


def take_loader() -> Optional[int]:
    """The loader whose worker this process was started as, once: what this one starts in turn is for no loader."""
    loader: Optional[int] = _handed_on().pop(_LOADER_KEY, None)
    return loader


def _handed_on() -> Dict[str, Any]:
    """What multiprocessing hands from this process on to those it starts, a dictionary that is pickled with them."""
    config: Dict[str, Any] = sys.modules["multiprocessing.process"]._current_process._config
    return config


PATCHES = {
    "torch": (wrap_loader,),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
