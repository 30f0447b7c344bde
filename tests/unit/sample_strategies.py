"""Any sample of any kind, for hypothesis: made from the fields' types, with the strings that real machines have."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Union, get_args

from hypothesis import strategies as st

from gpuwatch.samples import Sample

KINDS: tuple[type, ...] = get_args(Sample)

_NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
_FLOATS = st.floats(allow_nan=False) | st.integers(0, 100).map(float) | st.integers(0, 10**6).map(lambda n: n / 1000)
_LONE_BYTES = st.binary(max_size=4).map(lambda data: data.decode("utf-8", "surrogateescape"))
_TEXTS = st.sampled_from(("", "GPU-1", "4711.12", "train", "wait")) | st.text(max_size=6) | _LONE_BYTES


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    origin, arguments = typing.get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([st.none() if each is type(None) else strategy(each) for each in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(strategy(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(_TEXTS, strategy(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return samples(typing.cast(type, hint))
    return {int: _NUMBERS, float: _FLOATS, str: _TEXTS, bool: st.booleans()}[hint]


def samples(cls: type) -> st.SearchStrategy[Any]:
    """Instances of a dataclass."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: strategy(hints[field.name]) for field in dataclasses.fields(cls)})


def same(one: Any, other: Any, exact: frozenset[str], name: str = "") -> bool:
    """Equal, but for floats with too many decimals outside of the fields that are exact."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (name not in exact and math.isclose(one, other, rel_tol=1e-7, abs_tol=2e-38))
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, each), getattr(other, each), exact, each) for each in names)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b, exact, name) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key], exact, name) for key in one)
    return type(one) is type(other) and bool(one == other)


def any_of(cls: type) -> Any:
    """One instance whose every field has a value of its own, as far as its type allows."""
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: _any(hints[field.name], field.name) for field in dataclasses.fields(cls)})


def _any(hint: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _any(arguments[0], name)
    if origin is typing.Literal:
        return arguments[-1]
    if origin is tuple:
        return (_any(arguments[0], f"{name} 1"), _any(arguments[0], f"{name} 2"))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {f"{name} key": _any(arguments[1], name)}
    return {int: len(name), float: len(name) / 3, str: name, bool: True}[hint]
