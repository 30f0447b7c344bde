"""The live settings of a DataLoader, as docs/protocol.md lists them, read without running code of the program."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional

from .quiet import attributes, belongs_to, own, type_name

_PLAIN = (list, tuple, range, dict, str, bytes)
_MAP, _ITERABLE = 0, 1  # torch.utils.data.dataloader._DatasetKind
_START_METHODS = ("fork", "spawn", "forkserver")


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
