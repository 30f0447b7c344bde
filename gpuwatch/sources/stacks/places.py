"""Whose a source file is: the user's, a library's, the standard library's, or nobody's.

Only paths are looked at, except for a torch that was built in place: there the folder decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r".*/(?:lib|lib64)/python3(?:\.\d+t?)?/(.+)")
_ZIPPED = re.compile(r".*/python3\d+\.zip/(.+)")
_GENERATED = re.compile(r"/(torchinductor_[^/]*|torch_compile_debug|\.triton/cache)/")
_OWN = re.compile(r".*/(gpuwatch/(?:hook/.+|__init__\.py))")
_IN_PLACE = re.compile(r"(.*)/(torch/.+)")
_CELLS = ("<ipython-input", "<stdin>")
_SHOWN_PARTS = 2


class Owner(Enum):
    """Who wrote a file."""

    USER = "user"
    LIBRARY = "library"
    STANDARD = "standard"
    NOBODY = "nobody"  # <frozen ...>, <string>, generated code
    GPUWATCH = "gpuwatch"


@dataclass(frozen=True, slots=True)
class Place:
    """A source file. `module` is its path below the folder that packages are imported from."""

    owner: Owner
    module: str

    @property
    def package(self) -> str:
        """The package it belongs to, "torch" for "torch/optim/adam.py"."""
        return self.module.partition("/")[0]

    def shown(self, function: str) -> str:
        """What is said of a library function at work: "PIL/Image.py:resize"."""
        parts = self.module.split("/")
        short = parts if len(parts) <= _SHOWN_PARTS else [parts[0], parts[-1]]
        return f"{'/'.join(short)}:{function}"


class Places:
    """Tells files apart, each one once.

    Args:
        exists: Whether a file of the target's is there; asked for a torch outside of site-packages only.
    """

    def __init__(self, exists: Callable[[str], bool] = lambda _: False) -> None:
        self._exists = exists
        self._known: dict[str, Place] = {}

    def of(self, file: str) -> Place:
        """Whose `file` is."""
        place = self._known.get(file)
        if place is None:
            if len(self._known) > 8192:
                self._known.clear()
            place = self._known[file] = self._find(file)
        return place

    def _find(self, file: str) -> Place:
        if file.startswith("<gpuwatch "):  # what the hook puts in the place of torch's functions, and its own modules
            return Place(Owner.GPUWATCH, "gpuwatch" + (file.partition(">")[2] or "/hook"))
        if file.startswith("<"):
            return Place(Owner.USER if file.startswith(_CELLS) else Owner.NOBODY, file)
        if _GENERATED.search(file):
            return Place(Owner.NOBODY, "torch/_inductor/generated")
        if own := _OWN.fullmatch(file):
            return Place(Owner.GPUWATCH, own[1])
        if packaged := _PACKAGES.fullmatch(file):
            return Place(Owner.LIBRARY, packaged[1])
        if standard := _STANDARD.fullmatch(file) or _ZIPPED.fullmatch(file):
            return Place(Owner.STANDARD, standard[1])
        in_place = _IN_PLACE.fullmatch(file)
        if in_place and self._exists(f"{in_place[1]}/torch/nn/modules/module.py"):
            return Place(Owner.LIBRARY, in_place[2])
        return Place(Owner.USER, file)
