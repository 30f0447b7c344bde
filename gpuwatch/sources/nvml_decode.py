"""From the child's JSON lines to samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuLost,
    GpuProcess,
    GpuSample,
    GpuStatus,
    NvmlState,
    Sample,
    XidEvent,
)

_CLASSES: Mapping[str, Any] = {
    cls.__name__: cls for cls in (GpuFacts, GpuSample, GpuStatus, GpuHealth, GpuLost, XidEvent, NvmlState)
}
_TYPES = {
    cls.__name__: {field.name: str(field.type) for field in fields(cls)} for cls in (*_CLASSES.values(), GpuProcess)
}
MOST_GPUS = 1024
"""With MIG instances; a node has up to 16 GPUs of 7."""
_MOST_ENTRIES = 256
_LONGEST_TEXT = 4096
_LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Message:
    """One line of the child's.

    `next_seconds` is within how long it promises the next line. `found` is the index and UUID of a GPU whose
    facts come next, `enumerated` the UUIDs of all devices. `restart_in` means that it ends now and wants
    a successor after so many seconds.
    """

    next_seconds: float
    samples: tuple[Sample, ...] = ()
    found: tuple[int, str] | None = None
    enumerated: tuple[str, ...] | None = None
    lost_index: tuple[int, str] | None = None
    restart_in: float | None = None


def decode(line: bytes) -> Message | None:
    """The message in one line, or None for a line that is broken off, not ours or holds what no field can hold.

    The driver's library runs in the child and can write anything in its place.
    """
    try:
        content = json.loads(line, parse_constant=_refuse)
        message = Message(
            next_seconds=_seconds(content["next"]),
            samples=tuple(_sample(kind, found) for kind, found in content["samples"]),
            found=_device(content.get("found")),
            enumerated=_checked("tuple[str, ...]", content["enumerated"]) if "enumerated" in content else None,
            lost_index=_device(content.get("lost_index")),
            restart_in=None if content.get("restart_in") is None else _seconds(content["restart_in"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return message


def _sample(kind: str, found: dict[str, Any]) -> Sample:
    types = _TYPES[kind]
    known = {name: _checked(types[name], value) for name, value in found.items() if name in types}
    sample: Sample = _CLASSES[kind](**known)
    return sample


def _checked(declared: str, value: Any) -> Any:
    """A value as its field's declared type has it.

    Raises:
        ValueError: it has another type, or a size that no GPU's value has.
    """
    kind = declared.removesuffix(" | None")
    if value is None:
        if kind == declared:
            raise ValueError(declared)
        return None
    return _CHECKS[kind](value)


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 64:
        raise ValueError
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e30:
        raise ValueError
    return value  # type: ignore[no-any-return]


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return value[:_LONGEST_TEXT]


def _by_name(check: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {_str(name): check(each) for name, each in islice(value.items(), _MOST_ENTRIES)}


def _pairs(value: Any) -> tuple[tuple[int, float], ...]:
    return tuple((_int(time_ns), _float(each)) for time_ns, each in value)


def _processes(value: Any) -> tuple[GpuProcess, ...]:
    types = _TYPES["GpuProcess"]
    return tuple(GpuProcess(**{name: _checked(types[name], each) for name, each in one.items()}) for one in value)


def _seconds(value: Any) -> float:
    if not 0.0 <= _float(value) <= _LONGEST_SECONDS:
        raise ValueError
    return float(value)


def _device(value: Any) -> tuple[int, str] | None:
    if not value:
        return None
    index, name = value
    return _int(index), _str(name)


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and the infinities are no JSON


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "Reasons": _by_name(_str),
    "Mapping[str, float]": _by_name(_float),
    "tuple[int, int]": lambda value: tuple(_int(each) for each in islice(value, 2)),
    "tuple[str, ...]": lambda value: tuple(_str(each) for each in islice(value, MOST_GPUS)),
    "tuple[tuple[int, float], ...]": _pairs,
    "tuple[GpuProcess, ...]": _processes,
}
