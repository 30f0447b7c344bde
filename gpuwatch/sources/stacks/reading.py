"""What this room needs of the reader: a process whose stacks can be asked for, and its loaders' counters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Frame, Stack


class Readable(Protocol):
    """Another Python process; each call raises `CannotReadError` once it is gone."""

    pid: int
    start_ticks: int
    version: tuple[int, int]

    def main_stack(self) -> Stack | None:
        """The main thread's stack; None where it was torn."""

    def stacks(self) -> list[Stack]:
        """The stacks of all threads."""

    def close(self) -> None:
        """Gives all files back."""


class Counters(Protocol):
    """The loader iterators of one process."""

    def state(self, stack: Stack) -> LoaderState | None:
        """The innermost loop over a loader's iterator that the stack stands in."""

    def recheck(self, state: LoaderState) -> int | None:
        """The same iterator's count now; None where it is gone."""

    def integer(self, frame: Frame, name: str) -> int | None:
        """The int that a variable of the frame holds."""


Attach = Callable[[int, Path], "tuple[Readable, Counters]"]
"""(pid, /proc) -> the process; raises `CannotReadError`."""
