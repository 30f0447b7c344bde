"""How many samples a batch holds, learned from the first batches of a loader and then read in one step.

Only built-in containers and plain tensors are looked into: a user's own batch type may do anything when it is touched.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

from .frames import raised_by_a_signal

UNKNOWN = -1
_DEPTH = 3
_CANDIDATES = 8

Measure = Callable[[Any], int]


def unknown(batch: Any) -> int:
    """The measure of a batch whose size cannot be told."""
    return UNKNOWN


def learn(batch: Any, batch_size: Optional[int], tensor: Any) -> Measure:
    """A measure for batches like this one; `unknown` where nothing in it agrees with the loader's batch size.

    Without a batch size (a dataset that makes its own batches) two tensors must share their first dimension and
    one of them be a vector, as labels are; a first dimension alone may as well be the colours of one image.
    """
    if type(batch) is tensor and batch.dim() > 0 and batch.shape[0] == batch_size:
        return _first_dimension(tensor)
    members = _members(batch)
    tensors = [(key, member) for key, member in members if type(member) is tensor and member.dim() > 0]
    if batch_size is None:
        sizes = {member.shape[0] for _, member in tensors}
        told = len(tensors) > 1 and len(sizes) == 1 and any(member.dim() == 1 for _, member in tensors)
        return _member_dimension(batch, tensors[0][0]) if told else unknown
    for key, member in tensors:
        if member.shape[0] == batch_size:
            return _member_dimension(batch, key)
    for key, member in members:
        if type(member) in (list, tuple) and len(member) == batch_size:
            return _member_length(batch, key)
    if type(batch) in (list, tuple) and len(batch) == batch_size:
        return _length(type(batch))
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
    if isinstance(batch, (list, tuple)) and type(batch).__getitem__ in (list.__getitem__, tuple.__getitem__):
        return list(enumerate(batch[:_CANDIDATES]))
    contents = _dictionary(batch)
    return list(contents.items())[:_CANDIDATES] if contents is not None else []


def _dictionary(batch: Any) -> Optional[Any]:
    if isinstance(batch, dict):
        return batch if type(batch).__getitem__ is dict.__getitem__ else None
    if any(base.__name__ == "UserDict" for base in type(batch).__mro__):  # transformers' BatchEncoding
        return getattr(batch, "data", None)
    return None


def _gather(batch: Any, tensor: Any, found: List[Any], depth: int) -> None:
    if type(batch) is tensor:
        found.append(batch)
    elif depth:
        for _, member in _members(batch):
            _gather(member, tensor, found, depth - 1)


def _guarded(kind: type, read: Callable[[Any], int]) -> Measure:
    def measure(batch: Any) -> int:
        if type(batch) is not kind:
            return UNKNOWN
        try:
            return read(batch)
        except Exception as error:  # it touches the user's object inside the user's loop
            if raised_by_a_signal(error):
                raise
            return UNKNOWN

    return measure


def _first_dimension(kind: type) -> Measure:
    return _guarded(kind, lambda batch: int(batch.shape[0]))


def _member_dimension(batch: Any, key: Any) -> Measure:
    kind = type(batch)
    by_attribute = not isinstance(batch, (list, tuple, dict))

    def measure(batch: Any) -> int:
        if type(batch) is not kind:
            return UNKNOWN
        try:
            return (batch.data if by_attribute else batch)[key].shape[0]  # type: ignore[no-any-return]
        except Exception as error:  # it touches the user's object inside the user's loop
            if raised_by_a_signal(error):
                raise
            return UNKNOWN

    return measure


def _member_length(batch: Any, key: Any) -> Measure:
    return _guarded(type(batch), lambda batch: len(batch[key]))


def _length(kind: type) -> Measure:
    return _guarded(kind, len)
