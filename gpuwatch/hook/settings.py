"""The live settings of a DataLoader, as docs/protocol.md lists them."""

from __future__ import annotations

import sys
from typing import Any, Dict, Optional


def read_settings(loader: Any) -> Dict[str, Any]:
    """The settings of a DataLoader; what its version of torch does not have is None."""
    return {
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        "num_workers": getattr(loader, "num_workers", None),
        "batch_size": batch_size(loader),
        "pin_memory": _flag(loader, "pin_memory"),
        "persistent_workers": _flag(loader, "persistent_workers"),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "in_order": _flag(loader, "in_order"),
        "drop_last": _drops_last(loader),
        "start_method": _start_method(loader),
    }


def read_iterator_settings(iterator: Any) -> Dict[str, Any]:
    """What an iterator still knows of a loader that was never seen."""
    return {
        "dataset": type(getattr(iterator, "_dataset", None)).__name__,
        "num_workers": getattr(iterator, "_num_workers", None),
        "batch_size": getattr(getattr(iterator, "_index_sampler", None), "batch_size", None),
        "pin_memory": _flag(iterator, "_pin_memory"),
        "persistent_workers": _flag(iterator, "_persistent_workers"),
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
        "in_order": _flag(iterator, "_in_order"),
        "drop_last": _flag(iterator, "_drop_last"),
    }


def batch_size(loader: Any) -> Optional[int]:
    """The samples in a full batch; accelerate leaves the number to the sampler."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def batches_per_epoch(loader: Any) -> Optional[int]:
    """The length of a map-style loader.

    Of an iterable dataset len() is a promise that DataLoader remembers and warns about: not ours to ask for.
    """
    if getattr(loader, "_dataset_kind", 1) != 0:
        return None
    try:
        return len(loader._index_sampler)
    except Exception:  # noqa: BLE001 - a sampler of the user's own may raise anything
        return None


def full_batches(loader: Any, iterator: Any) -> Optional[int]:
    """The number of batches in a pass, if torch alone makes them: then all but the last hold `batch_size` samples.

    A collate function of the user's may drop samples, a restored iterator begins in the middle.
    """
    sampler = getattr(loader, "batch_sampler", None)
    plain = type(sampler).__module__ == "torch.utils.data.sampler" and type(sampler).__name__ == "BatchSampler"
    collate = getattr(loader, "collate_fn", None)
    if not plain or getattr(collate, "__module__", "") != "torch.utils.data._utils.collate":
        return None
    if type(iterator).__module__ != "torch.utils.data.dataloader":
        return None
    return batches_per_epoch(loader)


def _flag(holder: Any, name: str) -> Optional[bool]:
    value = getattr(holder, name, None)
    return value if isinstance(value, bool) else None


def _drops_last(loader: Any) -> Optional[bool]:
    sampler = getattr(loader, "batch_sampler", None)
    return _flag(sampler, "drop_last") if sampler is not None else _flag(loader, "drop_last")


def _start_method(loader: Any) -> Optional[str]:
    if not getattr(loader, "num_workers", 0):
        return None
    context = getattr(loader, "multiprocessing_context", None)
    if context is None:
        context = sys.modules.get("multiprocessing")
    if context is None:
        return None
    # allow_none: asking without it would fix the start method, which the program may want to set later.
    name = context.get_start_method(allow_none=True)
    return name if isinstance(name, str) else None
