"""How many samples a batch holds, learned from the first batches of a loader and then read in one step.

Only built-in containers, plain tensors and what objects keep in their own dictionaries are read, through the methods of
the built-in types themselves: a property or `__getitem__` of a batch type may do anything when it is called.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, List, Optional, Tuple

from .quiet import attributes, inherits, own

UNKNOWN = -1
_DEPTH = 3
_CANDIDATES = 8
_COUNTS = ("_num_graphs", "num_graphs", "batch_size")
"""Attributes in which batch types keep how many samples they hold; the first two are PyTorch Geometric's."""

Measure = Callable[[Any], int]


class _Nothing:
    """A block like any other, for a torch without dispatch to the program's functions."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *failure: Any) -> None:
        return None


undispatched: Callable[[], Any] = _Nothing
"""A block in which no attribute of a tensor goes through a `__torch_function__` or mode of the program's."""
_modes: Callable[[], int] = int


def use(torch: Any) -> None:
    """Takes what keeps calls from the program's modes from this torch."""
    global undispatched, _modes
    undispatched = getattr(torch._C, "DisableTorchFunction", _Nothing)
    _modes = getattr(torch._C, "_len_torch_function_stack", int)


def unknown(batch: Any) -> int:
    """The measure of a batch whose size is not known."""
    return UNKNOWN


def learn(batch: Any, batch_size: Optional[int], tensor: Any, depth: int = _DEPTH - 1) -> Measure:
    """A measure for batches like this one; `unknown` where nothing in it agrees with the loader's batch size.

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
        return _member_dimension(batch, tensors[0][0], tensor) if certain else unknown
    for key, member in tensors:
        if member.shape[0] == batch_size:
            return _member_dimension(batch, key, tensor)
    for key, member in members:
        if type(member) in (list, tuple) and len(member) == batch_size:
            return _member_length(batch, key)
    if type(batch) in (list, tuple) and len(batch) == batch_size:
        return _length(type(batch))
    for name in _COUNTS:
        count = own(batch, name)
        if type(count) is int and count == batch_size:
            return _attribute(type(batch), name)
    for key, member in members if depth else ():
        inner = learn(member, batch_size, tensor, depth - 1) if type(member) is not tensor else unknown
        if inner is not unknown:
            return _inside(batch, key, inner)
    return unknown


def describe(batch: Any, tensor: Any) -> Tuple[Optional[int], Optional[str]]:
    """The bytes of all tensors in a batch and the shapes of the first few, such as "float32[32,3,224,224]"."""
    found: List[Any] = []
    _gather(batch, tensor, found, _DEPTH)
    if not found:
        return None, None
    size = sum(member.numel() * member.element_size() for member in found)
    shapes = [f"{str(m.dtype).replace('torch.', '')}[{','.join(map(str, m.shape))}]" for m in found[:4]]
    return size, ", ".join(shapes) + (", ..." if len(found) > len(shapes) else "")


def item_shapes(batch: Any, tensor: Any) -> Optional[Tuple[Tuple[int, ...], ...]]:
    """The shapes of the first few tensors without their first dimension, which is shorter in the last batch."""
    found: List[Any] = []
    _gather(batch, tensor, found, _DEPTH)
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


def _rows(tensor: Any) -> int:
    if _modes():  # a device set by torch.set_default_device is one, too
        with undispatched():
            shape = tensor.shape
    else:
        shape = tensor.shape
    return shape[0] if shape else UNKNOWN


def _first_dimension(kind: type) -> Measure:
    return lambda batch: _rows(batch) if type(batch) is kind else UNKNOWN


def _member_dimension(batch: Any, key: Any, tensor: Any) -> Measure:
    kind = type(batch)
    if kind is list or kind is tuple:

        def measure(batch: Any) -> int:
            member = batch[key] if type(batch) is kind and len(batch) > key else None
            return _rows(member) if type(member) is tensor else UNKNOWN

        return measure

    def measure_any(batch: Any) -> int:
        member = _member(batch, key) if type(batch) is kind else None
        return _rows(member) if type(member) is tensor else UNKNOWN

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
        return len(member) if type(member) in (list, tuple) else UNKNOWN

    return measure


def _length(kind: Any) -> Measure:
    return lambda batch: len(batch) if type(batch) is kind else UNKNOWN


def _attribute(kind: type, name: str) -> Measure:
    def measure(batch: Any) -> int:
        count = own(batch, name) if type(batch) is kind else None
        return count if type(count) is int else UNKNOWN

    return measure


def _inside(batch: Any, key: Any, inner: Measure) -> Measure:
    kind = type(batch)
    return lambda batch: inner(_member(batch, key)) if type(batch) is kind else UNKNOWN
