"""Which framework a process has mapped, and which torch that is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuwatch.foreign import read_foreign
from gpuwatch.reader.maps import MAPS_LIMIT, mapped_paths
from gpuwatch.sources.host.procfs import read_of

_TORCH: Final = (b"/libtorch_cpu.so", b"/libtorch_python.so")
_TORCH_LIBRARIES: Final = b"/lib/libtorch_python.so"
_OTHERS: Final = (("JAX", b"/jaxlib/"), ("TensorFlow", b"/tensorflow/"))
_LIBRARY_END = re.compile(rb"\.so(?:\.\d{1,4})?\Z")
_VERSION = re.compile(rb"__version__[^\n=]{0,80}=\s*['\"](\d{1,4})\.(\d{1,4})")
_VERSION_LIMIT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Library:
    """A framework that trains: its name, and for torch the folder of its Python package."""

    name: str
    folder: str | None = None

    @property
    def is_torch(self) -> bool:
        """Whether its DataLoader and its workers are what gpuwatch knows."""
        return self.name == "torch"


def mapped_library(proc_root: Path | str, pid: int) -> Library | None:
    """The framework in a process's address space, torch before all others; None where there is none, or unreadable.

    0.4 ms for a CPU trainer's 370 mappings.
    """
    paths = mapped_paths(read_of(proc_root, pid, "maps", MAPS_LIMIT) or b"")
    if any(path.endswith(_TORCH) for path in paths):
        # conda-forge keeps the libraries elsewhere; the extension module always lies in the package.
        folders = sorted(folder for path in paths if (folder := _package_of(path)).endswith(b"/torch"))
        return Library("torch", os.fsdecode(folders[0]) if folders else None)
    return next((Library(name) for name, part in _OTHERS if any(map(partial(_is_library_of, part), paths))), None)


def _package_of(path: bytes) -> bytes:
    """The folder of the package that the extension module `_C`, or torch's own library for Python, lies in."""
    if path.endswith(_TORCH_LIBRARIES):
        return path.removesuffix(_TORCH_LIBRARIES)
    folder, _, name = path.rpartition(b"/")
    return folder if name.startswith(b"_C.") and name.endswith(b".so") else b""


def _is_library_of(part: bytes, path: bytes) -> bool:
    return part in path and _LIBRARY_END.search(path, max(0, len(path) - 8)) is not None


def torch_version(proc_root: Path | str, pid: int, library: Library) -> tuple[int, int] | None:
    """(2, 4) of the torch that a process has loaded, from its version.py as that process sees it."""
    if library.folder is None:
        return None
    try:
        text = read_foreign(pid, f"{library.folder}/version.py", _VERSION_LIMIT, proc_root=Path(proc_root)).content
    except OSError:
        return None
    found = _VERSION.search(text)
    return (int(found.group(1)), int(found.group(2))) if found else None
