"""Which framework a process has mapped, and which torch that is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwatch.sources.host.procfs import read_all

_MAPS_LIMIT: Final = 16 << 20  # vm.max_map_count lines of 130 characters are half of it
_END: Final = rb"(?: \(deleted\))?\n"
_TORCH = re.compile(rb"/libtorch_(?:cpu|python)\.so" + _END)
_TORCH_FOLDER = re.compile(rb" (/[^\n]*)/(?:_C\.[^/\n]*|lib/libtorch_python)\.so" + _END)
_OTHERS: Final = (
    ("JAX", re.compile(rb"/jaxlib/[^\n]*\.so" + _END)),
    ("TensorFlow", re.compile(rb"/tensorflow/[^\n]*\.so(?:\.\d+)?" + _END)),
)
_VERSION = re.compile(rb"__version__[^\n=]*=\s*['\"](\d+)\.(\d+)")


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
    maps = read_all(f"{proc_root}/{pid}/maps", _MAPS_LIMIT)
    if not maps:
        return None
    if _TORCH.search(maps):
        # conda-forge keeps the libraries elsewhere; the extension module always lies in the package.
        found = next((match for match in _TORCH_FOLDER.finditer(maps) if match.group(1).endswith(b"/torch")), None)
        return Library("torch", os.fsdecode(found.group(1)) if found else None)
    return next((Library(name) for name, pattern in _OTHERS if pattern.search(maps)), None)


def torch_version(proc_root: Path | str, pid: int, library: Library) -> tuple[int, int] | None:
    """(2, 4) of the torch that a process has loaded, from its version.py as that process sees it."""
    if library.folder is None:
        return None
    found = _VERSION.search(_head_of_file(f"{proc_root}/{pid}/root{library.folder}/version.py"))
    return (int(found.group(1)), int(found.group(2))) if found else None


def _head_of_file(path: str) -> bytes:
    """The first 4 KiB of a regular file; nothing of a pipe, which somebody may have put there to hold its reader."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
