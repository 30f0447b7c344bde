"""Which framework a process has mapped, and which torch that is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 16
_MAPS_LIMIT: Final = 16 << 20
_TORCH_NAME: Final = b"/lib/libtorch_"
_TORCH = re.compile(rb" (/[^\n]*)/lib/libtorch_(?:cpu|python)\.so")
_OTHERS: Final = (
    ("JAX", re.compile(rb"/jaxlib/|/xla_extension[^/\n]*\.so")),
    ("TensorFlow", re.compile(rb"/libtensorflow_(?:framework|cc)\.so|/_pywrap_tensorflow_internal\.so")),
)
_VERSION = re.compile(rb"__version__[^\n=]*=\s*['\"](\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Library:
    """A framework that trains: its name, and for torch the folder it was loaded from."""

    name: str
    folder: str | None = None

    @property
    def is_torch(self) -> bool:
        """Whether its DataLoader and its workers are what gpuwatch knows."""
        return self.name == "torch"


def mapped_library(proc_root: Path | str, pid: int) -> Library | None:
    """The framework in a process's address space, torch before all others; None where there is none, or unreadable.

    It reads up to the first torch library: 0.3 ms of a CPU trainer's 370 mappings.
    """
    try:
        descriptor = os.open(f"{proc_root}/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    other: str | None = None
    tail, length = b"", 0
    try:
        while length < _MAPS_LIMIT and (chunk := os.read(descriptor, _CHUNK)):
            length += len(chunk)
            text = tail + chunk
            torch = _TORCH.search(text) if _TORCH_NAME in text else None
            if torch:
                return Library("torch", os.fsdecode(torch.group(1)))
            other = other or next((name for name, pattern in _OTHERS if pattern.search(text)), None)
            tail = text[text.rfind(b"\n") + 1 :]
    except OSError:  # it ended, or became another user's program
        return None
    finally:
        os.close(descriptor)
    return Library(other) if other else None


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
