"""How the hook meets the program's objects and exceptions without running a line of the program.

A property, `__len__`, `__eq__` or `__class__` of a user's class may draw random numbers, read a file or raise. So
attributes are read from the object's own dictionary, types are compared by identity, and names come from C slots.
"""

from __future__ import annotations

import sys
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar

from . import imports
from .frames import Place, calling_place
from .hidden import around
from .imports import from_a_signal_handler
from .ring import pulse

Result = TypeVar("Result")

_NOTED = 20

_mro: Callable[[type], Tuple[type, ...]] = type.__dict__["__mro__"].__get__
_namespace: Callable[[type], Dict[str, Any]] = type.__dict__["__dict__"].__get__
_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_arguments: Callable[[BaseException], Tuple[Any, ...]] = BaseException.__dict__["args"].__get__


def attributes(thing: Any) -> Dict[str, Any]:
    """The dictionary in which an object keeps its attributes; empty for one that has none."""
    for kind in _mro(type(thing)):
        descriptor = _namespace(kind).get("__dict__")
        if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):
            found = descriptor.__get__(thing)  # type: ignore[union-attr]
            return found if type(found) is dict else {}
    return {}


def own(thing: Any, name: str) -> Any:
    """An attribute that the object itself holds, past every property and `__getattr__`; else None."""
    return attributes(thing).get(name)


def type_name(thing: Any) -> str:
    """The name of an object's type."""
    return _name(type(thing))


def inherits(kind: type, parent: type) -> bool:
    """`issubclass` without `__subclasscheck__`."""
    return parent in _mro(kind) if type(parent) is type else any(base is parent for base in _mro(kind))


def belongs_to(kind: type, package: str) -> bool:
    """Whether a class is the one that a package has under its name, and no class of the program's."""
    module = _namespace(kind).get("__module__")
    if type(module) is not str or module.partition(".")[0] != package:
        return False
    holder = sys.modules.get(module)
    return holder is not None and attributes(holder).get(_name(kind)) is kind


def defines(kind: type, method: str) -> bool:
    """Whether a class or one of its bases defines a method."""
    return any(method in _namespace(base) for base in _mro(kind))


def quietly(action: Callable[..., Result], *arguments: object) -> Optional[Result]:
    """What the action returns; None where it raises, which becomes a fact and is not the program's problem.

    Except for what a signal handler raised meanwhile: that is for the program.
    """
    try:
        return action(*arguments)
    except Exception as error:
        if from_a_signal_handler(error):
            raise
        texts = [text for text in _arguments(error) if type(text) is str]
        note = ": ".join([getattr(action, "__qualname__", ""), type_name(error), *texts])[:200]
        if note not in imports.failed and len(imports.failed) < _NOTED:
            imports.failed.append(note)
        return None


def noting(original: Callable[..., None], register: Callable[[Any, Optional[Place]], Any]) -> Callable[..., None]:
    """An `__init__` after which the object is registered; the first one of all makes this process a trainer."""

    def built(token: None, thing: Any, result: None, raised: bool) -> None:
        if not raised:
            pulse.begin()
            quietly(register, thing, calling_place())

    return around(original, _nothing, built, "self")


def _nothing(value: Any) -> None:
    """Before a call of which only the end matters."""
