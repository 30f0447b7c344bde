"""The columns of an export's tables, read from the classes of the samples: a new field is a new column."""

from __future__ import annotations

import dataclasses
import math
import shlex
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from gpuwatch.text.escape import printable

Kind = Literal["float", "int", "str", "bool", "time"]
MOMENTS = ("time_ns", "start_ns", "end_ns", "since_ns")
"""Fields that are moments on CLOCK_MONOTONIC. Other names that end so are durations and stay as they are."""

_KINDS: dict[type, Kind] = {float: "float", int: "int", str: "str", bool: "bool"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name with the unit, what it holds, and how it is read from a sample."""

    name: str
    kind: Kind
    read: Callable[[Any], Any]


def columns_of(cls: type, *, prefix: str = "", leave_out: Sequence[str] = ()) -> list[Column]:
    """A column for each field that is a number, a string, a truth value, a moment, or a list of strings."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind = _kind(field.name, hints[field.name])
        if kind is None or field.name in leave_out:
            continue
        name = field.name.removesuffix("_ns") + "_seconds" if kind == "time" else field.name
        found.append(Column(prefix + name, kind, _reader(field.name, hints[field.name])))
    return found


def cell(value: Any) -> Any:
    """A value as a table has it: None where it is unknown, strings without what would steer a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _kind(name: str, hint: Any) -> Kind | None:
    if name in MOMENTS:
        return "time"
    if _is_words(hint):
        return "str"
    members = _members(hint)
    if float in members and int in members:
        return "float"
    return _KINDS.get(members[0]) if len(members) == 1 and isinstance(members[0], type) else None


def _members(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [each for part in typing.get_args(hint) if part is not type(None) for each in _members(part)]
    if typing.get_origin(hint) is Literal:
        return [str]
    return [hint]


def _is_words(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint) == (str, Ellipsis)


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    if not _is_words(hint):
        return lambda sample: getattr(sample, name)
    if name == "command":
        return lambda sample: shlex.join(sample.command)
    return lambda sample: ";".join(getattr(sample, name))
