"""How the hook meets the program's objects, exceptions and stack without running a line of the program.

A property, `__len__`, `__eq__` or `__class__` of a user's class may draw random numbers, read a file or raise. So
attributes are read from the object's own dictionary, types are compared by identity, and names come from C slots. The
user's line is that of the first frame outside site-packages, the standard library and gpuwatch.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, TypeVar

from . import imports
from .hidden import around
from .imports import from_a_signal_handler
from .ring import pulse

# A bundle (PyInstaller, byte code without its source) keeps the paths of another folder in its code objects.
_FILES = (os.path.abspath(__file__), sys._getframe().f_code.co_filename)
_GPUWATCH = tuple(os.path.dirname(os.path.dirname(file)) + os.sep for file in _FILES if file.count(os.sep) > 1)
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NOT_THE_USERS = (*_GPUWATCH, _STANDARD_LIBRARY)
_DEPTH = 100
_NOTED = 20

Result = TypeVar("Result")

_mro: Callable[[type], Tuple[type, ...]] = type.__dict__["__mro__"].__get__
_namespace: Callable[[type], Dict[str, Any]] = type.__dict__["__dict__"].__get__
_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_arguments: Callable[[BaseException], Tuple[Any, ...]] = BaseException.__dict__["args"].__get__


class Place(NamedTuple):
    """A line of the user's program, and the library that made the call on its behalf, None if it did so itself."""

    file: str
    line: int
    function: str
    library: Optional[str]


def is_user_file(name: str) -> bool:
    """Whether a code object's file name belongs to the user's program rather than to a library."""
    if name.startswith("<"):
        return name.startswith(("<stdin>", "<string>", "<ipython-input"))
    if "/site-packages/" in name or "/dist-packages/" in name:
        return False
    return not name.startswith(_NOT_THE_USERS)


def calling_place() -> Optional[Place]:
    """The innermost line of the user's program on this thread's stack."""
    frame: Optional[FrameType] = sys._getframe(1)
    library = None
    for _ in range(_DEPTH):
        if frame is None:
            return None
        code = frame.f_code
        name = code.co_filename
        if is_user_file(name) and (not name.startswith("<") or frame.f_globals.get("__name__") == "__main__"):
            return Place(_absolute(name), frame.f_lineno, code.co_name, library)
        if library is None and "-packages/" in name and not name.startswith(_GPUWATCH):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            library = package if package != "torch" else None
        frame = frame.f_back
    return None


def _absolute(name: str) -> str:
    if name.startswith("<"):
        return name
    try:
        return os.path.abspath(name)
    except OSError:
        return name  # the working folder was removed under the process


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
